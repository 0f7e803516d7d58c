"""Precision: what a network computes in, and fp16's loss scaling, whose skipped steps and state are exact."""

from typing import Any

import numpy as np
import pytest
import torch
from test_device_ready import IMAGES, NEL, SETTINGS, HostReads, N
from torch import Tensor

from ray_adaplr.core import devices
from ray_adaplr.core.learner import Learner, TrainSettings
from ray_adaplr.core.models import ModelSpec, build
from ray_adaplr.core.objectives import MakeObjective, Objective
from ray_adaplr.core.predict import predict_logits

SPEC = ModelSpec(num_classes=7, width=4)


def learner(precision: str | None) -> Learner:
    settings = TrainSettings(**{**vars(SETTINGS), "precision": precision})
    return Learner(build(SPEC), read, np.arange(N), settings, member=1)


def read(index: np.ndarray) -> np.ndarray:
    return IMAGES[index]


def overflowing(after: int) -> MakeObjective:
    """The members' objective, infinite from an image of the epoch on."""

    def make(order: np.ndarray, device: torch.device) -> Objective:
        loss = NEL(order, device)

        def or_infinite(logits: Tensor, rows: slice) -> Tensor:
            return loss(logits, rows) * (float("inf") if rows.start >= after else 1.0)

        return or_infinite

    return make


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)]
)
def test_a_network_trains_and_votes_in_its_precision_and_answers_in_float32(precision: str, dtype: torch.dtype) -> None:
    one, seen = learner(precision), []
    one.model.head.register_forward_hook(lambda _head, _inputs, output: seen.append(output.dtype))
    trained, voted = one.train_epoch(0, NEL), one.predict()
    assert set(seen) == {dtype}
    assert (trained.dtype, voted.dtype) == (np.float32, np.float32)
    assert all(weight.dtype == torch.float32 for weight in one.model.parameters())
    predict_logits(one.model, read, np.arange(N))
    assert seen[-1] == torch.float32, "who asks for nothing gets the CPU's own"


def test_a_cpu_computes_in_fp32_where_nobody_asks() -> None:
    assert devices.usual_precision("cpu") == "fp32"
    assert np.array_equal(learner(None).train_epoch(0, NEL), learner("fp32").train_epoch(0, NEL))


def test_half_the_bits_give_nearly_the_same_logits() -> None:
    exact = learner("fp32").train_epoch(0, NEL)
    for precision in ("bf16", "fp16"):
        assert 0 < np.abs(learner(precision).train_epoch(0, NEL) - exact).max() < 0.1


def moments(one: Learner) -> list[Any]:
    return [tensor for state in one.optimizer.state_dict()["state"].values() for tensor in state.values()]


def test_a_step_whose_gradients_overflow_is_left_out_and_halves_the_scale() -> None:
    one, batch = learner("fp16"), SETTINGS.batch_size
    one.train_epoch(0, overflowing(after=N - batch))  # the last step of the epoch
    assert one._scaler.get_scale() == 65536 / 2
    steps = {int(moment) for moment in moments(one) if moment.ndim == 0}
    assert steps == {N // batch - 1}, "the moments do not hear of it either"
    before = {name: weight.clone() for name, weight in one.model.named_parameters()}
    one.train_epoch(1, overflowing(after=0))
    assert all(torch.equal(weight, before[name]) for name, weight in one.model.named_parameters())
    assert one._scaler.get_scale() == 65536 / 2 ** (1 + N // batch)


def test_a_learner_goes_on_from_a_snapshot_with_the_scale_it_had() -> None:
    one, other = learner("fp16"), learner("fp16")
    one.train_epoch(0, overflowing(after=N // 2))
    other.load_state(one.state())
    assert np.array_equal(one.train_epoch(1, NEL), other.train_epoch(1, NEL))
    assert other._scaler.state_dict() == one._scaler.state_dict()
    assert "scaler" not in learner("bf16").state()


def test_no_step_of_fp16_lets_the_host_wait_for_the_device() -> None:
    one = learner("fp16")
    with HostReads() as reads:
        one.train_epoch(0, NEL)
    assert not reads.found


def test_infinite_logits_in_fp16_name_the_way_out() -> None:
    one = learner("fp16")
    with torch.no_grad():
        one.model.head.weight.fill_(65504.0)
    with pytest.raises(FloatingPointError, match="precision=bf16"):
        one.train_epoch(0, NEL)
