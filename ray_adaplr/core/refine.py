"""The refinement of pseudo-labels at the end of an epoch (paper, section 3.2, equations 6 to 8).

Order: push the ensemble's logits, average the last N_a epochs, softmax, confidence of the *current* label, gamma,
reassign. The guards against class extinction (prior correction, a gamma for each class) are functions of the same
kind; with them off, this is the paper's rule to the letter.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor


class LogitHistory:
    """The ensemble logits of the last n_a epochs, [n_a, N_t, C]: a ring of slots, stored small, summed in float32.

    A slot in float16 halves the 1.6 GB that DomainNet's float32 history would take twice. With `zero_fill` the
    average divides by n_a from the first epoch on, as if the empty slots held zeros; else by the filled ones.
    """

    def __init__(
        self, num_samples: int, num_classes: int, n_a: int, dtype: torch.dtype = torch.float16, zero_fill: bool = False
    ) -> None:
        self.slots = torch.zeros(n_a, num_samples, num_classes, dtype=dtype)
        self.pushed = 0
        self.zero_fill = zero_fill

    def push(self, logits: Tensor) -> int:
        """Put an epoch's ensemble logits [n, C] over the oldest slot; returns the slot that was written."""
        slot = self.pushed % len(self.slots)
        largest = torch.finfo(self.slots.dtype).max  # 65504 in float16; infinities would average to NaN
        self.slots[slot].copy_(logits).clamp_(-largest, largest)
        self.pushed += 1
        return slot

    @property
    def filled(self) -> int:
        """How many slots hold an epoch."""
        return min(self.pushed, len(self.slots))

    def average(self) -> Tensor:
        """Moving-average logits, float32 [n, C]: slot by slot, and in blocks of rows that stay in the cache."""
        total = torch.zeros(self.slots.shape[1:], dtype=torch.float32)
        for block in self._blocks():
            for slot in self.slots[: self.filled]:
                total[block] += slot[block]
        return total.div_(len(self.slots) if self.zero_fill else max(self.filled, 1))

    def probabilities(self) -> Tensor:
        """Softmax of the moving average, float32 [n, C] (equation 6)."""
        probs = self.average()
        for block in self._blocks():  # in place: a second float32 copy would be a fifth of the whole history
            probs[block] = probs[block].softmax(1)
        return probs

    def _blocks(self) -> list[slice]:
        """Slices of rows, about a megabyte of float32 each."""
        _, samples, classes = self.slots.shape
        rows = max(1, 2**18 // classes)
        return [slice(start, start + rows) for start in range(0, samples, rows)]


@dataclass
class RefineState:
    """Where a refinement stands between two epochs."""

    epoch: int  # the next epoch to train
    labels: Tensor  # int64 [n]
    last_changed: Tensor  # int32 [n], -1 = never
    history: LogitHistory
    healthy_labels: Tensor  # of the last epoch that showed no sign of harm, int64 [n]
    judged: list[dict[str, Any]] = field(default_factory=list)  # figures of each epoch that `stop = "auto"` goes by
    unwritten: list[dict[str, Any]] = field(default_factory=list)  # lines that metrics.jsonl does not hold yet
    guarded: bool = False  # signs of harm have switched the guards on
    stopped: str = ""  # why refinement ended before its last epoch, in words
    stopped_by: Literal["", "harm", "score"] = ""  # and what ended it
    best_labels: Tensor | None = None  # of the best epoch by a label-free score, int64 [n], where one is kept
    best_confidence: Tensor | None = None  # theirs, float32 [n]
    best_probabilities: Tensor | None = None  # of all classes, float16 [n, C], where they are asked for


def confidence_of(labels: Tensor, probs: Tensor) -> Tensor:
    """Probability of each sample's current label, [n]."""
    return probs.gather(1, labels[:, None]).squeeze(1)


def high_confidence(confidence: Tensor, alpha: float) -> Tensor:
    """Which samples are HCS: confidence above alpha, bool [n]."""
    return confidence > alpha


def gamma_of(confidence: Tensor, alpha: float) -> float:
    """Gamma: the share of samples above alpha (equation 7)."""
    return high_confidence(confidence, alpha).float().mean().item()


def class_gammas(confidence: Tensor, labels: Tensor, alpha: float, num_classes: int) -> Tensor:
    """Guard: gamma within each class of the current labels, [C]; 0 for an empty class.

    A global gamma opens when the easy classes are sure, and a class that is rare in the labels, unsure everywhere,
    is then reassigned away within a few epochs.
    """
    sure = torch.bincount(labels[high_confidence(confidence, alpha)], minlength=num_classes).float()
    return sure / torch.bincount(labels, minlength=num_classes).clamp_min(1)


def correct_prior(probs: Tensor, prior: Tensor, strength: float) -> Tensor:
    """Guard: pull the mean prediction towards a class prior, p * (prior / mean(p))^strength, renormalised, [n, C].

    The prior's shares [C] sum to one; strength 0 leaves probs [n, C] as they are, 1 corrects fully.
    """
    if strength == 0:
        return probs
    corrected = probs * (prior / probs.mean(0).clamp_min(1e-8)).pow(strength)
    total = corrected.sum(1, keepdim=True)
    nothing_left = total[:, 0] <= 0  # a prior of zero can leave a sure sample nothing: it keeps its own prediction
    corrected.div_(total)[nothing_left] = probs[nothing_left]
    return corrected


def reassign(labels: Tensor, probs: Tensor, confidence: Tensor, gamma: float | Tensor) -> Tensor:
    """New pseudo-labels: argmax where the current label's confidence is below gamma, else unchanged (equation 8).

    Labels and their confidence are [n], probabilities [n, C]. Gamma is one threshold, or one for each class of the
    current labels, [C]; 0 reassigns nothing.
    """
    threshold = gamma[labels] if isinstance(gamma, Tensor) else gamma
    return torch.where(confidence < threshold, probs.argmax(1), labels)


def ensemble_logits(member_logits: list[np.ndarray], weights: list[float] | None = None) -> Tensor:
    """Weighted sum of the members' logits divided by their number, float32 [n, C] (equation 6's inner sum).

    Added in the members' order, so the bits do not depend on who answered first.
    """
    weights = weights or [1.0] * len(member_logits)
    total = np.zeros(member_logits[0].shape, np.float32)
    for weight, logits in zip(weights, member_logits, strict=True):
        total += logits if weight == 1 else np.float32(weight) * logits
    total /= len(member_logits)
    return torch.from_numpy(total)
