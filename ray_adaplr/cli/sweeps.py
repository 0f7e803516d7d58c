"""`ray-adaplr tune`: a sweep, new or resumed."""

import shlex
from argparse import Namespace
from typing import Any

from ray_adaplr.cli.options import (
    add_command,
    add_flags,
    add_track,
    add_training,
    changes_of,
    given,
    settings_of,
    tracker_of,
)
from ray_adaplr.cli.runs import add_source_and_target, load_sources
from ray_adaplr.errors import InputError
from ray_adaplr.storage.layout import TRIALS
from ray_adaplr.storage.secrets import named_again, redacted
from ray_adaplr.sweep.options import SweepJob, SweepOptions


def add_parsers(commands: Any) -> None:
    """Register `tune`."""
    parser = add_command(commands, tune)
    spaces = "alpha, n_rl, n_e, joint, ablation, or a Python file with a space(num_classes)"
    parser.add_argument("space", nargs="?", metavar="SPACE", help=spaces)
    add_source_and_target(parser, "store")
    add_flags(parser, SweepOptions)
    parser.add_argument("--resume", action="store_true", help="go on with the sweep in --out; failed trials run again")
    add_track(parser)
    add_training(parser)


def tune(options: Namespace) -> None:
    """A sweep: many refinements under different settings, judged without labels; --resume goes on.

    Example: ray-adaplr tune joint --source models/photo --target stores/sketch --search random --out runs/sweep
    """
    from ray_adaplr.data.store import ImageStore
    from ray_adaplr.storage.folder import Folder, absolute, joined
    from ray_adaplr.storage.models import found_again
    from ray_adaplr.sweep.record import read_record
    from ray_adaplr.sweep.trials import judge, run_sweep

    settings, sweep_options = settings_of(options), given(options, SweepOptions)
    judge(sweep_options)  # refused before models are read
    config, tracker = settings.config, tracker_of(options, Folder(options.out).name)
    named = options.space
    if options.resume:  # all but where it runs is as it was
        earlier = read_record(options.out)
        config, sweep_options = earlier.settings(), earlier.options
        options.space = earlier.space
        options.source = options.source or named_again(earlier.source, "source")
        options.target = options.target or named_again(earlier.target, "target")
        options.model, options.class_list = earlier.model, earlier.classes
        options.normalize = earlier.normalize
    for name in ("space", "source", "target"):
        if not getattr(options, name):
            raise InputError(f"name the {'SPACE' if name == 'space' else '--' + name} of the sweep")
    if options.class_list and not options.resume:
        options.class_list = absolute(options.class_list)  # to be found again from another folder
    models = load_sources(options.source, options)
    origin = {"model": options.model, "classes": options.class_list, "normalize": options.normalize}
    job = SweepJob(
        out=options.out,
        space=named,
        options=sweep_options,
        origin={"source": [found_again(source) for source in options.source], **origin},
        said={} if options.resume else changes_of(options),
        command=options.command_line,
        resume=options.resume,
        force=options.force,
        quiet=options.quiet,
        tracker=tracker,
    )
    store = ImageStore.open(*options.target)
    result = run_sweep(job, models, store, config, settings.scaling, settings.progress.say)
    print(f"\n{result.table()}\n")
    if result.tied:
        print(f"a tie: trials {', '.join(result.tied)} have the same score")
    print(f"best.toml holds the settings of {result.chosen}")
    print(redacted(f"  report: {joined(options.out, 'sweep.html')}"))
    if Folder(options.out).is_local:
        print(f"  curves: tensorboard --logdir {shlex.quote(joined(options.out, TRIALS))}")
    print(redacted(f"  ray-adaplr adapt --config '{joined(options.out, 'best.toml')}' --source … --target …"))
