"""Label-free signs that a refinement goes wrong.

The thresholds are those that told harmed runs from good ones on digits: a class that dies out was seen in every harmed
run; agreement with the labels says nothing (.99 in both).
"""

from collections.abc import Mapping, Sequence
from typing import Any

QUIET_GAMMA = 0.05
AGREEMENT_FALL = 0.05


def class_collapse(shares: Sequence[float], first_shares: Sequence[float], floor: float) -> list[int]:
    """Classes whose share of the labels fell below `floor` times their first share or times 1/C, whichever is less.

    The lesser of the two, so that a class which the source model predicts too often may shrink to its size, and one
    that is truly rare from the start raises no alarm.
    """
    uniform = 1 / len(shares)
    return [c for c, (now, first) in enumerate(zip(shares, first_shares)) if now < floor * min(first, uniform)]


def warnings(epochs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Plain sentences for a run's metrics so far (lines of metrics.jsonl, in order); none when all is well."""
    found = []
    gammas = [line["gamma"] for line in epochs if "gamma" in line]
    reassigned = [line["reassigned"] for line in epochs if "reassigned" in line]
    collapses = [line for line in epochs if line.get("collapsed")]
    if collapses:
        classes = sorted({c for line in collapses for c in line["collapsed"]})
        found.append(
            f"Classes {', '.join(map(str, classes))} were dying out in the labels (first in epoch "
            f"{collapses[0]['epoch']}): refinement was doing harm. Look at the changed labels before you use them."
        )
    agreements = [line["agreement"] for line in epochs if "agreement" in line]
    if agreements and agreements[-1] < max(agreements) - AGREEMENT_FALL:
        found.append(f"The members' agreement fell from {max(agreements):.2f} to {agreements[-1]:.2f}.")
    if len(gammas) >= 10 and max(gammas) < QUIET_GAMMA:
        found.append(f"Gamma never rose above {max(gammas):.2f}: hardly any label could change. Use more epochs.")
    if len(reassigned) >= 10 and sum(reassigned[-3:]) / 3 > max(0.02, 0.5 * max(reassigned)):
        found.append(f"Labels do not settle: {reassigned[-1]:.1%} still changed in the last epoch.")
    return found
