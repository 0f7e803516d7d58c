"""`ray-adaplr`: the command line. Exit code 0 on success, 2 on bad input with one sentence, 1 on failure."""

import argparse
import json
import logging
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ray_adaplr import __version__
from ray_adaplr.errors import InputError, RunFailed

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_STOPPED = 1, 2, 130


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
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        options.function(options)
        return 0
    except InputError as error:
        print(f"ray-adaplr: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except RunFailed as error:
        print(f"\nray-adaplr: the run failed: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        again = f"the same command goes on from the last checkpoint:\n  {options.command_line}"
        print(f"\nstopped; {again}", file=sys.stderr)
        return EXIT_STOPPED
    except OSError as error:
        print(f"ray-adaplr: {error.strerror or error}: {error.filename or ''}; nothing written before was lost, the "
              "same command goes on", file=sys.stderr)  # fmt: skip
        return EXIT_FAILED


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands; each sets `function` to what runs it."""
    parser = _Parser(prog="ray-adaplr", description=__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=f"ray-adaplr {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="the whole pipeline on real digits that come inside pip packages")
    demo.add_argument("--source", default="mnist", choices=["mnist", "optdigits", "mnistm"])
    demo.add_argument("--target", default="optdigits", choices=["mnist", "optdigits", "mnistm"])
    _training_options(demo)
    demo.set_defaults(function=_demo)

    prepare = commands.add_parser("prepare", help="images into a store: a folder, a list, npz, Parquet, a benchmark")
    prepare.add_argument("what")
    prepare.add_argument("--out", required=True)
    _image_options(prepare)
    prepare.set_defaults(function=_prepare)

    pretrain = commands.add_parser("pretrain", help="train a source model; several stores are one source")
    pretrain.add_argument("--data", action="append", required=True, metavar="STORE")
    pretrain.add_argument("--model", default="digit_cnn", help="digit_cnn, a torchvision name, or timm/NAME")
    pretrain.add_argument("--width", type=int, default=16, help="of the digit CNN")
    pretrain.add_argument("--normalize", choices=["image", "imagenet", "half", "none"], default="none")
    _training_options(pretrain)
    pretrain.set_defaults(function=_pretrain)

    for name, text in (
        ("adapt", "infer, refine and distill; the same command again resumes"),
        ("infer", "only label the target with the source model"),
        ("refine", "infer and refine, without the target model"),
        ("distill", "the target model of a run that is refined"),
    ):
        stage = commands.add_parser(name, help=text)
        stage.add_argument("--source", action="append", metavar="MODEL", help="model folder or weights; repeat to fuse")
        stage.add_argument("--target", action="append", metavar="STORE", help="store or images; repeat for a union")
        stage.add_argument("--model", help="architecture of a weights file")
        stage.add_argument("--classes", help="file with a class name a line, for a weights file")
        stage.add_argument("--labels", metavar="FILE", help="id,label: for all images the start, for some fixed labels")
        _image_options(stage, with_classes=False)
        _training_options(stage)
        stage.set_defaults(function=_adapt, until="distill" if name in ("adapt", "distill") else name)

    evaluate = commands.add_parser("evaluate", help="accuracy of a model on a store with ground truth")
    evaluate.add_argument("--model", required=True)
    evaluate.add_argument("--data", action="append", required=True, metavar="STORE")
    evaluate.add_argument("--json", action="store_true")
    evaluate.set_defaults(function=_evaluate)

    predict = commands.add_parser("predict", help="labels and confidences for a store or images")
    predict.add_argument("--model", required=True)
    predict.add_argument("--data", required=True, metavar="PATH")
    predict.add_argument("--out", required=True, metavar="FILE.parquet")
    predict.set_defaults(function=_predict)

    report = commands.add_parser("report", help="the HTML page of a run, finished or not; several runs are compared")
    report.add_argument("runs", nargs="+", metavar="RUN")
    report.add_argument("--out", metavar="FILE.html")
    report.add_argument("--figures", metavar="DIR", help="also write each figure as PNG, SVG and PDF")
    report.set_defaults(function=_report)

    watch = commands.add_parser("watch", help="a live view of a run from its folder")
    watch.add_argument("run", metavar="RUN")
    watch.add_argument("--once", action="store_true")
    watch.set_defaults(function=_watch)
    return parser


def _training_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--preset", default="robust")
    parser.add_argument("--config", metavar="FILE.toml", help="settings over the preset's")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="one setting; repeatable")
    parser.add_argument("--seed", type=int, help="short for --set seed=N")
    parser.add_argument("--engine", choices=["ray", "local"], default="ray", help="local: all in this process")
    parser.add_argument("--address", help="a running Ray cluster; default: start a local one")
    parser.add_argument("--gpus-per-member", type=float)
    parser.add_argument("--cpus-per-member", type=float)
    parser.add_argument("--threads", type=int, default=1, help="torch threads of a CPU member")
    for name, kind, text in (
        ("checkpoint-every", int, "epochs between checkpoints (1)"),
        ("keep-checkpoints", int, "how many stay (2)"),
        ("placement-timeout", float, "seconds to wait for resources (60)"),
        ("epoch-timeout", float, "seconds after which a silent member counts as hung"),
        ("max-restarts", int, "restarts of a member (3)"),
        ("max-lost-members", int, "members the run may go on without (0)"),
        ("distill-workers", int, "data-parallel workers of the target model (1)"),
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
        parser.add_argument("--limit", type=int, help="take this many images, chosen by --seed")
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--max-rejected", type=float, help="share of unreadable images above which to stop")
        parser.add_argument("--workers", type=int, help="processes; default: one a core")


def _settings(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    from ray_adaplr.config import Config, ScalingConfig, parse_setting
    from ray_adaplr.report.progress import Progress

    changes = dict(parse_setting(text) for text in options.set)
    if options.seed is not None:
        changes["seed"] = options.seed
    config = Config.load(options.preset, options.config, changes)
    told = {name: getattr(options, name) for name in ScalingConfig.model_fields}
    scaling = {name: value for name, value in told.items() if value is not None}
    return config, ScalingConfig.checked(**scaling), Progress(quiet=options.quiet)


def _lines(file: str | None) -> list[str] | None:
    if file is None:
        return None
    try:
        return [line.strip() for line in Path(file).read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the class list {file}: {error}") from error


def _demo(options: argparse.Namespace) -> None:
    from ray_adaplr.demo import run_demo

    if options.source == options.target:
        raise InputError(f"source and target are both '{options.source}'; choose two domains")
    config, scaling, progress = _settings(options)
    result = run_demo(
        options.out, options.source, options.target, config, scaling, force=options.force, command=options.command_line,
        progress=progress,
    )  # fmt: skip
    _print_result(result, f"{options.source} -> {options.target}")


def _prepare(options: argparse.Namespace) -> None:
    from ray_adaplr.data.ingest import prepare

    names = ("size", "channels", "aspect", "domain", "root", "limit", "seed", "max_rejected", "workers")
    chosen = {name: getattr(options, name) for name in names}
    store = prepare(options.what, options.out, classes=_lines(options.classes), **chosen)
    known = f"{len(store.classes)} classes" if store.classes else "no class names"
    print(f"{len(store):,} images of {'x'.join(map(str, store.image_shape))}, {known}: {options.out}")


def _pretrain(options: argparse.Namespace) -> None:
    from ray_adaplr.core.models import ModelSpec
    from ray_adaplr.data.store import ImageStore
    from ray_adaplr.stages.pretrain import pretrain

    config, scaling, progress = _settings(options)
    store = ImageStore.open(*options.data)
    height, width, channels = store.image_shape
    spec = ModelSpec(
        name=options.model, num_classes=max(2, len(store.classes)), width=options.width, normalize=options.normalize,
        channels=channels if options.model == "digit_cnn" else 3,  # type: ignore[arg-type]
        image_size=(height, width), classes=tuple(store.classes),
    )  # fmt: skip
    pretrain(store, options.out, spec, config, scaling, force=options.force, progress=progress)
    print(f"source model: {options.out}")


def _adapt(options: argparse.Namespace) -> None:
    from ray_adaplr.api import as_store
    from ray_adaplr.data.given_labels import read_given_labels
    from ray_adaplr.engine.storage import Folder
    from ray_adaplr.modelfile import load_model
    from ray_adaplr.stages.adapt import adapt

    config, scaling, progress = _settings(options)
    earlier = Folder(options.out).read_json("run.json") if Folder(options.out).exists("run.json") else {}
    sources, targets = options.source or earlier.get("source"), options.target or earlier.get("target")
    if not sources or not targets:
        raise InputError(f"name the --{'source' if not sources else 'target'}; {options.out} holds no earlier run")
    models = [load_model(source, options.model, _lines(options.classes)) for source in sources]
    store = as_store(targets, options.out, size=options.size, channels=options.channels, aspect=options.aspect)
    given = read_given_labels(options.labels, store, models[0].spec.num_classes) if options.labels else None
    result = adapt(
        models, store, options.out, config, scaling, given=given, until=options.until, force=options.force,
        source_names=sources, command=options.command_line, progress=progress,
    )  # fmt: skip
    if options.until == "distill":
        _print_result(result, "result")
    else:
        print(f"{options.until} is done: {result.path}")


def _print_result(result: Any, title: str) -> None:
    summary = result.summary
    print(f"\n{title}: {summary['num_images']:,} images, {summary['num_classes']} classes, seed {summary['seed']}")
    if summary["inferred"] is not None:
        print("  ground truth (a diagnostic; it never trains)")
        print(f"    {'':10}{'accuracy':>9}{'noise':>9}")
        for row in ("inferred", "refined", "target"):
            print(f"    {row:10}{summary[row]:>9.3f}{1 - summary[row]:>9.3f}")
    print(f"  labels changed {summary['changed_share']:.1%}, high-confidence {summary['hcs_share']:.1%}")
    for warning in summary["warnings"]:
        print(f"  WARNING: {warning}")
    print(f"  report: {result.path}/report.html")


def _evaluate(options: argparse.Namespace) -> None:
    from ray_adaplr.data.store import ImageStore
    from ray_adaplr.modelfile import load_model
    from ray_adaplr.stages.evaluate import evaluate

    scores = evaluate(load_model(options.model), ImageStore.open(*options.data))
    if options.json:
        print(json.dumps(scores, indent=1))
        return
    print(f"accuracy {scores['accuracy']:.4f} on {scores['images']:,} images")
    for kind in ("per_domain", "per_class"):
        for name, value in scores[kind].items():
            print(f"  {name:20} {'-' if value is None else f'{value:.4f}'}")


def _predict(options: argparse.Namespace) -> None:
    import tempfile

    import pyarrow.parquet as pq

    from ray_adaplr.api import as_store
    from ray_adaplr.modelfile import load_model
    from ray_adaplr.stages.evaluate import predict

    model = load_model(options.model)
    with tempfile.TemporaryDirectory() as made:
        size = model.spec.image_size[0] if model.spec.image_size else None
        table = predict(model, as_store([options.data], made, size=size, channels=model.spec.channels))
    pq.write_table(table, options.out)
    print(f"{len(table):,} predictions: {options.out}")


def _report(options: argparse.Namespace) -> None:
    from ray_adaplr.report.figures import save_figures
    from ray_adaplr.report.page import compare_runs, write_report
    from ray_adaplr.report.run_folder import read_run

    out = Path(options.out) if options.out else None
    if len(options.runs) == 1:
        print(f"report: {write_report(options.runs[0], out)}")
    else:
        print(f"report: {compare_runs(options.runs, out or Path('comparison.html'))}")
    if options.figures:
        files = save_figures([read_run(run) for run in options.runs], Path(options.figures))
        print(f"{len(files)} figures: {options.figures}")


def _watch(options: argparse.Namespace) -> None:
    from ray_adaplr.report.watch import watch

    watch(options.run, once=options.once)
