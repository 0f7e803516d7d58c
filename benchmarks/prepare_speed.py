"""How well `prepare` uses the cores: `python -m benchmarks prepare_speed FOLDER`. Writes results/prepare_speed.json.

The yardstick is one process that decodes and resizes every image and keeps nothing. `prepare` does that too, and lists,
hashes and writes; on n cores it should reach 0.75 n times the yardstick. What the machine gives at most is measured
beside it: n plain loops at once, each writing its part of the pixels to a file. All are timed by the clock on the wall,
in turn, so that a change in the machine's load meets all; run it on an idle machine. Its load is in the file.
"""

import json
import multiprocessing
import os
import tempfile
import time
from statistics import median

from benchmarks import RESULTS, command_line
from benchmarks.provenance import provenance
from ray_adaplr.data.files import find_pictures
from ray_adaplr.data.ingest import prepare
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.parallel import cores
from ray_adaplr.data.pictures import decode

OUT = RESULTS / "prepare_speed.json"
WANTED = 0.75


def main(arguments: list[str] | None = None) -> None:
    parser = command_line("prepare_speed", __doc__)
    parser.add_argument("folder", help="a folder of images, e.g. PACS/sketch")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 64], help="sides of the images in pixels")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args(arguments)
    one_process(options.folder, options.sizes[0])  # once for the disk's sake
    rows = [measure(options.folder, size, options.repeats) for size in options.sizes]
    content = {"provenance": provenance(), "workers": cores(), "wanted_share": WANTED, "rows": rows}
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(content, indent=1) + "\n")
    for row in rows:
        print(
            f"{row['size']} px: one process {row['one_process_images_per_s']:,.0f} images/s, prepare "
            f"{row['prepare_images_per_s']:,.0f}, which is {row['share']:.2f} of {cores()} times one (wanted {WANTED});"
            f" plain loops at once reach {row['limit']:.2f}"
        )


def measure(folder: str, size: int, repeats: int) -> dict[str, object]:
    """Medians of interleaved repeats; the share is the median of the pairs' shares."""
    load = os.getloadavg()
    turns = [
        (one_process(folder, size), all_processes(folder, size), loops_at_once(folder, size)) for _ in range(repeats)
    ]
    single, parallel, _ = zip(*turns)
    shares = [together / (cores() * alone) for alone, together, _ in turns]
    limits = [loops / (cores() * alone) for alone, _, loops in turns]
    return {
        "size": size,
        "repeats": repeats,
        "one_process_images_per_s": round(median(single)),
        "prepare_images_per_s": round(median(parallel)),
        "share": round(median(shares), 3),
        "shares": [round(share, 3) for share in shares],
        "limit": round(median(limits), 3),
        "limits": [round(limit, 3) for limit in limits],
        "load_before": load,
        "load_after": os.getloadavg(),
    }


def one_process(folder: str, size: int) -> float:
    """Images a second of a plain loop."""
    source = find_pictures(folder)
    started = time.monotonic()
    for row in range(len(source)):
        decode(source.images[row], size, 3)
    return len(source) / (time.monotonic() - started)


def all_processes(folder: str, size: int) -> float:
    """Images a second of `prepare`, from the call to the finished store."""
    with tempfile.TemporaryDirectory() as out:
        started = time.monotonic()
        store = prepare(folder, f"{out}/store", PrepareOptions(size=size, channels=3))
        return len(store) / (time.monotonic() - started)


def loops_at_once(folder: str, size: int) -> float:
    """Images a second of a plain loop a core, each over its part of the images: no checksum, no store."""
    images = find_pictures(folder).images
    with tempfile.TemporaryDirectory() as out:
        started = time.monotonic()
        fork = multiprocessing.get_context("fork")
        loops = [
            fork.Process(target=decode_and_write, args=(images[k :: cores()], size, f"{out}/{k}"))
            for k in range(cores())
        ]
        for loop in loops:
            loop.start()
        for loop in loops:
            loop.join()
        return len(images) / (time.monotonic() - started)


def decode_and_write(images: list[str], size: int, file: str) -> None:
    with open(file, "wb", buffering=8 << 20) as pixels:
        for image in images:
            pixels.write(decode(image, size, 3).data)
