"""Figures about labels and predictions: with ground truth (diagnostics only) and without (what a run may act on).

Scores that judge a run without labels stand in `LABEL_FREE`. Public as `ray_adaplr.scores`. By one of them `stop =
"auto"` sees that refinement has stalled, and which epoch was best. It may fall for a while in which the labels still
get better, so it ends nothing while labels still change; what that costs and gains is in benchmarks/results/scores.md.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ray_adaplr.core.signs import BINS

# Score -> whether more is better. What each is worth was measured: benchmarks/results/scores.md.
LABEL_FREE = {
    "agreement": True,
    "entropy": False,
    "diversity": True,
    "infomax": True,
    "bnm": True,
    "corr_c": True,
    "hcs": True,
    "reassigned": False,
    "class_shift": False,
    "min_class_share": True,
}
DEFAULT_SCORE = "infomax"
PATIENCE = 4  # epochs
LEAST_GAIN = 0.002  # of the score's range, log C
SETTLED = 0.005  # share of labels that may still change


def share_different(labels: Tensor, others: Tensor) -> float:
    """Share of labels that are not the same in both: noise against ground truth, change against earlier labels."""
    return (labels != others).float().mean().item()


def class_accuracy(predicted: Tensor, truth: Tensor, num_classes: int) -> list[float | None]:
    """Accuracy within each true class; None for a class that has no sample."""
    totals = torch.bincount(truth, minlength=num_classes)
    right = torch.bincount(truth[predicted == truth], minlength=num_classes)
    return [(r / t).item() if t else None for r, t in zip(right.float(), totals)]


def probability_columns(probs: Tensor, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Columns of a table, `p_CLASS` with float16 [n] for each class, from probabilities [n, C]."""
    return {f"p_{name}": column for name, column in zip(names, probs.half().T.contiguous().numpy(), strict=True)}


def class_shares(labels: Tensor, num_classes: int) -> Tensor:
    """Share of each class among the labels, [C]."""
    return torch.bincount(labels, minlength=num_classes).float() / len(labels)


def entropy(probs: Tensor) -> float:
    """Mean entropy of the predictions, in nats; low means sure."""
    return torch.special.entr(probs).sum(1).mean().item()


def diversity(probs: Tensor) -> float:
    """Entropy of the mean prediction, in nats; low means that classes die out."""
    return torch.special.entr(probs.mean(0)).sum().item()


def infomax(probs: Tensor) -> float:
    """Mutual information of image and prediction, diversity less entropy; high means sure and spread. The default."""
    return diversity(probs) - entropy(probs)


def bnm(probs: Tensor) -> float:
    """BNM (Cui et al. 2020): nuclear norm of the predictions as a share of the largest possible.

    1 when all predictions are sure and spread evenly over the classes.
    """
    singular = torch.linalg.eigvalsh((probs.T @ probs).double()).clamp_min(0).sqrt()
    return (singular.sum() / (len(probs) * min(probs.shape)) ** 0.5).item()


def corr_c(probs: Tensor) -> float:
    """Corr-C (Tu et al. 2023): cosine between the predictions' class correlation P'P and the identity; 1 as for BNM."""
    gram = probs.T @ probs
    return (gram.trace() / (gram.norm() * len(gram) ** 0.5).clamp_min(1e-12)).item()


def agreement(votes: dict[int, Tensor], probs: Tensor) -> float:
    """Mean share of samples on which a member's own prediction (int [n]) is the averaged consensus."""
    consensus = probs.argmax(1)
    return sum((vote == consensus).float().mean().item() for vote in votes.values()) / len(votes)


def confidence_histogram(confidence: Tensor) -> list[int]:
    """Counts of confidences in `BINS` equal bins of [0, 1]."""
    return torch.histc(confidence.float(), BINS, 0.0, 1.0).int().tolist()


def label_free(probs: Tensor) -> dict[str, float]:
    """The scores that need the predictions alone, float32 [n, C]."""
    sure, spread = entropy(probs), diversity(probs)
    return {"entropy": sure, "diversity": spread, "infomax": spread - sure, "bnm": bnm(probs), "corr_c": corr_c(probs)}


def class_shift(labels: Tensor, first_shares: Tensor) -> float:
    """Distance of the labels' class histogram from an earlier one [C]: the share of samples that would have to move."""
    return 0.5 * (class_shares(labels, len(first_shares)) - first_shares).abs().sum().item()


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
