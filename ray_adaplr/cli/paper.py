"""`ray-adaplr paper`: rows of the paper's tables by its protocol, beside the figures that were published.

Inferred and refined are the accuracy of the labels of the target's training images, target is that of the target model
on the target's test split (PACS and VisDA-C have none: on the same images). As in the paper one source model serves all
seeds and tasks. Everything is kept below `--out`, and the same command goes on where it stopped.
"""

import os
from argparse import Namespace
from contextlib import ExitStack
from typing import Any

from ray_adaplr.cli.options import add_command, add_flags, add_running, all_changes, given
from ray_adaplr.config import ScalingConfig
from ray_adaplr.errors import InputError
from ray_adaplr.paper.options import PaperJob, PaperOptions
from ray_adaplr.storage.secrets import redacted


def add_parsers(commands: Any) -> None:
    """Register `paper`."""
    parser = add_command(commands, paper)
    parser.add_argument("benchmark", metavar="BENCHMARK", help="digit5, pacs, visda, domainnet or domainnet126")
    parser.add_argument("--out", metavar="DIR", help="default: runs/paper/BENCHMARK")
    add_flags(parser, PaperOptions)
    add_running(parser)


def paper(options: Namespace) -> None:
    """Rows of the paper's tables by its protocol, beside its figures.

    Example: ray-adaplr paper pacs --task photo-sketch --data data/ --backbone resnet18.safetensors
    """
    from ray_adaplr.data.benchmarks import get_benchmark
    from ray_adaplr.data.progress import Progress
    from ray_adaplr.engine import placement
    from ray_adaplr.paper.protocol import Protocol
    from ray_adaplr.paper.table import remarks, table, write_results

    benchmark = get_benchmark(options.benchmark)
    wanted, scaling = given(options, PaperOptions), given(options, ScalingConfig)
    if not (data := wanted.data or os.environ.get("ADAPLR_DATA")):
        raise InputError(f"name the folder of {benchmark.name}'s data with --data, or set ADAPLR_DATA")
    shrunk = "" if wanted.scale == 1 else f"-scale-{wanted.scale:g}"
    out = options.out or f"runs/paper/{benchmark.name}{shrunk}"
    job = PaperJob(out, all_changes(options), options.force, options.command_line)
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
    print(redacted(f"written: {out}/results.md and results.json"))
