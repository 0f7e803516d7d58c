"""When refinement has stalled, and which epoch was best: judged by a label-free score, for `stop = "auto"`.

The score may fall for a while in which the labels still get better, so labels that still change go on. What the rule
costs and gains against all epochs, on good and bad digit runs, is in benchmarks/results/scores.md.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ray_adaplr.core.scores import DEFAULT_SCORE

PATIENCE = 4  # epochs
LEAST_GAIN = 0.002  # of the score's range, log C
SETTLED = 0.005  # share of labels that may still change


def best_epoch(epochs: Sequence[Mapping[str, Any]], warmup: int) -> int:
    """Number of the epoch with the best score, of those after the warm-up (of all, where there are none)."""
    judged = [line for line in epochs if line["epoch"] >= warmup] or epochs
    return max(judged, key=lambda line: line[DEFAULT_SCORE])["epoch"]


def stalled(epochs: Sequence[Mapping[str, Any]], warmup: int, num_classes: int) -> str:
    """Why refinement should end now, in words; empty while the score still rises or labels still change."""
    scores = [line[DEFAULT_SCORE] for line in epochs if line["epoch"] >= warmup]
    if len(scores) <= PATIENCE:
        return ""
    gain, changed = max(scores) - max(scores[:-PATIENCE]), epochs[-1]["reassigned"]
    if gain >= LEAST_GAIN * math.log(num_classes) or changed > SETTLED:
        return ""
    return f"{DEFAULT_SCORE} rose by {gain:.4f} only in the last {PATIENCE} epochs, and {changed:.1%} of labels changed"
