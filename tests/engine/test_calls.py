"""Calls of functions in a run's processes: which one serves, what a lost one gives again, and what a bug ends."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from engine.test_faults import ON_RAY, member_processes, wait_for
from ray import cloudpickle
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ray_adaplr.engine.engine import RayEngine
from ray_adaplr.errors import RunFailed

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test's module
pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def two_seats(ray_cluster: None) -> Iterator[RayEngine]:
    """An engine for tests of calls: its processes take longer to load than those tests."""
    with RayEngine(ON_RAY, n_e=2, name="calls") as engine:
        yield engine
    wait_for(lambda: not member_processes())


def test_one_process_serves_all_stages_of_a_run(two_seats: RayEngine) -> None:
    first, second = (two_seats.ask(os.getpid, does="tells its pid") for _ in range(2))
    assert first == second != os.getpid()
    wait_for(lambda: len(member_processes()) == 2)  # the other member is loading meanwhile
    named = set(ray.util.list_named_actors())
    assert named >= {"adaplr-calls-member-0", "adaplr-calls-member-1"}  # what Ray's dashboard shows


def answer_and_die(marks: Path) -> Iterator[int]:
    yield os.getpid()
    wait_for((marks / "taken").exists)
    if not (marks / "died").exists():
        (marks / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_lost_after_its_answer_gives_it_again(two_seats: RayEngine, tmp_path: Path) -> None:
    answers = two_seats.stream(answer_and_die, tmp_path, does="answers and dies")
    first = next(answers)
    (tmp_path / "taken").touch()
    [second] = answers
    assert first != second


def test_a_bug_in_one_of_several_calls_ends_the_others(two_seats: RayEngine) -> None:
    def count(number: int) -> Iterator[int]:
        yield number
        if number == 1:
            raise ZeroDivisionError("a bug")
        time.sleep(3600)

    with pytest.raises(RunFailed, match="a bug"):
        list(two_seats.side_by_side(count, [(0,), (1,), (2,)], does="counts"))
    wait_for(lambda: not member_processes())


@ray.remote(num_cpus=0)
def ranks_of_an_engine() -> int:
    with RayEngine(ON_RAY.model_copy(update={"cpus_per_member": 0.1}), n_e=2, name="within") as engine:
        return engine.ranks


@pytest.mark.parametrize("bundles", [1, 2])
def test_a_placement_group_that_is_not_a_trials_is_left_to_its_owner(ray_cluster: None, bundles: int) -> None:
    group = ray.util.placement_group([{"CPU": 0.1}] * bundles)
    strategy = PlacementGroupSchedulingStrategy(group)
    try:
        assert ray.get(ranks_of_an_engine.options(scheduling_strategy=strategy).remote(), timeout=120) == 1
    finally:
        ray.util.remove_placement_group(group)
