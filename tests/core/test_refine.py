"""The refinement rule, step by step, against loops that say the same thing the slow way."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ray_adaplr.core.refine import (
    LogitHistory,
    class_gammas,
    confidence_of,
    correct_prior,
    ensemble_logits,
    gamma_of,
    high_confidence,
    reassign,
)

QUICK = settings(max_examples=40)


@st.composite
def predictions(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Probabilities [n, C] from unsure to very sure, and current labels [n]."""
    n, c = draw(st.integers(1, 40)), draw(st.integers(2, 7))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    sharpness = draw(st.sampled_from([0.1, 1.0, 4.0, 20.0]))
    probs = (torch.randn(n, c, generator=generator) * sharpness).softmax(1)
    return probs, torch.randint(0, c, (n,), generator=generator)


@QUICK
@given(
    n_a=st.integers(1, 4),
    epochs=st.integers(0, 9),
    zero_fill=st.booleans(),
    dtype=st.sampled_from([torch.float16, torch.float32]),
    seed=st.integers(0, 99),
)
def test_the_history_averages_the_last_epochs(
    n_a: int, epochs: int, zero_fill: bool, dtype: torch.dtype, seed: int
) -> None:
    history = LogitHistory(5, 3, n_a, dtype, zero_fill)
    generator = torch.Generator().manual_seed(seed)
    pushed = [torch.randn(5, 3, generator=generator) * 10 for _ in range(epochs)]
    slots = [history.push(logits) for logits in pushed]
    last = [logits.to(dtype).float() for logits in pushed[-n_a:]]
    divisor = n_a if zero_fill else max(len(last), 1)
    expected = sum(last, torch.zeros(5, 3)) / divisor
    assert slots == [epoch % n_a for epoch in range(epochs)]
    assert (history.pushed, history.filled) == (epochs, min(epochs, n_a))
    assert history.average().dtype == torch.float32
    torch.testing.assert_close(history.average(), expected, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(history.probabilities(), expected.softmax(1), rtol=1e-5, atol=1e-6)


def test_half_precision_slots_are_summed_in_float32() -> None:
    history = LogitHistory(1, 2, 3, torch.float16)
    for first in (2048.0, 1.0, 1.0):  # in float16, 2048 + 1 is 2048
        history.push(torch.tensor([[first, 0.0]]))
    assert history.slots.dtype == torch.float16
    assert history.average()[0, 0].item() == np.float32(2050 / 3)


def test_logits_beyond_half_precision_do_not_break_the_average() -> None:
    history = LogitHistory(1, 2, 2, torch.float16)
    history.push(torch.tensor([[1e5, -1e5]]))
    history.push(torch.tensor([[-1e5, 1e5]]))
    torch.testing.assert_close(history.probabilities(), torch.tensor([[0.5, 0.5]]))


def test_the_history_keeps_its_own_copy_of_what_is_pushed() -> None:
    history, logits = LogitHistory(1, 2, 2), torch.tensor([[1.0, 2.0]])
    history.push(logits)
    logits.zero_()
    assert history.average().tolist() == [[1.0, 2.0]]


def test_an_empty_history_knows_nothing() -> None:
    torch.testing.assert_close(LogitHistory(2, 4, 3).probabilities(), torch.full((2, 4), 0.25))


def test_filling_with_zeros_keeps_the_first_epochs_unsure() -> None:
    sure = torch.tensor([[6.0, 0.0]])
    plain, zero_filled = LogitHistory(1, 2, 10), LogitHistory(1, 2, 10, zero_fill=True)
    plain.push(sure)
    zero_filled.push(sure)
    assert plain.probabilities()[0, 0] > 0.99
    assert zero_filled.probabilities()[0, 0] < 0.65


@QUICK
@given(predictions(), st.floats(0.05, 0.95))
def test_confidence_gamma_and_high_confidence_agree_with_a_loop(case: tuple[Tensor, Tensor], alpha: float) -> None:
    probs, labels = case
    confidence = confidence_of(labels, probs)
    naive = [probs[i, labels[i]].item() for i in range(len(labels))]
    assert confidence.tolist() == naive
    sure = [c > np.float32(alpha) for c in naive]
    assert high_confidence(confidence, alpha).tolist() == sure
    assert gamma_of(confidence, alpha) == pytest.approx(sum(sure) / len(sure), abs=1e-6)


def test_a_confidence_of_exactly_alpha_is_not_high() -> None:
    assert high_confidence(torch.tensor([0.5, 0.5001]), 0.5).tolist() == [False, True]


@QUICK
@given(predictions(), st.floats(0.05, 0.95))
def test_class_gammas_are_the_gamma_within_each_class(case: tuple[Tensor, Tensor], alpha: float) -> None:
    probs, labels = case
    confidence = confidence_of(labels, probs)
    gammas = class_gammas(confidence, labels, alpha, probs.shape[1])
    for c in range(probs.shape[1]):
        own = confidence[labels == c]
        assert gammas[c].item() == pytest.approx(gamma_of(own, alpha) if len(own) else 0.0, abs=1e-6)


@QUICK
@given(predictions(), st.floats(0, 1))
def test_a_label_becomes_the_argmax_exactly_where_its_confidence_is_below_gamma(
    case: tuple[Tensor, Tensor], gamma: float
) -> None:
    probs, labels = case
    confidence = confidence_of(labels, probs)
    new = reassign(labels, probs, confidence, gamma)
    for i, label in enumerate(labels):
        expected = probs[i].argmax() if confidence[i] < np.float32(gamma) else label
        assert new[i] == expected


@QUICK
@given(predictions(), st.integers(0, 2**32))
def test_with_a_gamma_for_each_class_a_label_is_judged_by_its_own_class(case: tuple[Tensor, Tensor], seed: int) -> None:
    probs, labels = case
    gammas = torch.rand(probs.shape[1], generator=torch.Generator().manual_seed(seed))
    confidence = confidence_of(labels, probs)
    new = reassign(labels, probs, confidence, gammas)
    for i, label in enumerate(labels):
        assert new[i] == (probs[i].argmax() if confidence[i] < gammas[label] else label)


@QUICK
@given(predictions())
def test_gamma_zero_changes_no_label(case: tuple[Tensor, Tensor]) -> None:
    probs, labels = case
    confidence = confidence_of(labels, probs)
    assert torch.equal(reassign(labels, probs, confidence, 0.0), labels)
    assert torch.equal(reassign(labels, probs, confidence, torch.zeros(probs.shape[1])), labels)


@QUICK
@given(predictions(), st.floats(0, 1))
def test_reassignment_leaves_its_inputs_alone_and_never_lowers_a_probability(
    case: tuple[Tensor, Tensor], gamma: float
) -> None:
    probs, labels = case
    before, confidence = labels.clone(), confidence_of(labels, probs)
    new = reassign(labels, probs, confidence, gamma)
    assert torch.equal(labels, before)
    assert (confidence_of(new, probs) >= confidence).all()


def test_the_argmax_may_come_from_corrected_probabilities_while_the_confidence_does_not() -> None:
    labels, raw = torch.tensor([0]), torch.tensor([[0.5, 0.3, 0.2]])
    corrected = torch.tensor([[0.2, 0.3, 0.5]])
    assert reassign(labels, corrected, confidence_of(labels, raw), 0.6).tolist() == [2]
    assert reassign(labels, corrected, confidence_of(labels, raw), 0.4).tolist() == [0]


@QUICK
@given(predictions())
def test_a_prior_correction_of_strength_zero_is_the_identity(case: tuple[Tensor, Tensor]) -> None:
    probs, _ = case
    prior = torch.full((probs.shape[1],), 1 / probs.shape[1])
    assert torch.equal(correct_prior(probs, prior, 0.0), probs)


@QUICK
@given(st.integers(0, 500), st.integers(2, 6), st.sampled_from([0.5, 1.0]))
def test_a_prior_correction_brings_the_mean_prediction_closer_to_the_prior(seed: int, c: int, strength: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    tilt = torch.linspace(0, 2, c)  # a class that is predicted too seldom, one too often
    probs = (torch.randn(200, c, generator=generator) + tilt).softmax(1)
    prior = torch.full((c,), 1 / c)
    corrected = correct_prior(probs, prior, strength)
    torch.testing.assert_close(corrected.sum(1), torch.ones(200))
    assert (corrected.mean(0) - prior).abs().sum() < (probs.mean(0) - prior).abs().sum()


def test_a_prior_that_the_predictions_already_have_changes_nothing() -> None:
    probs = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)).softmax(1)
    torch.testing.assert_close(correct_prior(probs, probs.mean(0), 1.0), probs)


