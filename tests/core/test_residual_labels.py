"""Residual labels keep their promises for any classes, members and seeds; the losses are exact and never break."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ray_adaplr.core.objectives import (
    ResidualDraw,
    diversity_loss,
    log_one_minus_softmax,
    negative_loss,
    positive_loss,
    residual_labels,
)

QUICK = settings(max_examples=40)


@st.composite
def draw_cases(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, dict]:
    """(labels, sample numbers, what draws them and the epoch), with n_e * n_rl <= C - 1."""
    num_classes = draw(st.integers(2, 40))
    n_e = draw(st.integers(1, num_classes - 1))
    n_rl = draw(st.integers(1, (num_classes - 1) // n_e))
    n = draw(st.integers(1, 30))
    labels = draw(st.lists(st.integers(0, num_classes - 1), min_size=n, max_size=n))
    samples = draw(st.lists(st.integers(0, 10**6), min_size=n, max_size=n, unique=True))
    seed, epoch = draw(st.integers(0, 2**63)), draw(st.integers(0, 1000))
    rest = dict(num_classes=num_classes, n_e=n_e, n_rl=n_rl, seed=seed, epoch=epoch)
    return np.array(labels), np.array(samples), rest


def residuals_of(labels: np.ndarray, samples: np.ndarray, member: int, mode: str, rest: dict) -> np.ndarray:
    draw = {name: value for name, value in rest.items() if name != "epoch"}
    return residual_labels(labels, samples, ResidualDraw(mode=mode, **draw), member, rest["epoch"])


def all_members(labels: np.ndarray, samples: np.ndarray, mode: str, rest: dict) -> np.ndarray:
    """Residual labels of all members, [n, n_e, n_rl]."""
    shares = [residuals_of(labels, samples, k, mode, rest) for k in range(rest["n_e"])]
    return np.stack(shares, axis=1)


@QUICK
@given(draw_cases(), st.sampled_from(["drl", "srl"]))
def test_residual_labels_are_distinct_classes_and_never_the_pseudo_label(case, mode: str) -> None:
    labels, samples, rest = case
    drawn = all_members(labels, samples, mode, rest)
    assert drawn.shape == (len(labels), rest["n_e"], rest["n_rl"])
    assert drawn.dtype == np.int64
    assert drawn.min() >= 0
    assert drawn.max() < rest["num_classes"]
    assert not (drawn == labels[:, None, None]).any()
    assert all(len(set(member)) == rest["n_rl"] for sample in drawn.tolist() for member in sample)


@QUICK
@given(draw_cases())
def test_residual_labels_of_two_members_never_meet_in_drl(case) -> None:
    drawn = all_members(*case[:2], "drl", case[2]).reshape(len(case[0]), -1)
    assert all(len(set(sample)) == len(sample) for sample in drawn.tolist())


@QUICK
@given(draw_cases())
def test_residual_labels_are_the_same_for_all_members_in_srl(case) -> None:
    drawn = all_members(*case[:2], "srl", case[2])
    np.testing.assert_array_equal(drawn, drawn[:, :1].repeat(case[2]["n_e"], 1))


@QUICK
@given(draw_cases())
def test_one_member_alone_draws_plain_residual_labels_in_either_mode(case) -> None:
    labels, samples, rest = case
    rest["n_e"] = 1
    drl, srl = (residuals_of(labels, samples, 0, mode, rest) for mode in ("drl", "srl"))
    np.testing.assert_array_equal(drl, srl)


@QUICK
@given(draw_cases(), st.randoms(use_true_random=False))
def test_a_samples_residual_labels_depend_on_no_other_sample(case, random) -> None:
    labels, samples, rest = case
    member = random.randrange(rest["n_e"])
    together = residuals_of(labels, samples, member, "drl", rest)
    part = random.sample(range(len(labels)), random.randint(1, len(labels)))
    alone = residuals_of(labels[part], samples[part], member, "drl", rest)
    np.testing.assert_array_equal(alone, together[part])


@pytest.mark.parametrize(("num_classes", "n_e"), [(10, 3), (7, 3), (7, 2), (13, 4), (2, 1), (345, 2)])
def test_residual_labels_of_all_members_cover_every_other_class_when_they_just_fit(num_classes: int, n_e: int) -> None:
    labels = np.arange(50) % num_classes
    rest = dict(num_classes=num_classes, n_e=n_e, n_rl=(num_classes - 1) // n_e, seed=1, epoch=0)
    drawn = all_members(labels, np.arange(50), "drl", rest)
    for label, shares in zip(labels, drawn):
        assert set(shares.ravel().tolist()) == set(range(num_classes)) - {label}


@pytest.mark.parametrize("label", [0, 3, 6])
@pytest.mark.parametrize("member", [0, 1, 2])
def test_residual_labels_are_uniform_over_the_allowed_pairs(label: int, member: int) -> None:
    n = 15_000
    draw = ResidualDraw(num_classes=7, n_rl=2, n_e=3, seed=5)
    drawn = residual_labels(np.full(n, label), np.arange(n), draw, member, epoch=2)
    pairs = np.bincount(drawn[:, 0] * 7 + drawn[:, 1], minlength=49)
    pairs = pairs[pairs > 0]
    assert len(pairs) == 6 * 5
    chi_square = ((pairs - n / 30) ** 2 / (n / 30)).sum()
    assert chi_square < 29 + 5 * np.sqrt(2 * 29)


def test_residual_labels_change_with_the_seed_and_the_epoch() -> None:
    def at(seed: int, epoch: int) -> np.ndarray:
        labels, samples = np.zeros(500, np.int64), np.arange(500)
        return residual_labels(labels, samples, ResidualDraw(num_classes=10, n_rl=1, seed=seed), 0, epoch)

    for other in (at(1, 0), at(0, 1)):
        same = (at(0, 0) == other).mean()
        assert abs(same - 1 / 9) < 5 * np.sqrt(1 / 9 * 8 / 9 / 500)  # as often as chance


@pytest.mark.parametrize(("n_e", "n_rl", "mode"), [(3, 4, "drl"), (10, 1, "drl"), (1, 10, "drl"), (3, 10, "srl")])
def test_more_residual_labels_than_classes_is_an_error(n_e: int, n_rl: int, mode: str) -> None:
    with pytest.raises(ValueError, match=f"n_e={n_e}, n_rl={n_rl} needs more classes than the 9"):
        ResidualDraw(num_classes=10, n_rl=n_rl, n_e=n_e, mode=mode)


def random_case(n: int = 12, c: int = 6, k: int = 3, spread: float = 3.0) -> tuple[Tensor, Tensor]:
    """Float64 logits [n, c] and distinct classes [n, k]."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(n, c, generator=generator, dtype=torch.float64) * spread
    return logits, torch.rand(n, c, generator=generator).argsort(1)[:, :k]


