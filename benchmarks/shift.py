"""How far images lie from those that a source model was trained on, and whether that tells a shift from none.

    python -m benchmarks shift --data DIR [--seeds 0 1]

Every PACS domain against every other and against other images of its own (the source models and images of `python -m
benchmarks photos`), and the digit tasks with and without a shift (those of `accuracy`), each from a source that was
trained with augmentation and from one without (`core/shift.py`). Nothing is adapted. Accuracy is for the figures only.
A killed benchmark goes on where it stopped.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks import RESULTS, WORK, command_line
from benchmarks.harness import Results, Row, table
from benchmarks.photo_tasks import NO_SHIFT as SAME_DOMAIN
from benchmarks.photo_tasks import PACS, TASKS, PhotoTasks
from benchmarks.tasks import NO_SHIFT, described, start_of
from benchmarks.tasks import TASKS as DIGITS
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.shift import shift_of
from ray_adaplr.data.store import ImageStore
from ray_adaplr.stages.evaluate import evaluate

LIKE_PHOTOS = {
    "size": 96,
    "guest_size": 128,
    "images": 150,
    "test": 300,
    "pretrain_epochs": 4,
    "classes": tuple(PACS.classes),
}
FIRST_DIGITS = (150, 1000)


def figures(source: Classifier, store: ImageStore) -> Row:
    """What a row says."""
    return {
        "images": len(store),
        "accuracy": evaluate(source, store)["accuracy"],
        "shift": shift_of(source, store.read, len(store)),
    }


def shifts(content: Row) -> str:
    """The lowest and the highest of each kind, and whose they are."""
    lines = []
    for kind in dict.fromkeys(row["kind"] for row in content["rows"]):
        for same in (True, False):
            rows = sorted((row for row in content["rows"] if (row["kind"], row["same"]) == (kind, same)), key=_shift)
            cells = [
                f"{row['shift']:.4f} ({row['task'].replace('art_painting', 'art').replace('-', '→')})"
                for row in (rows[0], rows[-1])
            ]
            lines.append([kind, "none" if same else "another domain", str(len(rows)), *cells])
    return table(["source models", "shift", "measured", "lowest distance", "highest distance"], lines)


def _shift(row: Row) -> float:
    return row["shift"]


def _photos(options: argparse.Namespace, results: Results, seed: int) -> None:
    tasks = PhotoTasks(argparse.Namespace(data=options.data, work=options.work / "photos", **LIKE_PHOTOS))
    for name in TASKS:
        key = {"task": name, "kind": "PACS, EfficientNet-Lite0", "same": name in SAME_DOMAIN, "seed": seed}
        if not results.find(key, LIKE_PHOTOS):
            task = tasks.task(name, seed)
            _show(results.add(key, LIKE_PHOTOS, figures(task.source, task.target)))


def _digits(options: argparse.Namespace, results: Results, seed: int) -> None:
    for task in (*NO_SHIFT.values(), *DIGITS.values()):
        for augmented in (False, True):
            task = replace(task, source_augmented=augmented)
            kind = f"digits, source {'with' if augmented else 'without'} augmentation"
            for number in FIRST_DIGITS:
                key = {"task": task.name, "kind": kind, "same": task.name in NO_SHIFT, "seed": seed, "number": number}
                if not results.find(key, described(task)):
                    start = start_of(task, seed, options.data, options.work)
                    rows = np.random.default_rng(seed).permutation(len(start.target))[:number]
                    found = shift_of(start.source, start.target.read(np.sort(rows)).__getitem__, number)
                    whole = figures(start.source, start.target)
                    _show(results.add(key, described(task), {**whole, "images": number, "shift": found}))


def _show(row: Row) -> None:
    print(
        f"{row['kind']:40} {row['task']:24} {row['images']:5} accuracy {row['accuracy']:.3f} {row['shift']:.4f}",
        flush=True,
    )


def main(arguments: list[str] | None = None) -> None:
    parser = command_line("shift", __doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of PACS/ and of mnist_train.npz, …")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--out", type=Path, default=RESULTS / "shift.json")
    parser.add_argument("--work", type=Path, default=WORK, help="stores and source models")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results = Results(options.out)
    for seed in options.seeds:
        _photos(options, results, seed)
        _digits(options, results, seed)
    print(shifts({"rows": results.rows}))
