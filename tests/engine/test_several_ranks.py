"""A member of two ranks: a real gloo group of Ray actors on CPUs gives what one rank gives, also when one is killed."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
import torch.nn.functional as F
from engine.test_faults import member_processes
from local_runs import LOCAL, bits
from ray import cloudpickle
from torch import Tensor, nn

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.objectives import unsureness
from ray_adaplr.core.ranks import Ranks
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.checkpoint import Checkpoints
from ray_adaplr.engine.engine import Engine, RayEngine, make_engine
from ray_adaplr.stages.adapt import Result, RunPlan, adapt
from ray_adaplr.storage.folder import Folder

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = [pytest.mark.ray, pytest.mark.slow]
TWO_RANKS = ScalingConfig(ranks_per_member=2, cpus_per_member=1, max_restarts=20)
CONFIG = Config(epochs=4, distill_epochs=3, warmup=1, alpha=0.5, n_e=1, warm_start="off", diversity=0.2)


@pytest.fixture
def target(digit_stores: dict[str, ImageStore]) -> ImageStore:
    return digit_stores["optdigits"]


def small_network() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, nn.BatchNorm1d(8), nn.Linear(8, 5))


def loss_of(logits: Tensor) -> Tensor:
    """A mean over images beside the terms that need the whole batch: information maximisation."""
    return unsureness(logits) + F.cross_entropy(logits, torch.arange(len(logits)) % 5)


def trained_steps(ranks: Ranks) -> Iterator[dict[str, Tensor]]:
    """Steps on batches of 11, of which no rank has the same share: logits, gradients, weights and statistics.

    In float64: in float32 rounding grows within an epoch until it cannot be told from a mistake.
    """
    rows, network = slice(0, 11), small_network().double()
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for step in range(40):
        images = torch.randn(11, 3, 9, 9, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        with ranks.synchronised():
            logits = ranks.whole(network(images[ranks.part(rows)]), rows)
        optimizer.zero_grad()
        loss_of(logits).backward()
        ranks.add_gradients(network.parameters())
        optimizer.step()
    gradients = {f"gradient of {name}": value.grad for name, value in network.named_parameters()}
    yield {"logits": logits.detach(), **gradients, **network.state_dict()}


def own_rank(ranks: Ranks) -> Iterator[tuple[int, int]]:
    yield ranks.rank, ranks.world


def first_epoch(engine: Engine, model: Classifier, store: ImageStore, folder: Path, vote: str) -> np.ndarray:
    """Logits of a member after an epoch."""
    config = CONFIG.model_copy(update={"logits_from": vote}).resolve(10)
    ensemble = engine.ensemble(config, store, [model], Checkpoints(Folder(folder), every=0))
    ensemble.start(0, np.arange(len(store)) % 10, snapshot=False)
    return ensemble.collect()[0]


def test_two_ranks_give_what_one_gives_within_float_error(
    ray_cluster: None, source_model: Classifier, target: ImageStore, tmp_path: Path
) -> None:
    with RayEngine(TWO_RANKS, n_e=1, name="two") as engine:
        assert engine.ranks == 2
        assert "adaplr-two-member-0-rank-1" in ray.util.list_named_actors()
        # Items of the first rank are passed on.
        assert list(engine.stream(own_rank, does="tells its rank", ranks=2)) == [(0, 2)]
        [both] = engine.stream(trained_steps, does="trains", ranks=2)
        [alone] = trained_steps(Ranks())
        assert both.keys() == alone.keys()
        for name, value in alone.items():
            torch.testing.assert_close(both[name], value, atol=1e-7, rtol=1e-7, msg=lambda text, name=name: name + text)
        for vote in ("train", "clean"):
            two = first_epoch(engine, source_model, target, tmp_path, vote)
            with make_engine(LOCAL, 1, "one") as local:
                one = first_epoch(local, source_model, target, tmp_path, vote)
            np.testing.assert_allclose(two, one, atol=1e-4)
            assert not np.array_equal(two, one)  # or there was one rank


@pytest.fixture(scope="module")
def straight(
    ray_cluster: None,
    source_folder: Path,
    digit_stores: dict[str, ImageStore],
    tmp_path_factory: pytest.TempPathFactory,
) -> Result:
    """An undisturbed run on two ranks."""
    from ray_adaplr.storage.models import load_model

    out = tmp_path_factory.mktemp("ranks") / "run"
    return adapt(RunPlan([load_model(source_folder)], digit_stores["optdigits"], str(out), CONFIG, TWO_RANKS))


@pytest.mark.usefixtures("unrendered")
def test_a_run_on_two_ranks_ends_with_the_labels_and_the_model_of_one(
    straight: Result, source_model: Classifier, target: ImageStore, tmp_path: Path
) -> None:
    one = adapt(RunPlan([source_model], target, str(tmp_path), CONFIG, LOCAL))
    assert one.labels["refined_label"].equals(straight.labels["refined_label"])
    ours, theirs = (result.classifier.state_dict() for result in (one, straight))
    assert max((ours[name].float() - theirs[name].float()).abs().max() for name in ours) < 0.01
    [computed] = json.loads(Path(straight.path, "run.json").read_text())["computed_with"]
    assert (computed["ranks_per_member"], computed["distill_workers"]) == (2, 2)
    description = json.loads(Path(straight.path, "target_model/model.json").read_text())
    assert description["notes"]["ranks"] == "2"


@pytest.mark.usefixtures("unrendered")
def test_killed_ranks_and_a_resume_leave_the_bits_as_they_were(
    straight: Result, source_model: Classifier, target: ImageStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = RunPlan([source_model], target, str(tmp_path), CONFIG, TWO_RANKS)

    def kill_a_rank_then_stop(line: dict[str, Any]) -> None:
        if line["epoch"] == 1:
            os.kill(member_processes()[-1], signal.SIGKILL)
        if line["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adapt(plan, watch=kill_a_rank_then_stop)
    assert "member 0 in epoch 3: lost" in caplog.text
    assert bits(adapt(plan)) == bits(straight)