def reference(logits: Tensor, classes: Tensor) -> Tensor:
    """-log(1 - p) as the paper writes it; good enough in float64 while p is not near one."""
    return -torch.log(1 - logits.double().softmax(1).gather(1, classes))


def test_the_negative_loss_is_the_mean_of_minus_log_one_minus_p() -> None:
    logits, classes = random_case()
    torch.testing.assert_close(negative_loss(logits, classes), reference(logits, classes).mean())
    single = negative_loss(logits.float(), classes)
    torch.testing.assert_close(single.double(), reference(logits, classes).mean(), rtol=1e-5, atol=1e-6)


def test_with_one_residual_label_the_loss_is_classic_negative_learning() -> None:
    logits, classes = random_case(k=1)
    classic = F.nll_loss((1 - logits.softmax(1)).log(), classes[:, 0])
    torch.testing.assert_close(negative_loss(logits, classes), classic)


def test_with_two_classes_unlearning_one_is_learning_the_other() -> None:
    logits, classes = random_case(c=2, k=1)
    torch.testing.assert_close(negative_loss(logits, classes), F.cross_entropy(logits, 1 - classes[:, 0]))


@pytest.mark.parametrize("c", [2, 6])
def test_the_negative_losses_pass_the_gradient_check(c: int) -> None:
    logits, classes = random_case(n=4, c=c, k=min(3, c - 1))
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: log_one_minus_softmax(x, classes), (logits,))
    assert torch.autograd.gradcheck(lambda x: negative_loss(x, classes), (logits,))


