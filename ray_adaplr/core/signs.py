"""Label-free signs that a refinement goes wrong.

The thresholds are those that told harmed runs from good ones on digits: a class that dies out was seen in every run of
theirs whose noise rose by more than .02; agreement with the labels says nothing (.99 in both). Where each alarm fires
rightly and wrongly is counted in benchmarks/results/alarms.md.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

BINS = 20  # of confidence, in metrics.jsonl and in the figures; here, since `report` does without torch
QUIET_GAMMA = 0.05
AGREEMENT_FALL = 0.10  # members of one start drift apart by .06 to .09 on 150 photographs whose labels get better
HARDLY_SURE = 0.1  # share of sure labels below which there is too little to judge the rest by
MOST = 0.5
AT_ONCE = 0.4  # share of labels that change in one epoch: of 72 recorded runs, all above were harmed, some below gained
FEW_CLASSES = 0.6  # of the classes that the labels filled before; two classes at 4 : 96 are 0.6 of two at 50 : 50
ONE_CLASS = 0.1  # between one class (0) and all of them alike (1): nearly every label is the same


@dataclass(frozen=True)
class LabelChange:
    """What refinement did to the labels, as far as the signs need to know."""

    before: Sequence[float]  # class shares of the labels that the source model gave, [C]
    after: Sequence[float]  # class shares of the refined labels, [C]
    sure: float  # share of labels with high confidence
    sure_changed: float  # of those, the share that is not what the source model gave
    images: int


def label_change(before: np.ndarray, after: np.ndarray, sure: np.ndarray, num_classes: int) -> LabelChange:
    """The change from labels `before` to labels `after`, int [n], of which `sure`, bool [n], have high confidence."""
    first, refined = (np.bincount(labels, minlength=num_classes) / len(labels) for labels in (before, after))
    sure_changed = float((before != after)[sure].mean()) if sure.any() else 0.0
    return LabelChange(first.tolist(), refined.tolist(), float(sure.mean()), sure_changed, len(after))


def class_collapse(shares: Sequence[float], first_shares: Sequence[float], floor: float) -> list[int]:
    """Classes whose share of the labels fell below `floor` times their first share or times 1/C, whichever is less.

    The lesser of the two, so that a class which the source model predicts too often may shrink to its size, and one
    that is truly rare from the start raises no alarm.
    """
    uniform = 1 / len(shares)
    return [c for c, (now, first) in enumerate(zip(shares, first_shares)) if now < floor * min(first, uniform)]


def effective_classes(shares: Sequence[float]) -> float:
    """How many classes of equal size would be as mixed as these, from 1 to C: the exponential of their entropy."""
    return math.exp(-sum(share * math.log(share) for share in shares if share > 0))


def warnings(
    epochs: Sequence[Mapping[str, Any]], labels: LabelChange | None = None, names: Sequence[str] = ()
) -> list[str]:
    """Plain sentences about a run, none when all is well: from metrics.jsonl and its labels, once written."""
    lines = [line for line in epochs if line.get("stage", "refine") == "refine"]
    dying = sorted({c for line in lines for c in line.get("collapsed") or []})
    found = []
    if dying:
        first = next(line["epoch"] for line in lines if line.get("collapsed"))
        found.append(
            f"{_classes(dying, names)} dying out in the labels (first in epoch {first + 1}): harm, unless such images "
            "are rare. Look at the changed labels before you use them."
        )
    found += _harm_in_labels(labels, dying, names) if labels else _harm_so_far(lines)
    return [*found, *_harm_in_epochs(lines)]


def _harm_in_labels(labels: LabelChange, dying: list[int], names: Sequence[str]) -> Iterator[str]:
    """Signs in the labels as they were written in the end."""
    gone = [c for c, (before, after) in enumerate(zip(labels.before, labels.after)) if before > 0 and after == 0]
    if set(gone) - set(dying):
        yield f"{_classes(gone, names)} in the first labels and no image has that label now: right if there is none."
    fell = effective_classes(labels.after) < FEW_CLASSES * effective_classes(labels.before)
    if fell or _are_few(labels.after, labels.images):
        now = "have collapsed into few classes"
        if not fell and _are_few(labels.before, labels.images):
            now = "are of few classes, as they were from the start"
        used, largest = sum(share > 0 for share in labels.after), max(labels.after)
        yield (
            f"The labels {now}: {used} of {len(labels.after)} are used, and the largest holds {largest:.0%} of the "
            "images. Right only if the images are like that."
        )
    if labels.sure < HARDLY_SURE:
        yield _hardly_sure(labels.sure)
    if labels.sure_changed > MOST:
        yield (
            f"{labels.sure_changed:.0%} of the sure labels are not what the source model said: either it was mostly "
            "wrong, or the classes were swapped. Look at the changed images."
        )


def _are_few(shares: Sequence[float], images: int) -> bool:
    """Whether labels are of far fewer classes than they could be, which is at most one per image."""
    possible = min(len(shares), images)
    used, mixed = sum(share > 0 for share in shares), effective_classes(shares)
    return possible > 1 and (used <= possible / 2 or mixed < 1 + ONE_CLASS * (possible - 1))


def _harm_so_far(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The same signs, as far as the epochs show them while the labels are not written."""
    smallest = _values(lines, "min_class_share")
    if smallest and smallest[0] > 0 and smallest[-1] == 0:
        yield "A class has vanished from the labels."
    mixed = _values(lines, "effective_classes")
    if mixed and mixed[-1] < FEW_CLASSES * mixed[0]:
        yield f"The labels are collapsing into few classes: as mixed as {mixed[-1]:.1f} now, {mixed[0]:.1f} at first."
    sure = _values(lines, "hcs")
    if sure and sure[-1] < HARDLY_SURE:
        yield _hardly_sure(sure[-1])


def _harm_in_epochs(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    gammas, reassigned = _values(lines, "gamma"), _values(lines, "reassigned")
    agreements = _values([line for line in lines if line.get("members", 2) > 1], "agreement")
    if agreements and agreements[-1] < max(agreements) - AGREEMENT_FALL:
        yield f"The members' agreement fell from {max(agreements):.2f} to {agreements[-1]:.2f}."
    if len(gammas) >= 10 and max(gammas) < QUIET_GAMMA:
        yield f"Gamma never rose above {max(gammas):.2f}: hardly any label could change. Use more epochs."
    if reassigned and max(reassigned) > AT_ONCE:
        yield f"{max(reassigned):.0%} of the labels changed at once, in a single epoch."
    if len(reassigned) >= 10 and sum(reassigned[-3:]) / 3 > max(0.02, 0.5 * max(reassigned)):
        yield f"Labels do not settle: {reassigned[-1]:.1%} still changed in the last epoch."


def _hardly_sure(share: float) -> str:
    return f"Hardly any label is sure ({share:.1%}): there is too little to judge the others by."


def _classes(numbers: Sequence[int], names: Sequence[str]) -> str:
    """The beginning of a sentence about classes in the past."""
    shown = ", ".join(names[c] if c < len(names) else str(c) for c in numbers)
    return f"Class {shown} was" if len(numbers) == 1 else f"Classes {shown} were"


def _values(lines: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [line[key] for line in lines if isinstance(line.get(key), int | float)]
