"""Every wait has an end: a stopped process is found and replaced in any stage, and a dead host is told at once."""

import contextlib
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from engine.test_faults import member_processes, once
from local_runs import LOCAL, bits
from ray import cloudpickle

from ray_adaplr.cli.main import main
from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine import placement, waiting
from ray_adaplr.engine.engine import RayEngine
from ray_adaplr.engine.ensemble import RayEnsemble
from ray_adaplr.engine.team import Team
from ray_adaplr.engine.waiting import LOADING, Patience, Watched
from ray_adaplr.errors import InputError, RunFailed
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.storage.models import load_model

cloudpickle.register_pickle_by_value(sys.modules[__name__])
# On a busy machine a process that is well may be silent for seconds: it may start again as often as that happens.
ON_RAY = ScalingConfig(cpus_per_member=0.5, max_restarts=20)
CONFIG = Config(
    epochs=4, distill_epochs=12, warmup=1, alpha=0.5, distill_on="all", n_e=1, warm_start_epochs=20, pretrain_epochs=12
)


def test_the_first_step_has_hours_and_later_ones_follow_from_the_slowest() -> None:
    patience = Patience()
    assert patience.limit == waiting.FIRST_STEP
    patience.measured(2.0)
    assert patience.limit == waiting.AT_LEAST
    patience.measured(100.0)
    patience.measured(50.0)
    assert patience.limit == waiting.TIMES * 100


def test_a_limit_that_the_user_gave_holds_whatever_was_measured() -> None:
    patience = Patience(told=5.0)
    patience.measured(100.0)
    assert patience.limit == 5.0


@contextlib.contextmanager
def stop_when(condition: Callable[[], bool]) -> Iterator[list[int]]:
    """Meanwhile SIGSTOP the first member's process once a condition holds; whoever was stopped is in the list."""
    stopped: list[int] = []

    def stop(pids: list[int]) -> None:
        stopped.append(pids[0])
        os.kill(pids[0], signal.SIGSTOP)

    with once(lambda: condition() and member_processes(), stop):
        yield stopped


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Default options but for the silence that is allowed, which is a minute."""
    monkeypatch.setattr(waiting, "SILENCE", 4.0)
    yield
    for pid in member_processes():
        os.kill(pid, signal.SIGCONT)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("unrendered")
def test_a_stopped_process_hangs_no_stage_of_a_run(
    ray_cluster: None,
    impatient: None,
    source_folder: Path,
    digit_stores: dict[str, ImageStore],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run, target = tmp_path / "run", digit_stores["optdigits"]
    config = CONFIG.model_copy(update={"distill_epochs": 60})  # so that a strike does not come after the last
    moments = {
        "infer": lambda: (run / "checkpoints/warm-start-0.pt").exists(),
        "refine": lambda: (run / "metrics.jsonl").exists(),
        "distill": lambda: (run / "checkpoints/distill.pt").exists(),
    }
    with contextlib.ExitStack() as meanwhile:
        stopped = {stage: meanwhile.enter_context(stop_when(moment)) for stage, moment in moments.items()}
        survived = adapt(RunPlan([load_model(source_folder)], target, str(run), config, ON_RAY))
    straight = adapt(RunPlan([load_model(source_folder)], target, str(tmp_path / "straight"), config, LOCAL))
    assert "gave no answer" in caplog.text
    assert [stage for stage, pids in stopped.items() if f"pid {pids[0]}" not in caplog.text] == []
    assert bits(survived) == bits(straight)


def step_until(there: Path) -> Iterator[int]:
    while not there.exists():
        time.sleep(0.05)
    yield 1


@pytest.mark.ray
def test_a_long_wait_says_whom_it_is_for(
    ray_cluster: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(waiting, "_SAY_AFTER", 0.5)
    monkeypatch.setattr(waiting, "_TICK", 0.25)
    told = re.compile(r"waiting for the process that takes a step \(node .*, pid ")
    said, engine = tmp_path / "said", RayEngine(ON_RAY, n_e=1, name="slow")
    with once(lambda: told.search(caplog.text), lambda _: said.touch()), engine:
        assert list(engine.stream(step_until, said, does="takes a step")) == [1]


class SlowToLoad:
    """An actor that cannot say where it is before a file is there."""

    def __init__(self, there: Path) -> None:
        next(step_until(there))

    @ray.method(concurrency_group="pulse")
    def whereabouts(self) -> str:
        return "here"


@pytest.mark.ray
def test_a_long_wait_for_a_process_to_load_says_whom_it_is_for_and_ends(
    ray_cluster: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(waiting, "_SAY_AFTER", 0.5)
    monkeypatch.setattr(waiting, "_TICK", 0.25)
    said = tmp_path / "said"
    actor = ray.remote(num_cpus=0, concurrency_groups={"pulse": 1})(SlowToLoad).remote(said)
    watched = Watched(actor, "member 1")
    with pytest.raises(TimeoutError, match="member 1 did not start within 0"):
        watched.ready(0.3)
    told = re.compile("waiting for member 1 to start and load torch since .*; given up after 300 s")
    with once(lambda: told.search(caplog.text), lambda _: said.touch()):
        watched.ready(LOADING)
    assert watched.where == "here"


def test_a_local_ray_that_does_not_start_in_time_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen on a machine with twenty busy processes on two cores."""

    def init(**options: Any) -> None:
        raise Exception("The current node timed out during startup. This could happen because ...")

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", init)
    told = pytest.raises(RunFailed, match=r"did not start in time; .* again \(a sweep, .*, with --resume\)")
    with told, placement.connected(ScalingConfig(address="local")):  # which leaves no token to the session's Ray
        pass


