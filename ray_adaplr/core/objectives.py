"""What a learner minimises in each stage. Each takes an epoch's order and the device and returns the batch loss.

Labels and residuals are put in the epoch's order and sent to the device once, so a training step copies images only.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ray_adaplr.core.learner import Objective
from ray_adaplr.core.negative import ResidualDraw, diversity_loss, negative_loss, positive_loss, residual_labels

MakeObjective = Callable[[np.ndarray, torch.device], Objective]


@dataclass(frozen=True)
class MemberObjective:
    """A member's loss in refinement: NEL on its residual labels (or PL), plus the diversity guard."""

    draw: ResidualDraw | None  # None trains on the labels themselves (PL)
    member: int = 0
    diversity: float = 0.0

    def of_epoch(self, epoch: int, labels: np.ndarray) -> MakeObjective:
        """The objective for one epoch's pseudo-labels, int [N_t]."""

        def make(order: np.ndarray, device: torch.device) -> Objective:
            ordered = labels[order]
            targets: np.ndarray = ordered
            base_loss: Callable[[Tensor, Tensor], Tensor] = positive_loss
            if self.draw is not None:
                targets, base_loss = residual_labels(ordered, order, self.draw, self.member, epoch), negative_loss
            on_device = torch.from_numpy(targets.astype(np.int64)).to(device)

            def loss(logits: Tensor, rows: slice) -> Tensor:
                value = base_loss(logits, on_device[rows])
                return value + self.diversity * diversity_loss(logits) if self.diversity else value

            return loss

        return make


def supervised(labels: np.ndarray, weights: np.ndarray | None = None, smoothing: float = 0.0) -> MakeObjective:
    """Cross entropy on given labels, int [N]; `weights` float [N] says how much each sample counts."""

    def make(order: np.ndarray, device: torch.device) -> Objective:
        targets = torch.from_numpy(labels[order].astype(np.int64)).to(device)
        shares = None if weights is None else torch.from_numpy(weights[order].astype(np.float32)).to(device)

        def loss(logits: Tensor, rows: slice) -> Tensor:
            return positive_loss(logits, targets[rows], None if shares is None else shares[rows], smoothing)

        return loss

    return make


def information_maximisation(order: np.ndarray, device: torch.device) -> Objective:
    """Sure about each sample, spread over all classes: mean entropy minus the entropy of the mean (SHOT-IM)."""
    return lambda logits, rows: unsureness(logits)


def unsureness(logits: Tensor) -> Tensor:
    """Mean entropy minus the entropy of the mean: the mutual information of images and classes, negative."""
    log_probs = logits.log_softmax(1)
    return -(log_probs.exp() * log_probs).sum(1).mean() + diversity_loss(logits)


def towards(labels: Tensor, weight: float) -> MakeObjective:
    """Information maximisation beside cross entropy, so much of it, to soft labels [N, C] of sample numbers."""

    def make(order: np.ndarray, device: torch.device) -> Objective:
        targets = labels[torch.from_numpy(order)].to(device)

        def loss(logits: Tensor, rows: slice) -> Tensor:
            return unsureness(logits) - weight * (targets[rows] * logits.log_softmax(1)).sum(1).mean()

        return loss

    return make
