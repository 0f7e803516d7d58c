"""Figures about labels and predictions, on cases whose answer is known."""

import math

import pytest
import torch

import ray_adaplr
from ray_adaplr.core import scores


def test_noise_is_the_share_of_wrong_labels() -> None:
    truth = torch.tensor([0, 1, 2, 2])
    assert scores.share_different(torch.tensor([0, 1, 2, 0]), truth) == 0.25
    assert scores.share_different(truth, truth) == 0


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


SURE_AND_SPREAD = torch.eye(4).repeat(50, 1)
UNSURE = torch.full((200, 4), 0.25)
COLLAPSED = torch.eye(4)[:1].repeat(200, 1)


@pytest.mark.parametrize("name", ["infomax", "bnm", "corr_c"])
def test_a_score_puts_sure_and_spread_predictions_above_unsure_and_collapsed_ones(name: str) -> None:
    best, unsure, collapsed = (scores.label_free(probs)[name] for probs in (SURE_AND_SPREAD, UNSURE, COLLAPSED))
    assert best > unsure + 0.4
    assert best > collapsed + 0.4
    assert best == pytest.approx(math.log(4) if name == "infomax" else 1, abs=1e-4)


@pytest.mark.parametrize("name", ["entropy", "diversity", "infomax", "bnm", "corr_c"])
def test_each_score_of_predictions_is_a_public_function_and_what_a_run_records(name: str) -> None:
    probs = torch.randn(40, 5, generator=torch.Generator().manual_seed(0)).softmax(1)
    assert getattr(ray_adaplr.scores, name)(probs) == scores.label_free(probs)[name]


def test_bnm_is_the_nuclear_norm_of_the_predictions() -> None:
    probs = torch.randn(30, 5, generator=torch.Generator().manual_seed(0)).softmax(1)
    norm = torch.linalg.matrix_norm(probs, "nuc") / (30 * 5) ** 0.5
    assert scores.bnm(probs) == pytest.approx(norm.item(), rel=1e-4)


def test_the_class_shift_is_the_share_of_samples_that_would_have_to_move() -> None:
    labels = torch.tensor([0, 0, 0, 1])
    assert scores.class_shift(labels, torch.tensor([0.5, 0.5])) == 0.25
    assert scores.class_shift(labels, torch.tensor([0.75, 0.25])) == 0