def test_a_host_that_does_not_answer_is_told_and_nothing_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, source_folder: Path, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with socket.socket() as silent:  # bound and not listening: nobody answers there
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(InputError, match=f"no Ray cluster answers at {address}"):
            placement.connect(ScalingConfig(address=address))
        data = ["--source", str(source_folder), "--target", digit_stores["optdigits"].paths[0]]
        for command in (["adapt", *data], ["tune", "alpha", *data], ["pretrain", "--data", data[-1]]):
            assert main([*command, "--address", address, "--out", str(tmp_path / "new/out")]) == 2
            assert list(tmp_path.iterdir()) == []


def test_what_is_no_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(address: str, **options: Any) -> None:
        raise ValueError(f"Invalid address format: {address}")

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr(placement, "with_token", lambda call, _: call())
    with pytest.raises(InputError, match="--address foo: Invalid address format: foo; name a cluster as HOST:PORT"):
        placement.connect(ScalingConfig(address="foo"))


def test_a_second_command_on_a_box_with_gpus_is_warned_of_the_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray = {"is_initialized": False, "init": None, "cluster_resources": {"GPU": 2.0}}
    for name, answer in ray.items():
        monkeypatch.setattr(f"ray.{name}", lambda answer=answer, **_: answer)
    for name in ("keep_token_private", "own"):
        monkeypatch.setattr(placement, name, lambda: None)
    monkeypatch.setattr(placement, "with_token", lambda call, _: call())
    monkeypatch.setattr(placement, "OwnRay", lambda: SimpleNamespace(neighbours=1))
    placement.connect(ScalingConfig())
    assert "1 other runs on this machine share the same GPUs: give each its own by CUDA_VISIBLE_DEVICES" in caplog.text


def test_an_unreachable_network_is_told_within_twenty_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, timeout: float) -> None:
        assert timeout <= 20
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", hang)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(InputError, match=r"no Ray cluster answers at 10\.255\.255\.1:6379"):
        placement.connect(ScalingConfig(address="10.255.255.1:6379"))


@pytest.mark.parametrize(
    ("has_node", "limits"),
    [
        ([False, False], [600.0]),
        ([False, True], [600.0, LOADING]),
        ([True, True], [LOADING]),
        ([True, False], [LOADING, 600.0]),
    ],
    ids=["no node comes", "a node comes late", "it has a node", "it loses its node"],
)
def test_a_member_without_a_node_has_the_limit_of_a_wait_for_nodes_and_one_with_a_node_has_time_to_load(
    has_node: list[bool], limits: list[float]
) -> None:
    waited, found = [], iter(has_node)

    class Late:
        def ready(self, timeout: float) -> None:
            waited.append(timeout)
            raise TimeoutError

    team = Team.__new__(Team)
    team._numbers, team.watched, team._joining = range(1), [Late()], {}  # type: ignore[list-item]
    team._seats = SimpleNamespace(has_node=lambda seat: next(found))  # type: ignore[assignment]
    ensemble = RayEnsemble.__new__(RayEnsemble)
    ensemble._scaling, ensemble._patience = ScalingConfig(wait_for_nodes=600, cpus_per_member=1), Patience()
    ensemble._teams = {0: team}
    with pytest.raises(TimeoutError):
        ensemble._await(0, {})
    assert waited == limits
