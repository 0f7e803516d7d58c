"""Faults on the real thing: members killed, hung, raising and diverging in the middle of a run on Ray."""

import contextlib
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

import pytest
import ray
import torch
from ray import cloudpickle
from torch import Tensor

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.engine import RayEngine
from ray_adaplr.engine.seats import Seats
from ray_adaplr.errors import RunFailed
from ray_adaplr.stages.adapt import Result, RunPlan, adapt
from ray_adaplr.storage.models import load_model

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test's module
pytestmark = [pytest.mark.ray, pytest.mark.slow]
ON_RAY, LOCAL = ScalingConfig(cpus_per_member=0.5), ScalingConfig(engine="local")
CONFIG = Config(epochs=6, distill_epochs=1, warmup=1, alpha=0.5, distill_on="all", n_e=2, warm_start="off")


def member_processes(doing: str = "") -> list[int]:
    """Pids of this session's live members: Ray names a worker's process after the method it runs."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cmdline").read_bytes().startswith(f"ray::Member{doing}".encode()) and is_ours(
                    int(entry.name)
                ):
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


def epochs_done(run: Path, count: int) -> bool:
    """Whether that many epochs are in metrics.jsonl."""
    return (run / "metrics.jsonl").exists() and len((run / "metrics.jsonl").read_text().splitlines()) >= count


def refined(result: Result) -> bytes:
    return (Path(result.path) / "labels.parquet").read_bytes()


def wait_for(condition: Callable[[], bool], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Wicked(torch.nn.Module):
    """Wraps a network and misbehaves in training, `calls` batches from the start."""

    def __init__(self, inner: torch.nn.Module, how: str, calls: int) -> None:
        super().__init__()
        self.inner, self.how, self.left = inner, how, calls

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.left -= 1
            if self.left == 0:
                if self.how == "raise":
                    raise ZeroDivisionError("a bug in the user's network")
                if self.how == "hang":
                    time.sleep(3600)
                if self.how == "warn":
                    logging.getLogger("ray_adaplr.somewhere").warning("the disk is slow")
                if self.how == "nan":
                    return self.inner(x) * float("nan")
        return self.inner(x)


def wicked(model: Classifier, how: str, calls: int) -> Classifier:
    spec = model.spec.model_copy(update={"head": "inner." + str(model.spec.head)})
    return Classifier(Wicked(model.network, how, calls), spec)


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


def test_a_member_lost_after_its_last_epoch_still_hands_its_network_over(
    ray_cluster: None, straight: bytes, source_model: Classifier, target: ImageStore, tmp_path: Path
) -> None:
    def kill_one(line: dict) -> None:
        if line["epoch"] == CONFIG.epochs - 1:
            os.kill(member_processes()[0], signal.SIGKILL)

    result = adapt(
        RunPlan([source_model], target, str(tmp_path / "run"), CONFIG, ON_RAY), until="refine", watch=kill_one
    )
    assert refined(result) == straight
    assert all((tmp_path / f"run/ensemble/{k}/model.safetensors").exists() for k in range(CONFIG.n_e))


@pytest.mark.parametrize("moment", ["before the checkpoint of the last epoch is whole", "after it is whole"])
def test_a_killed_member_is_restarted_and_the_bits_stay_the_same(
    moment: str, ray_cluster: None, straight: bytes, source_model: Classifier, target: ImageStore, tmp_path: Path
) -> None:
    run = tmp_path / "killed"
    whole = run / "checkpoints/manifest-000001.json"
    is_time = whole.exists if moment.startswith("after") else lambda: epochs_done(run, 2)
    with once(lambda: is_time() and member_processes(), kill_first):
        survived = adapt(RunPlan([source_model], target, str(run), CONFIG, ON_RAY), until="refine")
    assert refined(survived) == straight


def test_a_process_lost_while_inferring_is_replaced_and_the_bits_stay_the_same(
    ray_cluster: None, source_model: Classifier, target: ImageStore, tmp_path: Path
) -> None:
    config = CONFIG.model_copy(update={"warm_start": "im", "warm_start_epochs": 12, "epochs": 1, "n_e": 1})
    straight = adapt(RunPlan([source_model], target, str(tmp_path / "straight"), config, LOCAL), until="refine")
    with once(lambda: member_processes(".stream"), kill_first):
        survived = adapt(RunPlan([source_model], target, str(tmp_path / "killed"), config, ON_RAY), until="refine")
    assert refined(survived) == refined(straight)


def test_sources_are_warmed_side_by_side_and_a_lost_process_leaves_the_bits_as_they_were(
    ray_cluster: None, source_model: Classifier, target: ImageStore, tmp_path: Path
) -> None:
    config = CONFIG.model_copy(update={"warm_start": "im", "warm_start_epochs": 20, "epochs": 1})
    sources = [source_model, source_model, source_model]  # more than there are seats
    straight = adapt(RunPlan(sources, target, str(tmp_path / "straight"), config, LOCAL), until="refine")

    def warming() -> list[int]:
        return member_processes(".stream") if list(tmp_path.glob("killed/checkpoints/warm-start-*")) else []

    with once(warming, kill_first):
        survived = adapt(RunPlan(sources, target, str(tmp_path / "killed"), config, ON_RAY), until="refine")
    assert refined(survived) == refined(straight)
    assert not list(tmp_path.glob("*/checkpoints/warm-start-*"))


def test_a_bug_in_one_of_several_calls_ends_the_others(ray_cluster: None) -> None:
    def count(number: int) -> Iterator[int]:
        yield number
        if number == 1:
            raise ZeroDivisionError("a bug")
        time.sleep(3600)

    with RayEngine(ON_RAY, n_e=2, name="calls") as engine, pytest.raises(RunFailed, match="a bug"):
        list(engine.side_by_side(count, [(0,), (1,), (2,)]))


def answer_and_die(marks: Path) -> Iterator[int]:
    yield os.getpid()
    wait_for((marks / "taken").exists)
    if not (marks / "died").exists():
        (marks / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_lost_after_its_answer_gives_it_again(ray_cluster: None, tmp_path: Path) -> None:
    with RayEngine(ON_RAY, n_e=1, name="again") as engine:
        answers = engine.stream(answer_and_die, tmp_path)
        first = next(answers)
        (tmp_path / "taken").touch()
        [second] = answers
    assert first != second


def own_pid() -> Iterator[int]:
    yield os.getpid()


def test_one_process_serves_all_stages_of_a_run(ray_cluster: None) -> None:
    with RayEngine(ON_RAY, n_e=2, name="stages") as engine:
        [first], [second] = list(engine.stream(own_pid)), list(engine.stream(own_pid))
        assert first == second != os.getpid()
        wait_for(lambda: len(member_processes()) == 2)  # the other member is loading meanwhile
        named = set(ray.util.list_named_actors())
    assert named >= {"adaplr-stages-member-0", "adaplr-stages-member-1"}  # what Ray's dashboard shows
    wait_for(lambda: not member_processes())


def test_a_bug_in_the_network_stops_the_run_at_once_with_its_traceback(
    ray_cluster: None, source_model: Classifier, target: ImageStore, tmp_path: Path
) -> None:
    with pytest.raises(RunFailed, match=r"member \d in epoch 1 raised(.|\n)*a bug in the user's network"):
        adapt(RunPlan([wicked(source_model, "raise", 8)], target, str(tmp_path), CONFIG, ON_RAY))
    wait_for(lambda: not member_processes())


def test_what_members_warn_of_comes_with_the_answer_of_their_epoch_and_stays_in_the_summary(
    ray_cluster: None, source_model: Classifier, target: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Seats, "listen", lambda seats: None)  # nobody is asked
    adapt(RunPlan([wicked(source_model, "warn", 8)], target, str(tmp_path), CONFIG, ON_RAY))
    assert json.loads((tmp_path / "summary.json").read_text())["warnings"].count("the disk is slow") == 1


def test_nan_logits_name_the_member_the_epoch_and_the_batch(
    ray_cluster: None, source_model: Classifier, target: ImageStore, tmp_path: Path
) -> None:
    with pytest.raises(RunFailed, match=r"member \d in epoch 1 diverged(.|\n)*epoch 1, batch 2"):
        adapt(RunPlan([wicked(source_model, "nan", 8)], target, str(tmp_path), CONFIG, ON_RAY))


def test_nan_logits_name_the_member_in_process_too(
    source_model: Classifier, target: ImageStore, tmp_path: Path
) -> None:
    models = [source_model, wicked(source_model, "nan", 8)]
    with pytest.raises(RunFailed, match=r"member 1 in epoch 1 diverged: (.|\n)*epoch 1, batch 2"):
        adapt(RunPlan(models, target, str(tmp_path), CONFIG, LOCAL))


def test_a_bug_met_while_inferring_is_told_without_a_traceback_of_ours(
    ray_cluster: None, source_model: Classifier, target: ImageStore, tmp_path: Path
) -> None:
    config = CONFIG.model_copy(update={"warm_start": "im", "n_e": 1})
    with pytest.raises(RunFailed, match=r"warm_start raised(.|\n)*a bug in the user's network"):
        adapt(RunPlan([wicked(source_model, "raise", 3)], target, str(tmp_path), config, ON_RAY))


def test_a_hung_member_is_named_and_given_up_when_that_is_allowed(
    ray_cluster: None, source_model: Classifier, target: ImageStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scaling = ON_RAY.model_copy(update={"epoch_timeout": 5.0, "max_restarts": 0, "max_lost_members": 1})
    models = [source_model, wicked(source_model, "hang", 8)]
    result = adapt(RunPlan(models, target, str(tmp_path), CONFIG, scaling), until="refine")
    assert [line["members"] for line in result.metrics] == [2, 1, 1, 1, 1, 1]
    assert "member 1 in epoch 1: hung" in caplog.text


def test_too_many_losses_end_the_run_and_leave_its_checkpoint(
    ray_cluster: None, straight: bytes, source_model: Classifier, target: ImageStore, tmp_path: Path
) -> None:
    scaling = ON_RAY.model_copy(update={"max_restarts": 0})
    lost = pytest.raises(RunFailed, match=r"member \d in epoch \d lost")
    with once(lambda: epochs_done(tmp_path, 3) and member_processes(), kill_first), lost:
        adapt(RunPlan([source_model], target, str(tmp_path), CONFIG, scaling), until="refine")
    assert list((tmp_path / "checkpoints").glob("manifest-*.json"))
    resumed = adapt(RunPlan([source_model], target, str(tmp_path), CONFIG, ON_RAY), until="refine")
    assert refined(resumed) == straight
