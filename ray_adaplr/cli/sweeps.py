"""Commands that make many runs: `tune`, a sweep, new or resumed, and `paper`, rows of the paper's tables."""

import os
import shlex
from argparse import Namespace
from contextlib import ExitStack
from typing import Any

from pydantic import BaseModel

from ray_adaplr.cli import options as flags
from ray_adaplr.cli.runs import add_source_and_target, load_sources
from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.errors import InputError
from ray_adaplr.paper.options import PaperJob, PaperOptions
from ray_adaplr.storage.layout import BEST, SWEEP_PAGE, TRIALS
from ray_adaplr.storage.secrets import named_again, redacted
from ray_adaplr.sweep.options import SweepJob, SweepOptions


def add_parsers(commands: Any) -> None:
    """Register these commands."""
    parser = flags.add_command(commands, tune)
    spaces = "alpha, n_rl, n_e, joint, ablation, or a Python file with a space(num_classes)"
    parser.add_argument("space", nargs="?", metavar="SPACE", help=spaces)
    add_source_and_target(parser, "store")
    flags.add_flags(parser, SweepOptions)
    parser.add_argument("--resume", action="store_true", help="continue the sweep in --out; failed trials run again")
    flags.add_track(parser)
    flags.add_training(parser)

    parser = flags.add_command(commands, paper)
    parser.add_argument("benchmark", metavar="BENCHMARK", help="digit5, pacs, visda, domainnet or domainnet126")
    parser.add_argument("--out", metavar="DIR", help="default: runs/paper/BENCHMARK")
    flags.add_flags(parser, PaperOptions)
    flags.add_running(parser)


def tune(options: Namespace) -> None:
    """Run a sweep: many refinements under different settings, judged without labels; --resume continues it.

    Example: ray-adaplr tune joint --source models/photo --target stores/sketch --search random --out runs/sweep
    """
    from ray_adaplr.data.store import ImageStore
    from ray_adaplr.storage.folder import Folder, absolute, joined
    from ray_adaplr.storage.models import absolute_model_name
    from ray_adaplr.sweep.space import read_record
    from ray_adaplr.sweep.trials import judge, run_sweep

    settings, sweep_options = flags.settings_of(options), flags.given(options, SweepOptions)
    judge(sweep_options)  # refused before models are read
    config, tracker = settings.config, flags.tracker_of(options, Folder(options.out).name)
    named = options.space
    if options.class_list:
        options.class_list = absolute(options.class_list)  # to be found again from another folder
    if options.resume and options.force:
        raise InputError("--resume continues the sweep, --force removes it and starts again; give one of them")
    if options.resume:  # all but where it runs is as it was
        earlier = read_record(options.out)
        before = Config.load_text(earlier.config)
        asked = config.following(before.defaults == "photographs")  # as the sweep's own settings were
        of_models = {name: getattr(earlier, name) for name in ("model", "classes", "normalize")}
        said = {**_said(asked, config), **_said(sweep_options, sweep_options)}
        said |= {name: redacted(value) for name, value in _about_models(options).items() if value is not None}
        _refuse_changes(said, {**dict(before), **dict(earlier.options), **of_models}, options.out)
        config, sweep_options = before, earlier.options
        options.space = earlier.space
        options.source = options.source or named_again(earlier.source, "source")
        options.target = options.target or named_again(earlier.target, "target")
        for name, was in of_models.items():
            given = "class_list" if name == "classes" else name
            if was and getattr(options, given) is None:
                setattr(options, given, *named_again([was], name))
    for name in ("space", "source", "target"):
        if not getattr(options, name):
            raise InputError(f"name the {'SPACE' if name == 'space' else '--' + name} of the sweep")
    models = load_sources(options.source, options)
    job = SweepJob(
        out=options.out,
        space=named,
        options=sweep_options,
        origin={"source": [absolute_model_name(source) for source in options.source], **_about_models(options)},
        said={} if options.resume else flags.changes_of(options),
        command=options.command_line,
        resume=options.resume,
        force=options.force,
        quiet=options.quiet,
        tracker=tracker,
    )
    store = ImageStore.open(*options.target)
    result = run_sweep(job, models, store, config, settings.scaling)
    print(f"\n{result.table()}\n")
    if result.tied:
        print(f"a tie: trials {', '.join(result.tied)} have the same score")
    print(f"{BEST} holds the settings of {result.chosen}")
    print(redacted(f"  report: {joined(options.out, SWEEP_PAGE)}"))
    if Folder(options.out).is_local:
        print(f"  curves: tensorboard --logdir {shlex.quote(joined(options.out, TRIALS))}")
    print(redacted(f"  ray-adaplr adapt --config '{joined(options.out, BEST)}' --source … --target …"))


def _about_models(options: Namespace) -> dict[str, str | None]:
    """How the source models were to be read, as a sweep's record has it."""
    return {"model": options.model, "classes": options.class_list, "normalize": options.normalize}


def _said(settings: BaseModel, given: BaseModel) -> dict[str, Any]:
    """The settings that were given by name, by a preset or in a file."""
    return {name: value for name, value in settings if name in given.model_fields_set}


def _refuse_changes(said: dict[str, Any], before: dict[str, Any], out: str) -> None:
    """InputError for what is said of a resumed sweep and is not as it was."""
    if other := [name for name, value in said.items() if value != before[name]]:
        was, new = (", ".join(f"{name}={values[name]}" for name in other) for values in (before, said))
        raise InputError(
            f"the sweep in {out} has {was}, not {new}; a resumed sweep keeps its settings: leave that out, or choose "
            "another --out"
        )


def paper(options: Namespace) -> None:
    """Reproduce rows of the paper's tables by its protocol, next to the published figures.

    Example: ray-adaplr paper pacs --task photo-sketch --data data/ --backbone resnet18.safetensors
    """
    from ray_adaplr.data.benchmarks import get_benchmark
    from ray_adaplr.data.progress import Progress
    from ray_adaplr.engine import placement
    from ray_adaplr.paper.protocol import Protocol
    from ray_adaplr.paper.table import remarks, table, write_results
    from ray_adaplr.storage.folder import joined

    benchmark = get_benchmark(options.benchmark)
    wanted, scaling = flags.given(options, PaperOptions), flags.given(options, ScalingConfig)
    if not (data := wanted.data or os.environ.get("ADAPLR_DATA")):
        raise InputError(f"name the folder of {benchmark.name}'s data with --data, or set ADAPLR_DATA")
    shrunk = "" if wanted.scale == 1 else f"-scale-{wanted.scale:g}"
    out = options.out or f"runs/paper/{benchmark.name}{shrunk}"
    job = PaperJob(out, flags.all_changes(options), options.force, options.command_line)
    wanted = wanted.model_copy(update={"data": data})
    protocol = Protocol(benchmark, wanted, job, scaling, Progress(quiet=options.quiet))
    ready = [(task, protocol.stores(task)) for task in protocol.tasks()]  # all, before Ray: decoding forks processes
    with ExitStack() as stack:
        if scaling.engine == "ray":
            stack.enter_context(placement.connected(scaling))
        for task, stores in ready:
            rows = protocol.rows(task, *stores)
            write_results(out, benchmark.name, rows)
            print(f"\n{table(rows)}\n{remarks(rows)}")
    print(redacted(f"written: {joined(out, 'results.md')} and results.json"))
