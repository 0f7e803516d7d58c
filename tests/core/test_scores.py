"""Figures about labels and predictions, on cases whose answer is known."""

import math

import pytest
import torch

from ray_adaplr.core import scores


def test_noise_is_the_share_of_wrong_labels() -> None:
    truth = torch.tensor([0, 1, 2, 2])
    assert scores.noise(torch.tensor([0, 1, 2, 0]), truth) == 0.25
    assert scores.noise(truth, truth) == 0


def test_class_accuracy_is_per_true_class_and_none_without_samples() -> None:
    truth, predicted = torch.tensor([0, 0, 1, 1, 1, 1]), torch.tensor([0, 1, 1, 1, 1, 3])
    assert scores.class_accuracy(predicted, truth, 4) == [0.5, 0.75, None, None]


def test_class_shares_count_every_class_even_absent_ones() -> None:
    assert scores.class_shares(torch.tensor([0, 0, 2, 2]), 4).tolist() == [0.5, 0, 0.5, 0]


@pytest.mark.parametrize(
    ("probs", "entropy", "diversity"),
    [
        (torch.full((3, 4), 0.25), math.log(4), math.log(4)),  # unsure of everything
        (torch.eye(4), 0, math.log(4)),  # sure, and spread over all classes
        (torch.eye(4)[:1].repeat(5, 1), 0, 0),  # sure of one class for all
    ],
)
def test_entropy_says_how_sure_and_diversity_how_spread(probs: torch.Tensor, entropy: float, diversity: float) -> None:
    assert scores.entropy(probs) == pytest.approx(entropy, abs=1e-5)
    assert scores.diversity(probs) == pytest.approx(diversity, abs=1e-5)


def test_agreement_is_the_members_mean_share_of_the_consensus() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])  # consensus 0 1 0 1
    votes = {0: torch.tensor([0, 1, 0, 1]), 2: torch.tensor([0, 0, 1, 1])}
    assert scores.agreement(votes, probs) == 0.75
    assert scores.agreement({2: votes[2]}, probs) == 0.5


def test_the_confidence_histogram_counts_every_sample_once() -> None:
    confidence = torch.tensor([0.0, 0.01, 0.32, 0.97, 1.0])
    counts = scores.confidence_histogram(confidence)
    assert len(counts) == 20
    assert (counts[0], counts[6], counts[19]) == (2, 1, 2)
    assert sum(counts) == 5
    assert scores.confidence_histogram(confidence, bins=2) == [3, 2]
