"""Nothing of a Ray that a command started stays behind; what others started, or still use, does."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ray_adaplr.config import ScalingConfig
from ray_adaplr.engine.own_ray import MARK, living, remove_leftovers
from ray_adaplr.engine.placement import connected
from ray_adaplr.errors import RunFailed


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """The folder of a past session, as this product leaves it when it crashes."""
    folder = tmp_path / "session_2026-01-01_00-00-00_000000_1"
    (folder / "logs").mkdir(parents=True)
    (folder / MARK).touch()
    return folder


def test_a_past_session_of_ours_goes_and_those_of_others_stay(session: Path) -> None:
    (session.parent / "session_latest").symlink_to(session)
    other = session.parent / "session_2026-01-01_00-00-00_000000_2"
    (other / "logs").mkdir(parents=True)
    remove_leftovers(session.parent)
    assert list(session.parent.iterdir()) == [other]


def test_what_a_ray_that_did_not_start_has_left_goes_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [tmp_path / f"ray/session_2026-01-01_00-00-0{i}_000000_{os.getpid()}" for i in range(2)]

    def init(**options: object) -> None:
        (places[1] / "logs").mkdir(parents=True)
        raise Exception("The current node timed out during startup. This could happen because ...")

    (places[0] / "logs").mkdir(parents=True)  # of an earlier process that had the same number
    os.utime(places[0], (0, 0))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", init)
    with pytest.raises(RunFailed, match="did not start in time"), connected(ScalingConfig(address="local")):
        pass
    remove_leftovers(tmp_path / "ray")
    assert list((tmp_path / "ray").iterdir()) == [places[0]]


def test_a_session_whose_starter_lives_stays(session: Path) -> None:
    with (session / MARK).open() as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        remove_leftovers(session.parent)
        assert session.exists()
        assert living(session.parent) == [session]
    assert living(session.parent) == []
    remove_leftovers(session.parent)
    assert not session.exists()


def test_a_session_that_a_process_has_a_file_of_stays_until_that_has_ended(session: Path) -> None:
    with (session / "logs/raylet.out").open("w") as log:
        reader = subprocess.Popen(["sleep", "600"], stdout=log)
    remove_leftovers(session.parent)
    assert reader.poll() is None
    assert session.exists()
    reader.kill()
    reader.wait()
    remove_leftovers(session.parent)
    assert not session.exists()


@pytest.mark.parametrize("script", ["ray/dashboard/agent.py", "ray/_private/runtime_env/agent/main.py", ""])
def test_an_agent_of_a_session_that_is_over_is_ended(session: Path, tmp_path: Path, script: str) -> None:
    with (session / "logs/agent.out").open("w") as log:
        if script:  # as Ray up to 2.5x starts it
            file = tmp_path / script
            file.parent.mkdir(parents=True)
            file.write_text("import time\ntime.sleep(600)\n")
            agent = subprocess.Popen([sys.executable, "-u", str(file), "--log-dir", "somewhere"], stdout=log)
        else:
            agent = subprocess.Popen(["bash", "-c", "exec -a ray::DashboardAgent sleep 600"], stdout=log)
            wait = f"until grep -q ^ray:: /proc/{agent.pid}/cmdline; do :; done"
            subprocess.run(["bash", "-c", wait], timeout=600, check=True)
    remove_leftovers(session.parent)
    assert agent.wait(timeout=600) < 0
    assert not session.exists()
