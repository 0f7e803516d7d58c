"""Rivals on your own images: SHOT, AaD and AdaPLR from the same source model, side by side.

    python -m benchmarks compare --source MODEL --target STORE [--methods shot aad adaplr] [--json FILE]

MODEL is whatever `adapt --source` takes, STORE a store or images. No method sees a label; where the store has ground
truth, the table has the accuracy on it, beside the label-free scores of each adapted model and the CPU seconds that it
took. AdaPLR runs with its defaults, or as `--set key=value` says. SHOT and AaD train as `rivals.py` has it: on digits
and the like for 30 epochs without augmentation; on photographs (a large network, as AdaPLR judges it) for 15 epochs
with crops, flips, and the optimiser and rate of AdaPLR's warm start.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import command_line
from benchmarks.harness import StageClock
from benchmarks.photos import SHOT_EPOCHS, shot_training
from benchmarks.provenance import environment
from benchmarks.rivals import aad, first_use, shot
from ray_adaplr.cli.options import parse_setting
from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.predict import predict_logits
from ray_adaplr.core.scores import label_free
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError
from ray_adaplr.integrations.sources import open_model
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.stages.evaluate import fitted, images_for
from ray_adaplr.stages.plan import followed

METHODS = ("shot", "aad", "adaplr")
EPOCHS = 30  # of the rivals, on anything but photographs
Row = dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """What all methods get."""

    source: Classifier
    store: ImageStore
    config: Config  # AdaPLR's
    epochs: int | None  # of the rivals; None: as their authors have it

    def row(self, method: str) -> Row:
        """A method's figures; `source` is the model as it is."""
        model, seconds = self.source, 0.0
        if method == "adaplr":
            model, seconds = self.adaplr()
        elif method != "source":
            started = time.process_time()
            model = self.rival(method)
            seconds = time.process_time() - started
        logits = torch.from_numpy(predict_logits(model, self.store.read, np.arange(len(self.store)), "cpu"))
        truth = self.store.ground_truth()
        accuracy = None if truth is None else float((logits.argmax(1).numpy() == truth).mean())
        return {"method": method, "accuracy": accuracy, **label_free(logits.softmax(1)), "cpu_seconds": seconds}

    def rival(self, method: str) -> Classifier:
        """The model that SHOT or AaD makes of the source."""
        photographs = followed(self.config, self.source, self.store).defaults == "photographs"
        epochs = self.epochs or (SHOT_EPOCHS if photographs else EPOCHS)
        given = (self.source, self.store, self.config.seed, epochs, "cpu")
        training = shot_training(self.config.seed, epochs) if photographs else None
        if method == "aad":
            return aad(*given, training=training)[0]
        return shot(*given, beta=0.3 if photographs else 0.1, training=training)[0]

    def adaplr(self) -> tuple[Classifier, float]:
        """The target model, and the CPU seconds of all stages."""
        clock = StageClock()
        with tempfile.TemporaryDirectory() as made:
            scaling = ScalingConfig(engine="local", checkpoint_every=0)
            result = adapt(RunPlan([self.source], self.store, f"{made}/run", self.config, scaling), progress=clock)
            return result.classifier, sum(clock.cpu.values())


def table(rows: list[Row]) -> str:
    """Markdown, a line per method."""
    names = list(rows[0])
    lines = [f"| {' | '.join(names)} |", f"| {' | '.join('---' for _ in names)} |"]
    for row in rows:
        cells = [_text(name, row[name]) for name in names]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _text(name: str, value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or "–"
    return f"{value:.2f}" if name == "cpu_seconds" else f"{value:.3f}"


def compare(options: argparse.Namespace) -> list[Row]:
    """Run the methods; a line is printed as soon as its method is done."""
    config = Config.load("robust", changes={**dict(map(parse_setting, options.set)), "seed": options.seed})
    model = open_model(options.source)
    with images_for([model], options.target) as store:
        comparison = Comparison(fitted(model, store), store, config, options.epochs)
        first_use(comparison.source, store)
        rows = []
        for method in ["source", *options.methods]:
            rows.append(comparison.row(method))
            print(f"{method} done: {rows[-1]['cpu_seconds']:.1f} s of CPU", file=sys.stderr, flush=True)
    if options.json:
        content = {"source": str(options.source), "target": options.target, "images": len(store), "seed": options.seed}
        content |= {"settings": config.model_dump(), "environment": environment(), "rows": rows}
        Path(options.json).write_text(json.dumps(content, indent=1) + "\n")
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = command_line("compare", __doc__)
    parser.add_argument("--source", required=True, metavar="MODEL", help="the source model of all methods")
    parser.add_argument("--target", required=True, metavar="STORE", help="a store, or images")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, help="of SHOT and AaD; default: 30, on photographs 15")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of AdaPLR's")
    parser.add_argument("--json", metavar="FILE", help="also write the figures, and what made them")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        print(table(compare(options)))
    except InputError as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    return 0