@pytest.mark.parametrize("gap", [30.0, 1e3, 1e4])
def test_at_p_towards_one_the_loss_is_finite_and_pushes_the_class_down(gap: float) -> None:
    logits = torch.tensor([[gap, 0.0, 0.0, 0.0]], requires_grad=True)
    loss = negative_loss(logits, torch.tensor([[0]]))
    loss.backward()
    torch.testing.assert_close(loss.item(), gap - np.log(3), rtol=1e-6, atol=0)
    # The gradient keeps its full length where the naive form gives NaN: one down, a third up each.
    torch.testing.assert_close(logits.grad, torch.tensor([[1.0, -1 / 3, -1 / 3, -1 / 3]]))


def test_at_p_towards_zero_the_loss_and_its_gradient_are_zero() -> None:
    logits = torch.tensor([[1e4, 0.0, 0.0, 0.0]], requires_grad=True)
    loss = negative_loss(logits, torch.tensor([[1, 2, 3]]))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(logits.grad, torch.zeros(1, 4))


@QUICK
@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=8), st.data())
def test_the_negative_loss_is_never_negative_and_always_finite(values: list[float], data: st.DataObject) -> None:
    logits = torch.tensor([values], requires_grad=True)
    residual = torch.tensor([[data.draw(st.integers(0, len(values) - 1))]])
    loss = negative_loss(logits, residual)
    loss.backward()
    assert loss.isfinite()
    assert loss > -2e-3  # two log-sum-exps of size 1e4 differ by their rounding
    assert logits.grad.isfinite().all()
    assert logits.grad.abs().max() <= 1 + 1e-5


def whole_table(logits: Tensor, classes: Tensor) -> Tensor:
    """log(1 - p) by a log-sum-exp over the other classes for every entry, [n, k, C]: slow, and exact in float64."""
    is_class = classes[:, :, None] == torch.arange(logits.shape[1])
    others = logits[:, None, :].expand(-1, classes.shape[1], -1).masked_fill(is_class, float("-inf"))
    return others.logsumexp(-1) - logits.logsumexp(-1, keepdim=True)


@st.composite
def rows_of_logits(draw: st.DrawFn) -> tuple[list[list[float]], list[list[int]]]:
    """Logits [n, C] with ties and dominating classes among them, and classes [n, k] of which some are the top one."""
    n, c = draw(st.integers(1, 4)), draw(st.integers(2, 9))
    value = st.one_of(st.floats(-30, 30, width=32), st.sampled_from([0.0, 25.0, -25.0]))
    row = st.lists(value, min_size=c, max_size=c)
    classes = st.lists(st.integers(0, c - 1), min_size=1, max_size=c, unique=True)
    k = len(draw(classes))
    return (
        draw(st.lists(row, min_size=n, max_size=n)),
        [draw(st.permutations(range(c)))[:k] for _ in range(n)],
    )


