"""What a run came to, in figures and in words: the head of its page and its column in a comparison."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ray_adaplr.errors import counted
from ray_adaplr.report.chart import plain
from ray_adaplr.storage.run_reader import RunFolder, is_number


def percent(value: float) -> str:
    """A share as people read it."""
    return f"{value:.1%}"


def duration(seconds: float) -> str:
    """A time as people read it."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


# The figures in their order, and how each is written; those with a star need ground truth.
FORMATS: dict[str, Callable[[float], str]] = {
    "Images": plain,
    "Epochs": plain,
    "Labels changed": percent,
    "High confidence": percent,
    "Gamma": lambda gamma: f"{gamma:.3f}",
    "Smallest class": percent,
    "Noise before *": percent,
    "Noise after *": percent,
    "Noise, sure ones *": percent,
    "Accuracy, inferred *": percent,
    "Accuracy, refined *": percent,
    "Accuracy, target model *": percent,
    "Time": duration,
    "Images per second": plain,
    "Seed": plain,
}
# Tiles at the head of the page, what belongs together in one, diagnostics last.
TILES = {
    name: [name] for name in ("Images", "Epochs", "Labels changed", "High confidence", "Smallest class", "Time")
} | {
    "Noise *": ["Noise before *", "Noise after *"],
    "Noise, sure ones *": ["Noise, sure ones *"],
    "Label accuracy *": ["Accuracy, inferred *", "Accuracy, refined *"],
    "Target accuracy *": ["Accuracy, target model *"],
}


@dataclass(frozen=True)
class Verdict:
    """The first lines of a report."""

    changes: str
    trust: str
    noise: str  # a diagnostic; empty where the truth is not known


def outcome(run: RunFolder) -> dict[str, float]:
    """The figures that are known, by their names in `FORMATS`."""
    summary = run.summary
    known: dict[str, Any] = {
        "Images": len(run.labels) if run.labels is not None else summary.get("num_images"),
        "Epochs": len(run.refine) or None,
        "Labels changed": _changed_share(run),
        "High confidence": summary.get("hcs_share", run.last("hcs")),
        "Gamma": run.last("gamma"),
        "Smallest class": _smallest_class(run),
        "Noise before *": summary.get("noise_before"),
        "Noise after *": summary.get("noise_after", run.last("noise")),
        "Noise, sure ones *": summary.get("hcs_noise", run.last("hcs_noise")),
        "Accuracy, inferred *": summary.get("inferred"),
        "Accuracy, refined *": summary.get("refined"),
        "Accuracy, target model *": summary.get("target"),
        "Time": _total_seconds(run),
        "Images per second": run.last("images_per_s"),
        "Seed": summary.get("seed", run.settings.get("seed")),
    }
    return {name: value for name, value in known.items() if is_number(value)}


def verdict(run: RunFolder, figures: dict[str, float]) -> Verdict:
    """What changed and whether to trust it; "no sign of harm" only where there was something to judge and to read."""
    if "Labels changed" in figures:
        changes = f"{figures['Labels changed']:.0%} of {figures.get('Images', 0):,.0f} labels changed"
        if "High confidence" in figures:
            changes += f"; {figures['High confidence']:.0%} are held with confidence above {run.alpha:g}"
        changes += "."
    elif run.refine:
        epochs = counted(len(run.refine), "epoch")
        changes = f"{epochs} so far; {figures.get('High confidence', 0):.0%} of the labels are sure."
    else:
        changes = "Nothing to judge yet: no epoch has ended."
    if run.warnings:
        trust = "Look before you trust it: see the warnings."
    elif run.unread:
        trust = "Not all of it could be read."
    elif not run.refine:
        trust = ""
    else:
        trust = "No sign of harm." if run.finished else "No sign of harm so far."
    before, after = figures.get("Noise before *"), figures.get("Noise after *")
    noise = ""
    if before is not None and after is not None:
        way = "Noise fell" if after < before else "But noise did not fall:"
        noise = f"{way} from {before:.1%} to {after:.1%}"
    return Verdict(changes, trust, noise)


def tiles(figures: dict[str, float]) -> list[dict[str, Any]]:
    """The outcome for the head of the page."""
    boxes = []
    for name, parts in TILES.items():
        texts = [FORMATS[part](figures[part]) for part in parts if part in figures]
        if texts:
            boxes.append({"name": name, "texts": texts, "diagnostic": name.endswith("*")})
    return boxes


def as_text(value: Any) -> str:
    """A setting's value or a figure without a format of its own."""
    if is_number(value):
        return plain(value)
    return "–" if value is None else str(value)


def _changed_share(run: RunFolder) -> Any:
    if run.labels is not None and len(run.labels):
        return float(np.mean(run.labels["initial_label"].to_numpy() != run.labels["refined_label"].to_numpy()))
    return run.summary.get("changed_share")


def _smallest_class(run: RunFolder) -> float | None:
    """The least frequent class's share of the refined labels, or of those of the last epoch."""
    if run.labels is not None and len(run.labels):
        counts = np.bincount(run.labels["refined_label"].to_numpy(), minlength=len(run.classes))
        return float(counts.min() / len(run.labels))
    return run.last("min_class_share")


def _total_seconds(run: RunFolder) -> float | None:
    """How long the run took, or has taken so far."""
    seconds = run.summary.get("seconds")
    if isinstance(seconds, dict):
        return sum(value for value in seconds.values() if is_number(value))
    spent = [line["seconds"] for line in run.refine + run.distill if is_number(line.get("seconds"))]
    return sum(spent) if spent else None
