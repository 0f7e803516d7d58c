"""The noise study: noise of an exact amount and the right kind, and the detector's score."""

import numpy as np
import pytest

from benchmarks.noise_types import MAKERS, PAIRS, auroc, confusion, separation, shift

rng = np.random.default_rng(0)
TRUTH = rng.integers(0, 10, 1000)
LOGITS = rng.normal(size=(1000, 10)) + 2.5 * np.eye(10)[TRUTH]  # about a quarter wrong


@pytest.mark.parametrize("kind", list(MAKERS))
def test_every_kind_has_the_exact_amount(kind: str) -> None:
    labels = MAKERS[kind](TRUTH, LOGITS, 330, np.random.default_rng(1))
    assert (labels != TRUTH).sum() == 330
    assert set(labels.tolist()) <= set(range(10))


def test_asymmetric_noise_goes_to_the_look_alike_only() -> None:
    labels = MAKERS["asymmetric"](TRUTH, LOGITS, 330, np.random.default_rng(1))
    wrong = labels != TRUTH
    assert all(PAIRS[old] == new for old, new in zip(TRUTH[wrong].tolist(), labels[wrong].tolist()))


@pytest.mark.parametrize("wrong", [100, 450])
def test_shift_noise_changes_as_few_of_the_models_labels_as_it_can(wrong: int) -> None:
    own = LOGITS.argmax(1)
    labels = shift(TRUTH, LOGITS, wrong, np.random.default_rng(1))
    assert (labels != TRUTH).sum() == wrong
    assert (labels != own).sum() == abs((own != TRUTH).sum() - wrong)


def test_auroc_is_the_probability_of_the_right_order() -> None:
    score, positive = rng.integers(0, 5, 60), rng.random(60) < 0.4
    pairs = score[positive][:, None] - score[~positive][None]
    assert auroc(score, positive) == pytest.approx(((pairs > 0) + 0.5 * (pairs == 0)).mean())


def test_low_confidence_that_marks_all_noise_separates_fully() -> None:
    noisy = np.array([True, True, False, False])
    found = separation(np.array([0.1, 0.2, 0.6, 0.95]), noisy, 0.9)
    assert found["auroc"] == 1
    assert (found["noisy_above_half"], found["clean_above_alpha"]) == (0, 0.5)
    assert sum(found["clean_histogram"]) == 2


def test_the_confusion_matrix_has_true_classes_in_its_rows() -> None:
    assert confusion(np.array([2, 2]), np.array([7, 2]))[2][7] == 1
