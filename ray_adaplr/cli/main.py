"""`ray-adaplr`: the command line. Exit code 0 on success, 2 on bad input with one sentence, 1 on failure."""

import argparse
import atexit
import errno
import gc
import logging
import os
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from ray_adaplr import __version__
from ray_adaplr.cli import commands, doctor, jobs, paper
from ray_adaplr.errors import InputError, RunFailed

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_STOPPED = 1, 2, 130


def _stop(*_: object) -> None:
    """The first Ctrl-C or SIGTERM lets the run release what it holds; a second one ends the process at once."""
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, lambda *_: os._exit(EXIT_STOPPED))
    raise KeyboardInterrupt


def _hush_full_disk(problem: Any) -> None:
    """A full disk is told once, by `main`; TensorBoard's thread and its clean-up would tell it again as tracebacks."""
    if not (isinstance(problem.exc_value, OSError) and problem.exc_value.errno == errno.ENOSPC):
        traceback.print_exception(problem.exc_type, problem.exc_value, problem.exc_traceback)


class _Parser(argparse.ArgumentParser):
    """Bad arguments get one sentence, not a page of usage."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(EXIT_BAD_INPUT)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = make_parser().parse_args(arguments)
    options.command_line = shlex.join(["ray-adaplr", *arguments])
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, _stop)
    threading.excepthook = _hush_full_disk
    sys.unraisablehook = _hush_full_disk
    try:
        return options.function(options) or 0
    except InputError as error:
        print(f"ray-adaplr: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except RunFailed as error:
        print(f"\nray-adaplr: the run failed: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        again = f"the same command goes on from the last checkpoint:\n  {options.command_line}"
        if options.function is commands.tune and not options.resume:
            again += " --resume"
        print(f"\nstopped; {again}", file=sys.stderr)
        return EXIT_STOPPED
    except BrokenPipeError:  # whoever read our output has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # so that the interpreter's last flush is quiet
        return 0
    except OSError as error:  # a full disk, most often; every file written so far is whole
        threading.excepthook = lambda _: None  # open writers fail once more as the process ends
        sys.unraisablehook = lambda _: None
        print(f"ray-adaplr: {error.strerror or error}: {error.filename or ''}; nothing written before was lost, the "
              "same command goes on", file=sys.stderr)  # fmt: skip
        return EXIT_FAILED


def command() -> int:
    """The console script: `main` in a process of its own, which can do without most looks for garbage.

    Torch makes objects by the hundred thousand as it loads, and all stay: 1 s of 2.9 s of a core that loading and
    leaving take. Triton counts what is left at the end, and would complain.
    """
    gc.set_threshold(50_000)
    atexit.register(lambda: None if "triton" in sys.modules else gc.freeze())
    return main()


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands; each sets `function` to what runs it."""
    parser = _Parser(prog="ray-adaplr", description=__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=f"ray-adaplr {__version__}")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    demo = subparsers.add_parser("demo", help="the whole pipeline on real digits that come inside pip packages")
    demo.add_argument("--source", default="mnist", choices=["mnist", "optdigits", "mnistm"])
    demo.add_argument("--target", default="optdigits", choices=["mnist", "optdigits", "mnistm"])
    _training_options(demo)
    demo.set_defaults(function=commands.demo)

    prepare = subparsers.add_parser("prepare", help="images into a store: a folder, a list, npz, Parquet, a benchmark")
    prepare.add_argument("what")
    prepare.add_argument("--out", required=True)
    _image_options(prepare)
    prepare.set_defaults(function=commands.prepare)

    pretrain = subparsers.add_parser("pretrain", help="train a source model; several stores are one source")
    pretrain.add_argument("--data", action="append", required=True, metavar="STORE")
    pretrain.add_argument("--model", default="digit_cnn", help="digit_cnn, a torchvision name, or timm/NAME")
    pretrain.add_argument("--width", type=int, default=16, help="of the digit CNN")
    pretrain.add_argument("--normalize", choices=["image", "imagenet", "half", "none"], default="none")
    _training_options(pretrain)
    pretrain.set_defaults(function=commands.pretrain)

    for name, text in (
        ("adapt", "infer, refine and distill; the same command again resumes"),
        ("infer", "only label the target with the source model"),
        ("refine", "infer and refine, without the target model"),
        ("distill", "the target model of a run that is refined"),
    ):
        stage = subparsers.add_parser(name, help=text)
        _adaptation_options(stage)
        stage.add_argument("--fork", metavar="RUN", help="go on from another run under new settings, in --out")
        stage.add_argument("--stop", choices=["epochs", "auto"], help="auto: end when it stalls, ship what scores best")
        stage.add_argument("--labels", metavar="FILE", help="id,label: for all images the start, for some fixed labels")
        _image_options(stage, with_classes=False)
        _training_options(stage)
        stage.set_defaults(function=commands.adapt, until="distill" if name in ("adapt", "distill") else name)

    tune = subparsers.add_parser("tune", help="a sweep: many refinements, judged without labels; --resume goes on")
    tune.add_argument("space", nargs="?", help="alpha, n_rl, n_e, joint, ablation, or a Python file with a space(C)")
    _adaptation_options(tune)
    tune.add_argument("--search", choices=["grid", "random", "optuna"], default="grid")
    tune.add_argument("--trials", type=int, help="how many (default: the whole grid; 12 random ones; 20 of Optuna)")
    tune.add_argument("--scheduler", choices=["none", "asha"], default="none", help="asha stops those that lag behind")
    tune.add_argument("--metric", help="label-free score to judge by; default: the one that was best in benchmarks/")
    tune.add_argument("--oracle", action="store_true", help="judge by ground truth instead; says so in the results")
    tune.add_argument("--resume", action="store_true", help="go on with the sweep in --out; failed trials start again")
    _training_options(tune)
    tune.set_defaults(function=commands.tune)

    evaluate = subparsers.add_parser("evaluate", help="accuracy of a model on a store with ground truth")
    evaluate.add_argument("--model", action="append", required=True, help="repeat for an ensemble")
    evaluate.add_argument("--data", action="append", required=True, metavar="STORE")
    evaluate.add_argument("--json", action="store_true")
    evaluate.set_defaults(function=commands.evaluate)

    predict = subparsers.add_parser("predict", help="labels and confidences for a store or images")
    predict.add_argument("--model", action="append", required=True, help="repeat for an ensemble")
    predict.add_argument("--data", required=True, metavar="PATH")
    predict.add_argument("--out", required=True, metavar="FILE.parquet")
    predict.set_defaults(function=commands.predict)

    report = subparsers.add_parser("report", help="the HTML page of a run, finished or not; several runs are compared")
    report.add_argument("runs", nargs="+", metavar="RUN")
    report.add_argument("--out", metavar="FILE.html")
    report.add_argument("--figures", metavar="DIR", help="also write each figure as PNG, SVG and PDF")
    report.set_defaults(function=commands.report)

    watch = subparsers.add_parser("watch", help="a live view of a run from its folder")
    watch.add_argument("run", metavar="RUN")
    watch.add_argument("--once", action="store_true")
    watch.set_defaults(function=commands.watch)
    jobs.add_parser(subparsers)
    doctor.add_parser(subparsers)
    _run_options(paper.add_parser(subparsers))
    return parser


