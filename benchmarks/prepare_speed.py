"""How well `prepare` uses the cores: `python benchmarks/prepare_speed.py FOLDER`. Writes results/prepare_speed.json.

The yardstick is one process that decodes and resizes every image and keeps nothing. `prepare` does that too, and lists,
hashes and writes; on n cores it should reach 0.75 n times the yardstick. Both are timed by the clock on the wall, in
turn, so that a change in the machine's load meets both; run it on an idle machine. The machine's load is in the file.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from statistics import median

from harness import provenance  # the script's own folder is on the path

from ray_adaplr.data.decode import decode
from ray_adaplr.data.ingest import prepare
from ray_adaplr.data.parallel import cores
from ray_adaplr.data.recognise import find_source

RESULTS = Path(__file__).parent / "results/prepare_speed.json"
WANTED = 0.75


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="a folder of images, e.g. PACS/sketch")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 64], help="sides of the images in pixels")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    one_process(options.folder, options.sizes[0])  # once for the disk's sake
    rows = [measure(options.folder, size, options.repeats) for size in options.sizes]
    content = {"provenance": provenance(), "workers": cores(), "wanted_share": WANTED, "rows": rows}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(content, indent=1) + "\n")
    for row in rows:
        print(
            f"{row['size']} px: one process {row['one_process_images_per_s']:,.0f} images/s, prepare "
            f"{row['prepare_images_per_s']:,.0f}, which is {row['share']:.2f} of {cores()} times one (wanted {WANTED})"
        )


def measure(folder: str, size: int, repeats: int) -> dict[str, object]:
    """Medians of interleaved repeats; the share is the median of the pairs' shares."""
    load = os.getloadavg()
    pairs = [(one_process(folder, size), all_processes(folder, size)) for _ in range(repeats)]
    single, parallel = zip(*pairs)
    shares = [together / (cores() * alone) for alone, together in pairs]
    return {
        "size": size, "repeats": repeats, "one_process_images_per_s": round(median(single)),
        "prepare_images_per_s": round(median(parallel)), "share": round(median(shares), 3),
        "shares": [round(share, 3) for share in shares], "load_before": load, "load_after": os.getloadavg(),
    }  # fmt: skip


def one_process(folder: str, size: int) -> float:
    """Images a second of a plain loop."""
    source = find_source(folder)
    started = time.monotonic()
    for row in range(len(source)):
        decode(source.images[row], size, 3)
    return len(source) / (time.monotonic() - started)


def all_processes(folder: str, size: int) -> float:
    """Images a second of `prepare`, from the call to the finished store."""
    with tempfile.TemporaryDirectory() as out:
        started = time.monotonic()
        store = prepare(folder, f"{out}/store", size=size, channels=3)
        return len(store) / (time.monotonic() - started)


if __name__ == "__main__":
    main()
