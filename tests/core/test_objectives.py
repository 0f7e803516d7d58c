"""Each stage's objective is the loss it names, on the labels of the samples that are in the batch."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ray_adaplr.core.objectives import (
    MemberObjective,
    ResidualDraw,
    diversity_loss,
    information_maximisation,
    information_maximisation_and_vote,
    negative_loss,
    positive_loss,
    residual_labels,
    supervised,
    unsureness,
)

N, C = 30, 7
CPU = torch.device("cpu")
ORDER = np.random.default_rng(1).permutation(N)[:20]  # a subset, shuffled
ROWS = slice(5, 13)
LABELS = np.random.default_rng(2).integers(0, C, N)


def logits(n: int = 8) -> Tensor:
    return torch.randn(n, C, generator=torch.Generator().manual_seed(0))


def member(**changes: Any) -> MemberObjective:
    draw = ResidualDraw(C, n_rl=2, n_e=3, mode=changes.pop("mode", "drl"), seed=3)
    return MemberObjective(draw if changes.pop("loss", "nel") == "nel" else None, **{"member": 1, **changes})


@pytest.mark.parametrize("mode", ["drl", "srl"])
def test_a_member_unlearns_its_own_residual_labels_of_the_batch(mode: str) -> None:
    loss = member(mode=mode).of_epoch(4, LABELS)(ORDER, CPU)(logits(), ROWS)
    batch = ORDER[ROWS]
    draw = ResidualDraw(C, n_rl=2, n_e=3, mode=mode, seed=3)
    residuals = residual_labels(LABELS[batch], batch, draw, member=1, epoch=4)
    assert torch.equal(loss, negative_loss(logits(), torch.from_numpy(residuals)))


def test_members_unlearn_different_classes_in_drl_and_the_same_in_srl() -> None:
    def losses(mode: str) -> list[float]:
        makers = [member(member=k, mode=mode).of_epoch(0, LABELS) for k in range(3)]
        return [make(ORDER, CPU)(logits(), ROWS).item() for make in makers]

    assert len(set(losses("drl"))) == 3
    assert len(set(losses("srl"))) == 1


def test_every_epoch_unlearns_other_classes() -> None:
    values = {member().of_epoch(epoch, LABELS)(ORDER, CPU)(logits(), ROWS).item() for epoch in range(4)}
    assert len(values) == 4


def test_a_member_may_learn_the_labels_themselves() -> None:
    loss = member(loss="pl").of_epoch(0, LABELS)(ORDER, CPU)(logits(), ROWS)
    assert torch.equal(loss, positive_loss(logits(), torch.from_numpy(LABELS[ORDER[ROWS]])))


@pytest.mark.parametrize("kind", ["nel", "pl"])
def test_the_diversity_guard_is_added_with_its_weight(kind: str) -> None:
    plain, guarded = (
        member(loss=kind, diversity=weight).of_epoch(0, LABELS)(ORDER, CPU)(logits(), ROWS) for weight in (0.0, 0.2)
    )
    torch.testing.assert_close(guarded - plain, 0.2 * diversity_loss(logits()))


@pytest.mark.parametrize("kind", [np.int16, np.int32, np.int64])
def test_labels_of_any_integer_type_give_the_same_loss(kind: type) -> None:
    for name in ("nel", "pl"):
        expected = member(loss=name).of_epoch(0, LABELS)(ORDER, CPU)(logits(), ROWS)
        assert torch.equal(member(loss=name).of_epoch(0, LABELS.astype(kind))(ORDER, CPU)(logits(), ROWS), expected)


def test_supervised_training_looks_labels_and_weights_up_by_sample() -> None:
    weights = np.random.default_rng(3).random(N)
    targets = torch.from_numpy(LABELS[ORDER[ROWS]])
    plain = supervised(LABELS)(ORDER, CPU)(logits(), ROWS)
    weighted = supervised(LABELS, weights)(ORDER, CPU)(logits(), ROWS)
    assert torch.equal(plain, positive_loss(logits(), targets))
    batch_weights = torch.from_numpy(weights[ORDER[ROWS]]).float()
    assert torch.equal(weighted, positive_loss(logits(), targets, batch_weights))


def test_soft_labels_that_are_sure_teach_what_labels_do() -> None:
    soft = np.eye(C, dtype=np.float32)[LABELS]
    expected = supervised(LABELS)(ORDER, CPU)(logits(), ROWS)
    torch.testing.assert_close(supervised(soft)(ORDER, CPU)(logits(), ROWS), expected)
    halved = supervised((soft + 1 / C) / 2)(ORDER, CPU)(logits(), ROWS)
    torch.testing.assert_close(halved, positive_loss(logits(), torch.from_numpy(LABELS[ORDER[ROWS]]), smoothing=0.5))


def test_information_maximisation_is_lowest_when_sure_and_spread() -> None:
    loss = information_maximisation(np.arange(C), CPU)
    everything = slice(0, C)
    sure_and_spread = loss(torch.eye(C) * 50, everything).item()
    unsure = loss(torch.zeros(C, C), everything).item()
    one_class = loss(torch.eye(C)[:1].repeat(C, 1) * 50, everything).item()
    assert sure_and_spread == pytest.approx(-np.log(C), abs=1e-4)
    assert unsure == pytest.approx(0, abs=1e-4)
    assert one_class == pytest.approx(0, abs=1e-4)


def test_with_expected_shares_it_is_lowest_when_the_classes_have_them() -> None:
    shares = torch.tensor([0.5, 0.25, 0.25])
    labelled = [torch.eye(3)[labels] * 50 for labels in ([0, 0, 1, 2], [0, 1, 1, 2], [0, 0, 0, 0])]
    found = [unsureness(logits, shares).item() for logits in labelled]
    assert found == sorted(found)
    assert found[0] == pytest.approx(0, abs=1e-4)
    assert found[1] > 0.05


def test_without_labels_the_warm_start_is_information_maximisation_alone() -> None:
    logits = torch.eye(C) * 2
    found = information_maximisation_and_vote(None, 2)(np.arange(C), CPU)(logits, slice(0, C))
    assert torch.equal(found, unsureness(logits))


def test_information_maximisation_has_a_finite_gradient_for_very_sure_logits() -> None:
    sure = (torch.eye(C) * 1e4).requires_grad_()
    information_maximisation(np.arange(C), CPU)(sure, slice(0, C)).backward()
    assert sure.grad.isfinite().all()