def _adaptation_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--source", action="append", metavar="MODEL", help="model folder or weights; repeat to fuse")
    parser.add_argument("--target", action="append", metavar="STORE", help="store (adapt: or images); repeat to join")
    parser.add_argument("--model", help="architecture of a weights file")
    parser.add_argument("--classes", help="file with a class name a line, for a weights file")


def _training_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--preset", default="robust")
    parser.add_argument("--seed", type=int, help="short for --set seed=N")
    _run_options(parser)


def _run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE.toml", help="settings over the preset's")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="one setting; repeatable")
    parser.add_argument("--engine", choices=["ray", "local"], default="ray", help="local: all in this process")
    parser.add_argument("--address", help="a running Ray cluster; default: start a local one")
    parser.add_argument("--gpus-per-member", type=float)
    parser.add_argument("--cpus-per-member", type=float)
    parser.add_argument("--threads", type=int, default=1, help="torch threads of a CPU member")
    for name, kind, text in (
        ("device-cache", str, "keep the images on the GPU: auto (when they fit), on or off"),
        ("checkpoint-every", int, "epochs between checkpoints (1)"),
        ("keep-checkpoints", int, "how many stay (2)"),
        ("placement-timeout", float, "seconds to wait for resources (60)"),
        ("wait-for-nodes", float, "seconds to wait for nodes that an autoscaler brings"),
        ("epoch-timeout", float, "seconds after which a silent member counts as hung"),
        ("max-restarts", int, "restarts of a member (3)"),
        ("max-lost-members", int, "members the run may go on without (0)"),
        ("distill-workers", int, "data-parallel workers of pretrain and distill (every free GPU; 1 on CPUs)"),
    ):
        parser.add_argument(f"--{name}", type=kind, help=text)
    parser.add_argument("--force", action="store_true", help="start anew although there is an earlier result")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def _image_options(parser: argparse.ArgumentParser, with_classes: bool = True) -> None:
    parser.add_argument("--size", type=int, help="side of the images in pixels")
    parser.add_argument("--channels", type=int, choices=[1, 3])
    parser.add_argument("--aspect", choices=["resize", "crop"], default="resize")
    if with_classes:
        parser.add_argument("--classes", help="file with a class name a line")
        parser.add_argument("--domain", help="name of the domain; default: the file's or folder's")
        parser.add_argument("--root", help="folder that the paths of a list are relative to")
        parser.add_argument("--split", help="of a published set that has several, e.g. train or test")
        parser.add_argument("--subset", action="store_true", help="DomainNet's 126 classes instead of 345")
        parser.add_argument("--backgrounds", metavar="DIR", help="photographs to blend MNIST into, as MNIST-M was made")
        parser.add_argument("--unlabelled", action="store_true", help="leave out the ground truth that is there")
        parser.add_argument("--limit", type=int, help="take this many images, chosen by --seed")
        parser.add_argument("--scale", type=float, default=1.0, help="take this share of them")
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--max-rejected", type=float, help="share of unreadable images above which to stop")
        parser.add_argument("--workers", type=int, help="processes; default: one a core")
        parser.add_argument("--on-ray", action="store_true", help="decode on the Ray cluster")
