"""Draws are pure functions of (seed, purpose, counters, sample): uniform, and nobody else's business."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_adaplr.core import draws

QUICK = settings(max_examples=40)
STREAM = draws.key(0, "test", 3)


def assert_uniform(counts: np.ndarray) -> None:
    """Chi-square against equal counts, at most five deviations above its mean: one false alarm in 10^5 or fewer."""
    expected = counts.sum() / counts.size
    chi_square = ((counts - expected) ** 2 / expected).sum()
    freedom = counts.size - 1
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom), (
        f"chi-square {chi_square:.1f} at {freedom} degrees of freedom"
    )


def test_the_same_words_give_the_same_bits_on_every_machine() -> None:
    # Golden values: a change here changes every run ever made.
    assert int(draws.key(0, "order", 0)) == 14268844861902671836
    assert draws.random_bits(STREAM, np.array([0, 1, 10**12]), 2).tolist() == [
        [2839684566, 575614909],
        [1023641222, 2825269165],
        [534548762, 268113781],
    ]


@QUICK
@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=600), st.randoms(use_true_random=False), st.integers(1, 5))
def test_a_samples_draw_depends_on_no_other_sample(samples: list[int], random, width: int) -> None:
    together = draws.random_bits(STREAM, np.array(samples), width)
    shuffled = random.sample(range(len(samples)), len(samples))
    again = draws.random_bits(STREAM, np.array(samples)[shuffled], width)
    np.testing.assert_array_equal(again, together[shuffled])
    one = random.randrange(len(samples))
    np.testing.assert_array_equal(draws.random_bits(STREAM, np.array(samples[one : one + 1]), width)[0], together[one])


@pytest.mark.parametrize("kind", [np.int16, np.int32, np.int64, np.uint64])
def test_the_type_of_the_sample_numbers_does_not_matter(kind: type) -> None:
    samples = np.arange(300)
    np.testing.assert_array_equal(
        draws.random_bits(STREAM, samples.astype(kind), 3), draws.random_bits(STREAM, samples, 3)
    )


def test_a_wider_draw_begins_with_the_narrower_one() -> None:
    samples = np.arange(700)
    np.testing.assert_array_equal(draws.uniforms(STREAM, samples, 9)[:, :4], draws.uniforms(STREAM, samples, 4))


def test_no_draw_and_no_columns_are_fine() -> None:
    assert draws.uniforms(STREAM, np.array([], np.int64), 4).shape == (0, 4)
    assert draws.uniforms(STREAM, np.arange(3), 0).shape == (3, 0)


@pytest.mark.parametrize(
    "other",
    [draws.key(1, "a", 2), draws.key(0, "b", 2), draws.key(0, "a", 3), draws.key(0, "a"), draws.key(0, "a", 2, 0)],
    ids=["seed", "purpose", "counter", "fewer counters", "more counters"],
)
def test_another_seed_purpose_or_counter_shares_no_draws(other: np.uint64) -> None:
    samples = np.arange(2000)
    mine, theirs = (draws.random_bits(stream, samples, 4) for stream in (draws.key(0, "a", 2), other))
    assert len(np.intersect1d(mine, theirs)) < 100  # 64 million pairs of 32 bits: 0.015 are expected to agree
    assert abs(np.corrcoef(mine.ravel(), theirs.ravel())[0, 1]) < 5 / np.sqrt(mine.size)


@pytest.mark.parametrize("width", [1, 7])
def test_uniforms_are_uniform_in_every_column_and_stay_below_one(width: int) -> None:
    values = draws.uniforms(STREAM, np.arange(20_000), width)
    assert values.dtype == np.float32
    assert values.min() >= 0
    assert values.max() < 1
    for column in values.T:
        assert_uniform(np.histogram(column, 64, (0, 1))[0])


def test_the_largest_bits_do_not_round_up_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "random_bits", lambda *_: np.full((1, 1), 0xFFFFFFFF, np.uint32))
    assert draws.uniforms(STREAM, np.arange(1), 1)[0, 0] < 1


def joint_counts(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Counts of the pairs' cells on a 16 x 16 grid."""
    return np.bincount((a >> np.uint32(28)).astype(np.int64) * 16 + (b >> np.uint32(28)), minlength=256)


def test_neighbouring_columns_samples_and_epochs_are_independent() -> None:
    samples = np.arange(40_000)
    now, next_epoch = (draws.random_bits(draws.key(0, "x", epoch), samples, 2) for epoch in (0, 1))
    assert_uniform(joint_counts(now[:, 0], now[:, 1]))
    assert_uniform(joint_counts(now[:-1, 0], now[1:, 0]))
    assert_uniform(joint_counts(now[:, 0], next_epoch[:, 0]))


def test_each_of_the_32_bits_is_a_fair_coin() -> None:
    bits = draws.random_bits(STREAM, np.arange(20_000), 1)
    ones = ((bits >> np.arange(32, dtype=np.uint32)) & np.uint32(1)).sum(0).astype(int)
    assert np.abs(ones - 10_000).max() < 5 * np.sqrt(20_000) / 2


@QUICK
@given(st.integers(0, 400), st.integers(0, 2**63))
def test_a_permutation_holds_every_number_once(n: int, seed: int) -> None:
    order = draws.permutation(draws.key(seed, "order", 0), n)
    np.testing.assert_array_equal(np.sort(order), np.arange(n))


def test_permutations_of_epochs_differ_and_every_place_is_equally_likely() -> None:
    orders = np.array([draws.permutation(draws.key(0, "order", epoch), 8) for epoch in range(4000)])
    assert len({tuple(order) for order in orders}) > 3000  # of 40,320 possible ones
    for place in range(8):
        assert_uniform(np.bincount(orders[:, place], minlength=8))


def test_a_torch_seed_fits_a_signed_64_bit_integer() -> None:
    assert draws.torch_seed(np.uint64(2**64 - 1)) == 2**63 - 1
