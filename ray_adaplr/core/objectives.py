"""What a learner minimises: losses, the residual labels of negative learning (paper, section 3.3), and objectives.

Residual labels are drawn without state from (seed, epoch, sample), so every member computes its own share of the same
draw and nothing has to be sent. The objective of a stage takes an epoch's order and the device and returns the loss of
a batch: labels are put in order and sent to the device once, so a training step copies images only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ray_adaplr.core import draws
from ray_adaplr.core.learner import MakeObjective, Objective

Residuals = Literal["drl", "srl"]


@dataclass(frozen=True)
class ResidualDraw:
    """How a run draws residual labels; the same for all its members and epochs.

    `drl` cuts one draw of n_e * n_rl distinct classes into the members' disjoint shares (DRL); `srl` gives every
    member the same n_rl classes (SRL). With n_e = 1 both are the paper's plain RL.
    """

    num_classes: int
    n_rl: int  # residual labels per member
    n_e: int = 1
    mode: Residuals = "drl"
    seed: int = 0

    def __post_init__(self) -> None:
        needed = self.n_rl * (self.n_e if self.mode == "drl" else 1)
        if needed > self.num_classes - 1:
            left = self.num_classes - 1
            raise ValueError(f"n_e={self.n_e}, n_rl={self.n_rl} needs more classes than the {left} that are left")


def residual_labels(labels: np.ndarray, samples: np.ndarray, draw: ResidualDraw, member: int, epoch: int) -> np.ndarray:
    """Classes that a member is to unlearn for each sample, int64 [n, n_rl]; uniform over those that are not its label.

    The labels are the current pseudo-labels, int [n]. Sample numbers in the target set, int [n], fix the classes
    together with the draw's seed and the epoch.
    """
    first = member * draw.n_rl if draw.mode == "drl" else 0
    num_others = draw.num_classes - 1
    # Order the other C-1 classes by random keys. The class number sits in the low bits of its key: keys are distinct,
    # so the order is the same on every machine, and one vectorised sort gives classes without an argsort.
    class_bits = max(1, (num_others - 1).bit_length())
    keys = draws.random_bits(draws.key(draw.seed, "residual", epoch), samples, num_others)
    keys &= np.uint32(0xFFFFFFFF << class_bits & 0xFFFFFFFF)
    keys |= np.arange(num_others, dtype=np.uint32)
    keys.sort(axis=1)
    others = (keys[:, first : first + draw.n_rl] & np.uint32((1 << class_bits) - 1)).astype(np.int64)
    return others + (others >= labels[:, None])  # skip the pseudo-label


def log_one_minus_softmax(logits: Tensor, classes: Tensor) -> Tensor:
    """log(1 - p_c) for the given classes [n, k], float32 (or float64) [n, k], in O(n * (num_classes + k)).

    Only a row's top class can have p_c > 1/2, where 1 - p_c cancels; it is taken out of the log-sum-exp instead,
    once per row. Every other class has log1p(-p_c), which is exact. So the gradient stays useful at p_c -> 1, where
    log(1 - softmax) gives -inf and NaN. Logits [n, num_classes] in half precision are raised to float32.
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    with torch.autocast(logits.device.type, enabled=False):
        log_total = logits.logsumexp(1, keepdim=True)  # [n, 1]
        top = logits.detach().argmax(1, keepdim=True)  # [n, 1]
        log_one_minus_top = logits.scatter(1, top, float("-inf")).logsumexp(1, keepdim=True) - log_total
        is_top = classes == top  # [n, k]
        # Masked before log1p: its gradient at p_c = 1 is infinite, and `where` would make NaN of it.
        at_most_half = (logits.gather(1, classes) - log_total).masked_fill(is_top, float("-inf")).exp()
        return torch.where(is_top, log_one_minus_top, torch.log1p(-at_most_half))


def negative_loss(logits: Tensor, residuals: Tensor) -> Tensor:
    """NEL: mean over samples and their residual labels [n, n_rl] of -log(1 - p_c). With one residual label it is NL."""
    return -log_one_minus_softmax(logits, residuals).mean()


