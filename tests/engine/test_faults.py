"""Faults on the real thing: members killed, hung, raising and diverging in the middle of a run on Ray."""

import contextlib
import copy
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from local_runs import LOCAL
from ray import cloudpickle
from torch import Tensor

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.predict import reestimate_batchnorm
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.checkpoint import Checkpoints
from ray_adaplr.engine.seats import Seats
from ray_adaplr.engine.waiting import Patience
from ray_adaplr.errors import RunFailed
from ray_adaplr.stages.adapt import Result, RunPlan, adapt
from ray_adaplr.storage.models import load_model

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test's module
pytestmark = [pytest.mark.ray, pytest.mark.slow]
ON_RAY = ScalingConfig(cpus_per_member=0.5)
CONFIG = Config(epochs=6, distill_epochs=1, warmup=1, alpha=0.5, distill_on="all", n_e=2, warm_start="off")


def member_processes() -> list[int]:
    """Pids of this session's live members, which Ray names after their class."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cmdline").read_bytes().startswith(b"ray::Member") and is_ours(int(entry.name)):
                    found.append(int(entry.name))
            except OSError:
                continue
    return sorted(found)


def is_ours(pid: int) -> bool:
    """Whether a process descends from this one; another Ray on the machine is left alone."""
    while pid > 1 and pid != os.getpid():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return pid == os.getpid()


@contextlib.contextmanager
def once(find: Callable[[], Any], act: Callable[[Any], None]) -> Iterator[None]:
    """Meanwhile something is done, in a thread, with what is found as soon as it is there; it must have been done then.

    A thread that outlived its test would strike the next one.
    """
    over, done = threading.Event(), threading.Event()

    def wait() -> None:
        while not over.wait(0.002):
            if found := find():
                act(found)
                return done.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert done.is_set()


def kill_first(pids: list[int]) -> None:
    os.kill(pids[0], signal.SIGKILL)


def refined(result: Result) -> bytes:
    return (Path(result.path) / "labels.parquet").read_bytes()


def wait_for(condition: Callable[[], bool], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Wicked(torch.nn.Module):
    """Wraps a network and misbehaves in training, `calls` batches from the start; a file marks that it hangs."""

    def __init__(self, inner: torch.nn.Module, how: str, calls: int, mark: Path) -> None:
        super().__init__()
        self.inner, self.how, self.left, self.mark = inner, how, calls, mark

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.left -= 1
            if self.left == 0:
                if self.how == "raise" or (self.how == "raise in the first batch" and self.mark.exists()):
                    raise ZeroDivisionError("a bug in the user's network")
                if self.how == "hang":
                    self.mark.touch()
                    time.sleep(3600)
                if self.how == "warn":
                    logging.getLogger("ray_adaplr.somewhere").warning("the disk is slow")
                if self.how == "nan":
                    return self.inner(x) * float("nan")
        return self.inner(x)


def wicked(model: Classifier, how: str, calls: int, mark: Path = Path("/nowhere")) -> Classifier:
    spec = model.spec.model_copy(update={"head": "inner." + str(model.spec.head)})
    return Classifier(Wicked(model.network, how, calls, mark), spec)


@pytest.fixture
def target(digit_stores: dict[str, ImageStore]) -> ImageStore:
    return digit_stores["optdigits"]


@pytest.fixture(scope="module")
def straight(
    source_folder: Path, digit_stores: dict[str, ImageStore], tmp_path_factory: pytest.TempPathFactory
) -> bytes:
    """Labels of the undisturbed run."""
    out = tmp_path_factory.mktemp("straight") / "run"
    return refined(
        adapt(RunPlan([load_model(source_folder)], digit_stores["optdigits"], str(out), CONFIG, LOCAL), until="refine")
    )


def test_members_killed_around_a_checkpoint_and_after_the_last_epoch_leave_the_bits_as_they_were(
    ray_cluster: None,
    straight: bytes,
    source_model: Classifier,
    target: ImageStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strikes, write = [], Checkpoints.write
    moments = {1: "before the epoch's checkpoint is whole", CONFIG.epochs - 1: "after the last epoch"}

    def strike(moment: str) -> None:
        if moment not in strikes:
            strikes.append(moment)
            kill_first(member_processes())

    def written(checkpoints: Checkpoints, *args: Any) -> None:
        write(checkpoints, *args)
        if checkpoints.epoch == 3:
            strike("after it is whole")

    def watch(line: dict) -> None:
        if line["epoch"] in moments:
            strike(moments[line["epoch"]])

    monkeypatch.setattr(Checkpoints, "write", written)
    plan = RunPlan([source_model], target, str(tmp_path), CONFIG, ON_RAY)
    survived = adapt(plan, until="refine", watch=watch)
    assert strikes == ["before the epoch's checkpoint is whole", "after it is whole", "after the last epoch"]
    assert refined(survived) == straight
    assert all((tmp_path / f"ensemble/{k}/model.safetensors").exists() for k in range(CONFIG.n_e))


def warming(run: Path) -> list[int]:
    """Pids of members that warm a source up, once one has kept an epoch of it."""
    return member_processes() if list(run.glob("checkpoints/warm-start-*")) else []


def test_sources_are_warmed_side_by_side_and_a_lost_process_leaves_the_bits_as_they_were(
    ray_cluster: None, source_model: Classifier, target: ImageStore, tmp_path: Path
) -> None:
    config = CONFIG.model_copy(update={"warm_start": "im", "warm_start_epochs": 20, "epochs": 1})
    sources = [source_model, source_model, source_model]  # more than there are seats
    straight = adapt(RunPlan(sources, target, str(tmp_path / "straight"), config, LOCAL), until="refine")
    with once(lambda: warming(tmp_path / "killed"), kill_first):
        survived = adapt(RunPlan(sources, target, str(tmp_path / "killed"), config, ON_RAY), until="refine")
    assert refined(survived) == refined(straight)
    assert not list(tmp_path.glob("*/checkpoints/warm-start-*"))


def test_all_seats_show_the_images_to_guests_and_a_lost_process_leaves_the_bits_as_they_were(
    ray_cluster: None, source_model: Classifier, target: ImageStore, tmp_path: Path
) -> None:
    def looking() -> list[int]:
        return member_processes() if list(tmp_path.glob("killed/checkpoints/features-*")) else []

    guests = [copy.deepcopy(source_model), copy.deepcopy(source_model)]
    for guest in guests:
        reestimate_batchnorm(guest, target.read, np.arange(len(target)))  # it knows such images
    config = CONFIG.model_copy(update={"warm_start": "centroids", "warm_start_epochs": 1, "epochs": 1})
    straight = adapt(
        RunPlan([source_model], target, str(tmp_path / "straight"), config, LOCAL, guests=guests), until="refine"
    )
    with once(looking, kill_first):
        plan = RunPlan([source_model], target, str(tmp_path / "killed"), config, ON_RAY, guests=guests)
        survived = adapt(plan, until="refine")
    assert refined(survived) == refined(straight)
    remarks = survived.run.read_inferred([source_model]).remarks
    assert len([said for said in remarks if "votes on the labels" in said]) == 2
    assert not list(tmp_path.glob("*/checkpoints/features-*"))


def test_a_bug_in_the_network_stops_the_run_at_once_with_its_traceback(
    ray_cluster: None, source_model: Classifier, target: ImageStore, tmp_path: Path
) -> None:
    with pytest.raises(RunFailed, match=r"member \d in epoch 2 raised(.|\n)*a bug in the user's network"):
        adapt(RunPlan([wicked(source_model, "raise", 8)], target, str(tmp_path), CONFIG, ON_RAY))
    wait_for(lambda: not member_processes())


@pytest.mark.usefixtures("unrendered")
def test_what_members_warn_of_comes_with_the_answer_of_their_epoch_and_stays_in_the_summary(
    ray_cluster: None, source_model: Classifier, target: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Seats, "listen", lambda seats: None)  # nobody is asked
    adapt(RunPlan([wicked(source_model, "warn", 8)], target, str(tmp_path), CONFIG, ON_RAY))
    assert json.loads((tmp_path / "summary.json").read_text())["warnings"].count("the disk is slow") == 1


def test_an_error_in_an_epoch_that_is_replayed_is_not_passed_over(
    ray_cluster: None, source_model: Classifier, target: ImageStore, tmp_path: Path
) -> None:
    """One that nobody looked at would leave a member half replayed, and its vote would count."""
    breaks = tmp_path / "breaks"

    def kill_one(line: dict) -> None:
        if line["epoch"] == 2:
            breaks.touch()
            kill_first(member_processes())

    once_more = wicked(source_model, "raise in the first batch", 1, breaks)
    no_checkpoints = ON_RAY.model_copy(update={"checkpoint_every": 0})
    plan = RunPlan([once_more], target, str(tmp_path / "run"), CONFIG, no_checkpoints)
    with pytest.raises(RunFailed, match=r"member \d in epoch \d raised(.|\n)*a bug in the user's network"):
        adapt(plan, until="refine", watch=kill_one)


def test_nan_logits_name_the_member_the_epoch_and_the_batch(
    ray_cluster: None, source_model: Classifier, target: ImageStore, tmp_path: Path
) -> None:
    one_member = CONFIG.model_copy(update={"n_e": 1})
    with pytest.raises(RunFailed, match=r"^member 0 in epoch 2 diverged: .*epoch 2, batch 3[^\n]*$"):
        adapt(RunPlan([wicked(source_model, "nan", 8)], target, str(tmp_path), one_member, ON_RAY))


def test_nan_logits_name_the_member_in_process_too(
    source_model: Classifier, target: ImageStore, tmp_path: Path
) -> None:
    models = [source_model, wicked(source_model, "nan", 8)]
    with pytest.raises(RunFailed, match=r"^member 1 in epoch 2 diverged: .*epoch 2, batch 3[^\n]*$"):
        adapt(RunPlan(models, target, str(tmp_path), CONFIG, LOCAL))


@pytest.mark.parametrize("scaling", [LOCAL, ON_RAY], ids=["local", "ray"])
def test_a_warm_start_that_diverges_is_told_in_the_same_words_everywhere(
    ray_cluster: None, source_model: Classifier, target: ImageStore, tmp_path: Path, scaling: ScalingConfig
) -> None:
    config = CONFIG.model_copy(update={"warm_start": "im", "n_e": 1})
    with pytest.raises(RunFailed, match=r"^the process that makes the warm start diverged: .* batch 3.*learning rate"):
        adapt(RunPlan([wicked(source_model, "nan", 3)], target, str(tmp_path), config, scaling))


def test_a_bug_met_while_inferring_is_told_without_a_traceback_of_ours(
    ray_cluster: None, source_model: Classifier, target: ImageStore, tmp_path: Path
) -> None:
    config = CONFIG.model_copy(update={"warm_start": "im", "n_e": 1})
    with pytest.raises(
        RunFailed, match=r"the process that makes the warm start raised(.|\n)*a bug in the user's network"
    ):
        adapt(RunPlan([wicked(source_model, "raise", 3)], target, str(tmp_path), config, ON_RAY))


def test_a_hung_member_is_named_and_given_up_when_that_is_allowed(
    ray_cluster: None,
    source_model: Classifier,
    target: ImageStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hangs, limit = tmp_path / "hangs", Patience.limit

    def in_a_hurry(patience: Patience) -> float:  # no sooner and no longer than it has to be: the machine may be busy
        return limit.__get__(patience) if hangs.exists() and "hung" not in caplog.text else 600.0

    monkeypatch.setattr(Patience, "limit", property(in_a_hurry))
    scaling = ON_RAY.model_copy(update={"epoch_timeout": 5.0, "max_restarts": 0, "max_lost_members": 1})
    models = [source_model, wicked(source_model, "hang", 8, hangs)]
    result = adapt(RunPlan(models, target, str(tmp_path / "run"), CONFIG, scaling), until="refine")
    assert [line["members"] for line in result.metrics] == [2, 1, 1, 1, 1, 1]
    assert "member 1 in epoch 2: hung" in caplog.text


def test_too_many_losses_end_the_run_and_leave_its_checkpoint(
    ray_cluster: None, straight: bytes, source_model: Classifier, target: ImageStore, tmp_path: Path
) -> None:
    scaling = ON_RAY.model_copy(update={"max_restarts": 0})

    def kill_one(line: dict) -> None:
        if line["epoch"] == 2:
            kill_first(member_processes())

    with pytest.raises(RunFailed, match=r"member \d in epoch \d lost"):
        adapt(RunPlan([source_model], target, str(tmp_path), CONFIG, scaling), until="refine", watch=kill_one)
    assert list((tmp_path / "checkpoints").glob("manifest-*.json"))
    resumed = adapt(RunPlan([source_model], target, str(tmp_path), CONFIG, LOCAL), until="refine")
    assert refined(resumed) == straight
