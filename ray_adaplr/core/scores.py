"""Figures about labels and predictions: with ground truth (diagnostics only) and without (what a run may act on)."""

import torch
from torch import Tensor


def noise(labels: Tensor, truth: Tensor) -> float:
    """Share of wrong labels."""
    return (labels != truth).float().mean().item()


def class_accuracy(predicted: Tensor, truth: Tensor, num_classes: int) -> list[float | None]:
    """Accuracy within each true class; None for a class that has no sample."""
    totals = torch.bincount(truth, minlength=num_classes)
    right = torch.bincount(truth[predicted == truth], minlength=num_classes)
    return [(r / t).item() if t else None for r, t in zip(right.float(), totals)]


def class_shares(labels: Tensor, num_classes: int) -> Tensor:
    """Share of each class among the labels, [C]."""
    return torch.bincount(labels, minlength=num_classes).float() / len(labels)


def entropy(probs: Tensor) -> float:
    """Mean entropy of the predictions, in nats; low means sure."""
    return -(probs * probs.clamp_min(1e-8).log()).sum(1).mean().item()


def diversity(probs: Tensor) -> float:
    """Entropy of the mean prediction, in nats; low means that classes die out."""
    mean = probs.mean(0)
    return -(mean * mean.clamp_min(1e-8).log()).sum().item()


def agreement(votes: dict[int, Tensor], probs: Tensor) -> float:
    """Mean share of samples on which a member's own prediction (int [n]) is the averaged consensus."""
    consensus = probs.argmax(1)
    return sum((vote == consensus).float().mean().item() for vote in votes.values()) / len(votes)


def confidence_histogram(confidence: Tensor, bins: int = 20) -> list[int]:
    """Counts of confidences in equal bins of [0, 1]."""
    return torch.histc(confidence.float(), bins, 0.0, 1.0).int().tolist()
