"""`prepare --on-ray` two ways: `python -m benchmarks prepare_on_ray FOLDER`. Writes results/prepare_on_ray.json.

Shards are made by Ray tasks, as the product does it, or by a `map` of Ray Data over the same shards. Both write the
same store on one local Ray, in turn, so that a change in the machine's load meets both; which begins changes from turn
to turn. The first turn, in which workers start and import, counts apart. A command calls `prepare` once, in a new
process: what the import of `ray.data` adds there is measured beside it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks import RESULTS, command_line
from benchmarks.provenance import provenance
from ray_adaplr.config import ScalingConfig
from ray_adaplr.data import ingest
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.parallel import run_tasks
from ray_adaplr.engine.placement import connected

OUT = RESULTS / "prepare_on_ray.json"


def main(arguments: list[str] | None = None) -> None:
    parser = command_line("prepare_on_ray", __doc__)
    parser.add_argument("folder", help="a folder of images, e.g. PACS/sketch")
    parser.add_argument("--size", type=int, default=128, help="side of the images in pixels")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args(arguments)
    load = os.getloadavg()
    ways: dict[str, Any] = {"tasks": run_tasks, "ray_data": through_ray_data}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with connected(ScalingConfig(address="local")):
        for turn in range(options.repeats + 1):
            for name in sorted(ways, reverse=bool(turn % 2)):
                seconds[name].append(seconds_of(options.folder, options.size, ways[name]))
    imports = [seconds_of_import() for _ in range(3)]
    ratios = [other / ours for ours, other in zip(seconds["tasks"][1:], seconds["ray_data"][1:])]
    content = {
        "provenance": provenance(),
        "size": options.size,
        "load": [load, os.getloadavg()],
        "seconds": {name: [round(value, 2) for value in values[1:]] for name, values in seconds.items()},
        "first_turn": {name: round(values[0], 2) for name, values in seconds.items()},
        "median": {name: round(median(values[1:]), 2) for name, values in seconds.items()},
        "ray_data_over_tasks": round(median(ratios), 3),
        "import_ray_data_seconds": round(median(imports), 2),
    }
    OUT.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content, indent=1))


def seconds_of(folder: str, size: int, way: Callable[..., Any]) -> float:
    """From the call to the finished store."""
    with tempfile.TemporaryDirectory() as out, patch.object(ingest, "run_tasks", way):
        started = time.monotonic()
        ingest.prepare(folder, f"{out}/store", PrepareOptions(size=size, channels=3, on_ray=True))
        return time.monotonic() - started


def through_ray_data(
    function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]], workers: int, on_ray: bool
) -> Iterator[Any]:
    """`run_tasks` by Ray Data: one row and one block per task."""
    import ray.data

    rows = [{"task": task} for task in tasks]
    found = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
        lambda row: {"note": function(*row["task"])}, num_cpus=1
    )
    for row in found.iter_rows():
        yield row["note"]


def seconds_of_import() -> float:
    """What `import ray.data` takes after `import ray`."""
    code = "import time, ray; t = time.monotonic(); import ray.data; print(time.monotonic() - t)"
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