def test_a_prior_correction_follows_its_formula() -> None:
    probs, prior = torch.tensor([[0.8, 0.2], [0.6, 0.4]]), torch.tensor([0.5, 0.5])
    first = 0.8 * (0.5 / 0.7) ** 0.5, 0.2 * (0.5 / 0.3) ** 0.5
    corrected = correct_prior(probs, prior, 0.5)
    assert corrected[0].tolist() == pytest.approx([x / sum(first) for x in first], rel=1e-5)


def test_a_class_that_nobody_predicts_does_not_break_the_prior_correction() -> None:
    corrected = correct_prior(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0.5, 0.5]), 1.0)
    assert corrected.tolist() == [[1.0, 0.0], [1.0, 0.0]]


def test_a_prior_of_zero_does_not_break_a_sure_sample() -> None:
    corrected = correct_prior(torch.eye(2), torch.tensor([0.0, 1.0]), 1.0)
    assert corrected.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_the_ensemble_is_the_weighted_sum_over_the_number_of_members() -> None:
    rng = np.random.default_rng(0)
    members = [rng.normal(size=(6, 3)).astype(np.float32) for _ in range(3)]
    torch.testing.assert_close(ensemble_logits(members), torch.from_numpy(np.mean(members, 0)))
    expected = (members[0] + 0.5 * members[1] + 2 * members[2]) / 3
    torch.testing.assert_close(ensemble_logits(members, [1, 0.5, 2]), torch.from_numpy(expected))
    assert torch.equal(ensemble_logits(members, [1, 1, 1]), ensemble_logits(members))


def test_the_ensemble_adds_in_the_members_order() -> None:
    # In float32, (1e8 + 1) - 1e8 is 0 while (1e8 - 1e8) + 1 is 1: the order is part of the bits.
    big, one, minus = (np.array([[x]], np.float32) for x in (1e8, 1, -1e8))
    assert ensemble_logits([big, one, minus]).item() == 0
    assert ensemble_logits([big, minus, one]).item() == np.float32(1 / 3)


def test_the_ensemble_leaves_the_members_logits_as_they_are() -> None:
    members = [np.ones((2, 2), np.float32), np.ones((2, 2), np.float32)]
    ensemble_logits(members, [3.0, 1.0])
    assert all((logits == 1).all() for logits in members)


def test_a_weight_for_each_member_is_needed() -> None:
    with pytest.raises(ValueError, match="zip"):
        ensemble_logits([np.ones((1, 2), np.float32)] * 2, [1.0])
