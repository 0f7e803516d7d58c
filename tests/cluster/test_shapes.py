"""Placement on real shapes: which member sees which GPU, asked of Ray with made-up GPUs."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from hosts import Host

pytestmark = [pytest.mark.slow, pytest.mark.multinode, pytest.mark.hosts]


@pytest.fixture(scope="module")
def seats() -> dict[str, list[tuple[str, str | None]]]:
    with Host() as host:
        done = host.run(sys.executable, str(Path(__file__).with_name("shapes.py")))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def gpus(seats: dict[str, list[tuple[str, str | None]]], shape: str) -> list[str | None]:
    return [gpu for _, gpu in seats[shape]]


def test_three_members_share_a_single_gpu(seats: dict) -> None:
    assert gpus(seats, "one GPU") == ["0", "0", "0"]


def test_two_gpus_are_both_used(seats: dict) -> None:
    assert sorted(Counter(gpus(seats, "two GPUs")).items()) == [("0", 2), ("1", 1)]


def test_on_four_gpus_every_member_has_its_own(seats: dict) -> None:
    own = gpus(seats, "four GPUs")
    assert len(set(own)) == 3
    assert set(own) <= {"0", "1", "2", "3"}


def test_three_nodes_with_a_gpu_each_seat_a_member_each(seats: dict) -> None:
    assert len({node for node, _ in seats["three nodes with a GPU each"]}) == 3
    assert gpus(seats, "three nodes with a GPU each") == ["0", "0", "0"]


def test_without_gpus_members_see_none(seats: dict) -> None:
    assert all(not gpu for gpu in gpus(seats, "no GPU"))
