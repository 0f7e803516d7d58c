"""`ray-adaplr paper`: rows of the paper's tables by its protocol, beside the figures that were published.

Inferred and refined are the accuracy of the labels of the target's training images, target is that of the target model
on the target's test split (PACS and VisDA-C have none: on the same images). As in the paper one source model serves all
seeds and tasks. Everything is kept below `--out`, and the same command goes on where it stopped.
"""

import argparse
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ray_adaplr.cli.commands import scaling_of
from ray_adaplr.errors import InputError


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Register `paper`; the settings of its runs are added as those of other commands."""
    parser = commands.add_parser("paper", help="rows of the paper's tables by its protocol, beside its figures")
    parser.add_argument("benchmark", metavar="BENCHMARK", help="digit5, pacs, visda, domainnet or domainnet126")
    parser.add_argument("--task", action="append", metavar="S-T", help="e.g. usps-mnist, rest-usps, photo-rest; "
                        "repeatable; default: all tasks of the paper whose data is there")  # fmt: skip
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="runs a task (3)")
    parser.add_argument("--scale", type=float, default=1.0, help="this share of the images and of the epochs")
    parser.add_argument("--data", default=os.environ.get("ADAPLR_DATA"), metavar="DIR", help="default: $ADAPLR_DATA")
    parser.add_argument("--out", metavar="DIR", help="default: runs/paper/BENCHMARK")
    parser.add_argument("--size", type=int, help="side of the images in pixels; default: the protocol's")
    parser.add_argument("--backbone", metavar="FILE", help="weights the source model starts from, e.g. ImageNet's")
    parser.add_argument("--late-fusion", action="store_true", help="a model for each source instead of one for all")
    parser.add_argument("--preset", help="instead of the paper's settings, e.g. robust")
    parser.set_defaults(function=run)
    return parser


def run(options: argparse.Namespace) -> None:
    """Run tasks, print their rows, and write `results.json` and `results.md`."""
    import ray

    from ray_adaplr.data.benchmarks import get_benchmark
    from ray_adaplr.data.progress import Progress
    from ray_adaplr.engine import placement
    from ray_adaplr.paper.protocol import Protocol
    from ray_adaplr.paper.table import remarks, table, write_results

    benchmark = get_benchmark(options.benchmark)
    if not 0 < options.scale <= 1:
        raise InputError(f"--scale {options.scale} is no share; give more than 0 and at most 1")
    if options.seeds < 1:
        raise InputError(f"--seeds {options.seeds} makes no run; give 1 or more")
    if not options.data:
        raise InputError(f"name the folder of {benchmark.name}'s data with --data, or set ADAPLR_DATA")
    scaling, progress = scaling_of(options), Progress(quiet=options.quiet)
    shrunk = "" if options.scale == 1 else f"-scale-{options.scale:g}"
    out = Path(options.out or f"runs/paper/{benchmark.name}{shrunk}")
    protocol = Protocol(benchmark, options, out, scaling, progress)
    ready = [(task, protocol.stores(task)) for task in protocol.tasks()]  # all, before Ray: decoding forks processes
    with ExitStack() as stack:
        if scaling.engine == "ray" and placement.connect(scaling):
            stack.callback(ray.shutdown)
        for task, stores in ready:
            rows = protocol.rows(task, *stores)
            write_results(out, benchmark.name, rows)
            print(f"\n{table(rows)}\n{remarks(rows)}")
    print(f"written: {out}/results.md and results.json")
