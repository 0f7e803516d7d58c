"""When refinement has stalled, and which epoch was best: judged by a label-free score, for `stop = "auto"`.

On 48 good and bad digit runs of 10 epochs (benchmarks/results/scores.json) the best epoch by this score had .025 less
noise than the last one on average and .010 more at worst; a patience of 4 epochs lost nothing against it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ray_adaplr.core.scores import DEFAULT_SCORE

PATIENCE = 4  # epochs
LEAST_GAIN = 0.002  # of the score's range, log C


def best_epoch(epochs: Sequence[Mapping[str, Any]], warmup: int) -> int:
    """Number of the epoch with the best score, of those after the warm-up (of all, where there are none)."""
    judged = [line for line in epochs if line["epoch"] >= warmup] or epochs
    return max(judged, key=lambda line: line[DEFAULT_SCORE])["epoch"]


def stalled(epochs: Sequence[Mapping[str, Any]], warmup: int, num_classes: int) -> str:
    """Why refinement should end now, in words; empty while the score still rises."""
    scores = [line[DEFAULT_SCORE] for line in epochs if line["epoch"] >= warmup]
    if len(scores) <= PATIENCE:
        return ""
    gain = max(scores) - max(scores[:-PATIENCE])
    if gain >= LEAST_GAIN * math.log(num_classes):
        return ""
    return f"{DEFAULT_SCORE} rose by {gain:.4f} only in the last {PATIENCE} epochs"