@settings(max_examples=200)
@given(rows_of_logits())
def test_the_loss_and_its_gradient_are_those_of_the_whole_table(
    case: tuple[list[list[float]], list[list[int]]],
) -> None:
    values, classes = torch.tensor(case[0], dtype=torch.float64), torch.tensor(case[1])
    exact, fast, single = (values.clone().to(kind).requires_grad_() for kind in (torch.float64,) * 2 + (torch.float32,))
    expected, got, rounded = whole_table(exact, classes), *(log_one_minus_softmax(x, classes) for x in (fast, single))
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(rounded.double(), expected, rtol=1e-5, atol=5e-6)
    for output in (expected, got, rounded):
        output.sum().backward()
    torch.testing.assert_close(fast.grad, exact.grad, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(single.grad.double(), exact.grad, rtol=1e-5, atol=1e-5)


def test_the_loss_of_many_classes_needs_no_table_of_all_pairs() -> None:
    n, c = 64, 2000
    logits = torch.randn(n, c, requires_grad=True)
    classes = torch.rand(n, c).argsort(1)[:, : c // 3]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        negative_loss(logits, classes).backward()
    largest = max(event.self_cpu_memory_usage for event in profile.events())
    assert largest <= 2 * n * c * 8  # bytes of a few [n, C] tensors, not of [n, n_rl, C]


@pytest.mark.parametrize("loss", ["negative", "positive", "diversity"])
def test_every_loss_is_float32_under_autocast_and_for_half_precision_logits(loss: str) -> None:
    logits, classes = random_case()
    logits = logits.float()
    compute = {
        "negative": lambda x: negative_loss(x, classes),
        "positive": lambda x: positive_loss(x, classes[:, 0]),
        "diversity": diversity_loss,
    }[loss]
    with torch.autocast("cpu", torch.bfloat16):
        under_autocast = compute(logits)
    assert under_autocast.dtype == torch.float32
    torch.testing.assert_close(under_autocast, compute(logits), rtol=0, atol=0)
    for half in (torch.bfloat16, torch.float16):
        rounded = logits.to(half)
        assert compute(rounded).dtype == torch.float32
        torch.testing.assert_close(compute(rounded), compute(rounded.float()), rtol=0, atol=0)


def test_a_wrong_sure_prediction_is_unlearned_under_autocast_too() -> None:
    logits = torch.tensor([[1e4, 0.0, 0.0]], requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        loss = negative_loss(logits, torch.tensor([[0]]))
    loss.backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[1.0, -0.5, -0.5]]))


def test_the_positive_loss_is_cross_entropy() -> None:
    logits, classes = random_case()
    torch.testing.assert_close(positive_loss(logits, classes[:, 0]), F.cross_entropy(logits.float(), classes[:, 0]))


@QUICK
@given(st.lists(st.floats(0, 10, width=32), min_size=12, max_size=12).filter(lambda w: sum(w) > 0.01))
def test_weights_count_samples_relative_to_each_other(weights: list[float]) -> None:
    logits, classes = random_case()
    each = F.cross_entropy(logits, classes[:, 0], reduction="none")
    expected = sum(w * x.item() for w, x in zip(weights, each)) / sum(weights)
    got = positive_loss(logits, classes[:, 0], torch.tensor(weights)).item()
    assert got == pytest.approx(expected, rel=1e-4)


def test_a_batch_without_any_weight_costs_nothing() -> None:
    logits, classes = random_case()
    assert positive_loss(logits, classes[:, 0], torch.zeros(12)).item() == 0


@QUICK
@given(st.integers(2, 12), st.integers(0, 1000))
def test_diversity_is_lowest_when_the_batch_is_spread_over_all_classes(c: int, seed: int) -> None:
    lowest = -np.log(c)
    spread, one_class = torch.eye(c) * 50, torch.eye(c)[:1].repeat(c, 1) * 50
    random = torch.randn(c, c, generator=torch.Generator().manual_seed(seed))
    assert diversity_loss(torch.zeros(4, c)).item() == pytest.approx(lowest, rel=1e-5)
    assert diversity_loss(spread).item() == pytest.approx(lowest, rel=1e-5)
    assert lowest - 1e-5 <= diversity_loss(random).item() <= 1e-6
    assert diversity_loss(one_class).item() == pytest.approx(0, abs=1e-5)


def test_diversity_lifts_a_class_that_is_dying_out() -> None:
    logits = torch.tensor([[2.0, 0.0, -4.0]]).repeat(5, 1).requires_grad_()
    diversity_loss(logits).backward()
    descent = -logits.grad[0]
    assert descent[0] < 0 < descent[2]
