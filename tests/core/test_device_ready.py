"""What keeps a GPU busy, held without one: a step never reads a value back, the cache and `compile` change nothing."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ray_adaplr.config import Config
from ray_adaplr.core.feed import DeviceCache
from ray_adaplr.core.learner import Learner, TrainSettings, Workplace
from ray_adaplr.core.models import ModelSpec, build
from ray_adaplr.core.objectives import (
    MakeObjective,
    MemberObjective,
    ResidualDraw,
    information_maximisation,
    supervised,
)
from ray_adaplr.engine.training import augmentation

N, C, BATCH = 40, 7, 8
IMAGES = np.random.default_rng(0).integers(0, 256, (N, 16, 16, 3), dtype=np.uint8)
LABELS = np.arange(N) % C
AUGMENT = replace(augmentation(Config(), Config().crop), invert_probability=0.2)
SETTINGS = TrainSettings(0, 4, BATCH, 1e-3, 1e-3, 5e-4, "cosine", AUGMENT)
NEL = MemberObjective(ResidualDraw(C, n_rl=2, n_e=3), member=1, diversity=0.2).of_epoch(0, LABELS)
READS_BACK = {"_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "unique", "allclose"}


def learner(cache: str = "off", compile: bool = False) -> Learner:
    images = DeviceCache(cache).of(read, N, "cpu")  # type: ignore[arg-type]
    settings = TrainSettings(**{**vars(SETTINGS), "compile": compile})
    model = build(ModelSpec(num_classes=C, width=4))
    return Learner(model, read, np.arange(N), settings, member=1, place=Workplace(cache=images))


def read(index: np.ndarray) -> np.ndarray:
    return IMAGES[index]


class HostReads(TorchDispatchMode):
    """Notes every operation that lets the host wait for a value of the device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name in READS_BACK:
            self.found.append(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("cache", ["off", "on"])
@pytest.mark.parametrize("objective", [NEL, supervised(LABELS), information_maximisation])
def test_no_step_lets_the_host_wait_for_the_device(objective: MakeObjective, cache: str) -> None:
    one = learner(cache)
    with HostReads() as reads:
        one.train_epoch(0, objective)
    assert not reads.found


def test_the_watch_sees_a_value_that_is_read_back() -> None:
    def reading(order: np.ndarray, device: torch.device) -> Any:
        loss = supervised(LABELS)(order, device)
        return lambda logits, rows: loss(logits, rows) * (2.0 if logits.sum() > 0 else 1.0)

    with HostReads() as reads:
        learner().train_epoch(0, reading)
    assert len(reads.found) >= N // BATCH


def test_images_kept_on_the_device_give_the_same_bits() -> None:
    assert np.array_equal(learner("on").train_epoch(0, NEL), learner("off").train_epoch(0, NEL))


def test_images_go_to_the_device_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray_adaplr.core.feed._PIECE", 5 * IMAGES[0].nbytes)
    sizes: list[int] = []

    def noted(index: np.ndarray) -> np.ndarray:
        sizes.append(len(index))
        return IMAGES[index]

    cache = DeviceCache("on").of(noted, N, "cpu")
    assert cache is not None
    assert np.array_equal(cache.numpy(), IMAGES)
    assert max(sizes) == 5


def test_a_cpu_keeps_no_copy_of_the_store_unless_told() -> None:
    assert DeviceCache().of(read, N, "cpu") is None
    kept = DeviceCache("on").of(read, N, "cpu")
    assert kept is not None
    assert np.array_equal(kept.numpy(), IMAGES)


def test_a_compiled_network_trains_and_keeps_the_names_of_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    # Dynamo's graph without Inductor's minute of C++.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    compiled, plain = learner(compile=True), learner()
    assert np.allclose(compiled.train_epoch(0, NEL), plain.train_epoch(0, NEL), atol=1e-4)
    assert compiled.state()["model"].keys() == plain.state()["model"].keys()