def positive_loss(logits: Tensor, labels: Tensor, weights: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
    """Cross entropy (PL) to labels [n] or soft labels [n, C]; weights per sample are normalised to mean one."""
    losses = F.cross_entropy(logits.float(), labels, reduction="none", label_smoothing=smoothing)
    return losses.mean() if weights is None else (losses * weights).sum() / weights.sum().clamp_min(1e-6)


def diversity_loss(logits: Tensor, shares: Tensor | None = None) -> Tensor:
    """Sum of m log m for the batch-mean prediction m: lowest when the batch is spread over all classes.

    With expected class `shares`, [C], it is the sum of m log(m / share), lowest when the batch has them. A guard
    against class extinction: a class that dies in the labels stays alive in the members.
    """
    mean = logits.float().softmax(1).mean(0)
    log_mean = mean.clamp_min(1e-8).log()
    return (mean * (log_mean if shares is None else log_mean - shares.log())).sum()


@dataclass(frozen=True)
class MemberObjective:
    """A member's loss in refinement: NEL on its residual labels (or PL), plus the diversity guard."""

    draw: ResidualDraw | None  # None trains on the labels themselves (PL)
    member: int = 0
    diversity: float = 0.0

    def of_epoch(self, epoch: int, labels: np.ndarray) -> MakeObjective:
        """The objective for one epoch's pseudo-labels, int [N_t]."""

        def make(order: np.ndarray, device: torch.device) -> Objective:
            targets = labels[order]
            base_loss: Callable[[Tensor, Tensor], Tensor] = positive_loss
            if self.draw is not None:
                targets, base_loss = residual_labels(targets, order, self.draw, self.member, epoch), negative_loss
            on_device = torch.from_numpy(targets.astype(np.int64)).to(device)

            def loss(logits: Tensor, rows: slice) -> Tensor:
                value = base_loss(logits, on_device[rows])
                return value + self.diversity * diversity_loss(logits) if self.diversity else value

            return loss

        return make


def supervised(labels: np.ndarray, weights: np.ndarray | None = None, smoothing: float = 0.0) -> MakeObjective:
    """Cross entropy on labels, int [N], or soft ones, float [N, C]; `weights` float [N] say how much samples count."""

    def make(order: np.ndarray, device: torch.device) -> Objective:
        targets = targets_of(labels, order).to(device)
        shares = None if weights is None else torch.from_numpy(weights[order].astype(np.float32)).to(device)

        def loss(logits: Tensor, rows: slice) -> Tensor:
            return positive_loss(logits, targets[rows], None if shares is None else shares[rows], smoothing)

        return loss

    return make


def targets_of(labels: np.ndarray, samples: np.ndarray) -> Tensor:
    """Labels [N] or soft labels [N, C] of some samples, as cross entropy takes them."""
    return torch.from_numpy(labels[samples].astype(np.int64 if labels.ndim == 1 else np.float32))


def unsureness(logits: Tensor, shares: Tensor | None = None) -> Tensor:
    """Mean entropy minus the entropy of the mean: the mutual information of images and classes, negative.

    With expected class `shares`, [C], the second part is how far the mean is from them.
    """
    log_probs = logits.log_softmax(1)
    return -(log_probs.exp() * log_probs).sum(1).mean() + diversity_loss(logits, shares)


def information_maximisation_and_vote(
    labels: Tensor | None, weight: float, shares: Tensor | None = None
) -> MakeObjective:
    """Information maximisation plus `weight` times the cross entropy to soft labels [N, C], by sample number.

    Without labels it is information maximisation alone; `shares`, [C], are expected of the classes, else equal ones.
    """

    def make(order: np.ndarray, device: torch.device) -> Objective:
        targets = None if labels is None else labels[torch.from_numpy(order)].to(device)
        expected = None if shares is None else shares.to(device)

        def loss(logits: Tensor, rows: slice) -> Tensor:
            unsure = unsureness(logits, expected)
            if targets is None:
                return unsure
            return unsure - weight * (targets[rows] * logits.log_softmax(1)).sum(1).mean()

        return loss

    return make


information_maximisation = information_maximisation_and_vote(None, 0.0)
"""Sure about each sample, spread over all classes: mean entropy minus the entropy of the mean (SHOT-IM)."""
