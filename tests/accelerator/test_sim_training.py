"""What a learner does on an accelerator: no step waits for it, its memory is bounded, and a full one is no riddle."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sim_task import ON_DEVICE, SPEC, Task

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core import devices
from ray_adaplr.core.feed import DeviceCache
from ray_adaplr.core.learner import Learner, TrainSettings, Workplace
from ray_adaplr.core.models import Classifier, build
from ray_adaplr.core.objectives import (
    MakeObjective,
    MemberObjective,
    ResidualDraw,
    information_maximisation,
    supervised,
)
from ray_adaplr.core.predict import predict_features, predict_logits, reestimate_batchnorm
from ray_adaplr.engine.engine import LocalEngine
from ray_adaplr.engine.training import augmentation
from ray_adaplr.errors import RunFailed
from ray_adaplr.stages.adapt import adapt
from ray_adaplr.stages.precision import candidates

torch_sim = pytest.importorskip("torch_sim", reason="run by tests/accelerator/build.py", exc_type=ImportError)
pytestmark = pytest.mark.accelerator

N = 96
IMAGES = np.random.default_rng(0).integers(0, 256, (N, 16, 16, 1), dtype=np.uint8)
LABELS = np.arange(N) % 10
NEL = MemberObjective(ResidualDraw(10, n_rl=2, n_e=3), member=1, diversity=0.2).of_epoch(0, LABELS)


def read(index: np.ndarray) -> np.ndarray:
    return IMAGES[index]


def learner(device: str, batch_size: int = 16, cache: bool = False) -> Learner:
    augment = replace(augmentation(Config(), Config().crop), invert_probability=0.2, palette_probability=0.3)
    settings = TrainSettings(0, 4, batch_size, 1e-3, 1e-3, 5e-4, "cosine", augment)
    images = DeviceCache("on" if cache else "off").of(read, N, device)
    return Learner(build(SPEC), read, np.arange(N), settings, place=Workplace(device, cache=images))


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("objective", [NEL, supervised(LABELS), information_maximisation])
def test_an_epoch_gives_the_cpus_bits_and_no_step_waits_for_the_device(objective: MakeObjective, cache: bool) -> None:
    here, there = learner("cpu"), learner("sim", cache=cache)
    torch_sim.start_counting()
    logits = there.train_epoch(0, objective)
    seen = torch_sim.Seen()
    assert seen.waits == {}
    assert seen.to_host == 1  # the epoch's logits, at its end
    assert np.array_equal(logits, here.train_epoch(0, objective))
    for mine, theirs in zip(here.state()["model"].values(), there.state()["model"].values()):
        assert torch.equal(mine, theirs)


def test_with_the_images_on_the_device_a_step_sends_nothing_there() -> None:
    copies = []
    for batch_size in (16, 48):
        one = learner("sim", batch_size, cache=True)
        torch_sim.start_counting()
        one.train_epoch(0, NEL)
        copies.append(torch_sim.Seen().to_device)
    assert copies[0] == copies[1]  # the same for six steps as for two


def test_a_learner_goes_on_from_a_snapshot_with_the_same_bits_and_leaves_nothing_behind() -> None:
    before = torch_sim.Seen().live
    one, other = learner("sim"), learner("sim")
    one.train_epoch(0, NEL)
    other.load_state(one.state())
    assert np.array_equal(one.train_epoch(1, NEL), other.train_epoch(1, NEL))
    del one, other
    assert torch_sim.Seen().live - before < 100_000  # constants of the augmentation stay


def test_the_peak_of_memory_grows_with_the_batch_and_not_with_the_images() -> None:
    peaks = {}
    for count, batch_size in ((32, 16), (96, 16), (96, 48)):
        one = learner("sim", batch_size)
        one.samples = np.arange(count)
        torch_sim.start_counting()
        before = torch_sim.Seen().live
        one.train_epoch(0, NEL)
        peaks[count, batch_size] = torch_sim.Seen().peak - before
    assert peaks[96, 16] < 1.2 * peaks[32, 16]
    assert peaks[96, 48] < 4 * peaks[96, 16]


def test_bfloat16_is_used_where_the_device_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices.conditions(devices.ACCELERATOR)["precision"] == "float32"
    assert devices.conditions(devices.ACCELERATOR, "fp16")["precision"] == "float16"
    assert candidates("sim") == ["fp16"]
    monkeypatch.setenv("SIM_BF16", "1")
    assert candidates("sim") == ["bf16"]
    assert devices.conditions(devices.ACCELERATOR)["precision"] == "bfloat16"
    with devices.autocast(torch.device("sim")):  # nothing is computed in it: not every CPU here can
        assert torch.is_autocast_enabled("sim")
        assert torch.get_autocast_dtype("sim") == torch.bfloat16


def looks(model: Classifier, device: str) -> np.ndarray:
    return predict_logits(model, read, np.arange(N), device)


def renewed(model: Classifier, device: str) -> np.ndarray:
    assert reestimate_batchnorm(model, read, np.arange(N), device)
    return looks(model, device)


@pytest.mark.parametrize("use", [looks, renewed])
def test_a_model_predicts_the_cpus_bits(use: Callable[[Classifier, str], np.ndarray]) -> None:
    assert np.array_equal(use(build(SPEC), "sim"), use(build(SPEC), "cpu"))


def test_fewer_images_are_looked_at_together_where_the_device_is_too_small(caplog: pytest.LogCaptureFixture) -> None:
    model = build(SPEC).to("sim")
    features, logits = predict_features(model, read, np.arange(N), "sim")
    with torch_sim.limited(spare=300_000):
        again = predict_features(model, read, np.arange(N), "sim")
    torch.testing.assert_close(again[0], features)
    torch.testing.assert_close(again[1], logits)
    assert "at a time are looked at now" in caplog.text


@pytest.mark.parametrize("wanted", [False, True])
def test_deterministic_kernels_are_asked_for_and_recorded(wanted: bool) -> None:
    with LocalEngine(ScalingConfig(engine="local", deterministic=wanted)) as engine:
        computed = engine.ask(devices.conditions, engine.device, does="checks its device")
    assert computed["deterministic"] is wanted
    assert not torch.are_deterministic_algorithms_enabled()


def test_images_are_kept_on_the_device_where_this_process_has_room_for_them() -> None:
    before = torch_sim.Seen().live
    with torch_sim.limited(spare=6 * IMAGES.nbytes):
        assert DeviceCache(share=0.5).of(read, N, "sim") is None
        assert DeviceCache().of(read, N, "sim") is not None
    assert torch_sim.Seen().live == before


def test_a_full_device_ends_the_run_with_advice(task: Task, tmp_path: Path) -> None:
    with torch_sim.limited(spare=200_000), pytest.raises(RunFailed, match=r"out of memory.*batch_size.*--gpus-per"):
        adapt(task.plan(tmp_path / "run", ON_DEVICE))
