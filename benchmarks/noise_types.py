"""Which noise does negative learning see through? The study of the paper's appendix, on MNIST.

    python -m benchmarks noise_types --data DIR [--images 3000] [--epochs 20] [--seeds 0]

Labels with the same amount of noise but three kinds of it are refined from the same source model, by classic negative
learning and by negative ensemble learning with reassignment. All go through the refine stage with given labels. A
killed benchmark continues where it stopped. Ground truth makes the noise and the figures; no method sees it.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import ROOT, digits_command_line
from benchmarks.harness import Results, Row
from benchmarks.noise_types_table import AMOUNT, BINS, KINDS, METHODS, plot, write_table
from benchmarks.rivals import first_use
from benchmarks.tasks import TASKS, Start, described, short_hash, start_of
from ray_adaplr.cli.options import parse_setting
from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.predict import predict_logits
from ray_adaplr.engine.checkpoint import Checkpoints
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.stages.refine import new_state
from ray_adaplr.storage.run import Run

PAIRS = {2: 7, 3: 8, 7: 1, 5: 6, 6: 5}  # Patrini et al. 2017

UNGUARDED: dict[str, Any] = {"prior": "off", "diversity": 0.0, "on_harm": "off"}
CHANGES: dict[str, dict[str, Any]] = {  # by method to the robust preset
    "classic_nl": {**UNGUARDED, "n_e": 1, "n_rl": 1, "warmup": 10**6},  # one member that never reassigns
    "nel": {**UNGUARDED, "warmup": 0},  # the paper's rule
    "adaplr": {},
}
LONGER = {"classic_nl": 3}  # times the epochs: one member then takes as many steps, and seconds, as three


def symmetric(truth: np.ndarray, logits: np.ndarray, wrong: int, rng: np.random.Generator) -> np.ndarray:
    """Any other class, with equal probability."""
    labels, rows = truth.copy(), rng.choice(len(truth), wrong, replace=False)
    labels[rows] = (truth[rows] + rng.integers(1, logits.shape[1], wrong)) % logits.shape[1]
    return labels


def asymmetric(truth: np.ndarray, logits: np.ndarray, wrong: int, rng: np.random.Generator) -> np.ndarray:
    """The look-alike of `PAIRS`. They hold half of MNIST, so two of three of their images get a wrong label."""
    labels, rows = truth.copy(), rng.choice(np.flatnonzero(np.isin(truth, list(PAIRS))), wrong, replace=False)
    labels[rows] = [PAIRS[label] for label in truth[rows].tolist()]
    return labels


def shift(truth: np.ndarray, logits: np.ndarray, wrong: int, rng: np.random.Generator) -> np.ndarray:
    """A source model's labels, with as few changes as bring them to the amount.

    Too many wrong: that many of them, drawn evenly, are corrected, so that the rest keeps its distribution. Too few:
    the right ones with the smallest lead over the second choice get that second choice.
    """
    labels = logits.argmax(1)
    mistaken = np.flatnonzero(labels != truth)
    surplus = len(mistaken) - wrong
    if surplus >= 0:
        rows = rng.choice(mistaken, surplus, replace=False)
        labels[rows] = truth[rows]
    else:
        second, first = np.sort(logits, 1)[:, -2:].T
        lead = np.where(labels == truth, first - second, np.inf)
        rows = np.argsort(lead, kind="stable")[:-surplus]
        labels[rows] = np.argsort(logits[rows], 1)[:, -2]
    return labels


MAKERS: dict[str, Callable[..., np.ndarray]] = {"symmetric": symmetric, "asymmetric": asymmetric, "shift": shift}


def auroc(score: np.ndarray, positive: np.ndarray) -> float:
    """Probability that a positive scores higher than a negative; ties count half."""
    _, where, counts = np.unique(score, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[where]
    hits, misses = positive.sum(), (~positive).sum()
    return float((ranks[positive].sum() - hits * (hits + 1) / 2) / (hits * misses))


def separation(confidence: np.ndarray, noisy: np.ndarray, alpha: float) -> Row:
    """How well low confidence (float [n]) tells the noisy labels (bool [n])."""
    parts = {"clean": confidence[~noisy], "noisy": confidence[noisy]}
    return {
        "auroc": auroc(-confidence, noisy),
        **{f"{name}_mean": float(part.mean()) for name, part in parts.items()},
        **{f"{name}_above_half": float((part > 0.5).mean()) for name, part in parts.items()},
        **{f"{name}_above_alpha": float((part > alpha).mean()) for name, part in parts.items()},
        **{f"{name}_histogram": np.histogram(part, BINS, (0, 1))[0].tolist() for name, part in parts.items()},
    }


def confusion(truth: np.ndarray, labels: np.ndarray) -> list[list[int]]:
    """Images by true class (row) and label (column)."""
    return np.bincount(truth * 10 + labels, minlength=100).reshape(10, 10).tolist()


class Study:
    """All kinds and methods for one seed.

    Args:
        options: the command line's.
        seed: of source model, noise and method.
        results: where rows go.
    """

    def __init__(self, options: argparse.Namespace, seed: int, results: Results) -> None:
        self.options, self.seed, self.results = options, seed, results
        self.task = replace(TASKS[options.task], target_limit=options.images)
        self._start: Start | None = None

    @property
    def start(self) -> Start:
        """Source model and stores; made only when something has to run."""
        if self._start is None:
            self._start = start_of(self.task, self.seed, self.options.data, self.options.work)
            first_use(self._start.source, self._start.target)
        return self._start

    def run(self, kind: str, method: str) -> None:
        """Refine one kind of noise by one method, unless its row is there."""
        epochs = self.options.epochs * LONGER.get(method, 1)
        changes = {"warm_start": "off", "epochs": epochs, **CHANGES[method], "seed": self.seed}
        config = Config.load("robust", changes={**changes, **dict(map(parse_setting, self.options.set))})
        key = {"kind": kind, "method": method, "seed": self.seed}
        settings = {"task": described(self.task), "amount": AMOUNT}
        settings |= {"config": config.model_dump(mode="json", exclude={"seed"})}
        if self.results.find(key, settings) and not self.options.again:
            return
        source, store = self.start.source, self.start.target
        truth = np.asarray(store.ground_truth())
        logits = predict_logits(source, store.read, np.arange(len(store)), "cpu")
        given = MAKERS[kind](truth, logits, round(AMOUNT * len(store)), np.random.default_rng(self.seed))
        out = str(self.options.work / "runs" / f"noise-{short_hash([key, settings])}")
        cpu = time.process_time()
        adapt(
            RunPlan([source], store, out, config, ScalingConfig(engine="local"), given=given),
            until="refine",
            force=True,
        )
        cpu = time.process_time() - cpu
        # The last checkpoint holds the averaged vote, which the run's own files show at the refined label only.
        run = Run(out)
        state = Checkpoints(run.folder / "checkpoints").restore(new_state(given, 10, config))
        assert state is not None
        probs, refined = state.history.probabilities().numpy(), state.labels.numpy()
        rows = np.arange(len(truth))
        before, after = given != truth, refined != truth
        sure = probs[rows, refined] > config.alpha
        row = self.results.add(
            key,
            settings,
            {
                "source_noise": float((logits.argmax(1) != truth).mean()),
                "noise_before": float(before.mean()),
                "noise_after": float(after.mean()),
                "hcs_share": float(sure.mean()),
                "hcs_noise": float(after[sure].mean()) if sure.any() else None,
                "gamma": [round(line["gamma"], 4) for line in run.read_metrics()],
                "cpu_seconds": cpu,
                "given": separation(probs[rows, given], before, config.alpha),
                "refined": separation(probs[rows, refined], after, config.alpha),
                "given_confusion": confusion(truth, given),
                "refined_confusion": confusion(truth, refined),
            },
        )
        print(
            f"{kind:10} {method:10} seed {self.seed}  noise {row['noise_before']:.4f} -> {row['noise_after']:.4f}  "
            f"AUROC {row['given']['auroc']:.3f}  noisy above .5 {row['given']['noisy_above_half']:.3f}  "
            f"HCS {row['hcs_share']:.3f} noise {row['hcs_noise']}  CPU {cpu:.0f} s",
            flush=True,
        )


def main(arguments: list[str] | None = None) -> None:
    parser = digits_command_line("noise_types", __doc__, seeds=[0])
    parser.add_argument("--task", choices=[name for name in TASKS if name.endswith("-mnist")], default="svhn-mnist")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--images", type=int, default=3000, help="target images")
    parser.add_argument("--epochs", type=int, default=20, help="of refinement")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change all methods")
    parser.add_argument("--plot", type=Path, default=ROOT / "docs/images/noise_types.png")
    parser.add_argument("--again", action="store_true", help="run again what has been run")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)
    results = Results(options.out)
    for seed in options.seeds:
        study = Study(options, seed, results)
        for kind in KINDS:
            for method in options.methods:
                study.run(kind, method)
    rows = Results(options.out).rows
    if {(row["kind"], row["method"]) for row in rows} >= {(kind, method) for kind in KINDS for method in METHODS}:
        write_table(rows, options.out.with_suffix(".md"))
        plot(rows, options.plot)
        print(options.out.with_suffix(".md").read_text())
