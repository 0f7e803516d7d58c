"""Stopping from outside: Ctrl-C, SIGTERM, SIGKILL of the run or of its Ray, a second run in its folder, a full disk."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_runs import LOCAL, bits

from ray_adaplr.cli.main import main
from ray_adaplr.config import Config
from ray_adaplr.core.models import Classifier
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.own_ray import remove_leftovers
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.stages.record import EpochListeners
from ray_adaplr.stages.refine import EpochOutcome

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unrendered")]
EPOCHS = 8
SETTINGS = {"epochs": EPOCHS, "distill_epochs": 1, "distill_on": "all", "warm_start": "off"}
MEMBERS = {"local": 2, "ray": 1}  # a process on Ray takes seconds to load
# `python -m ray_adaplr`, but its last epoch of refinement does not end before a file is there, or the tests are gone.
# So a strike comes in time however busy the machine is. Short sleeps, because Ray's loss interrupts no long one.
# Each process notes its own epochs: lines of metrics.jsonl may be those of an earlier one.
PROGRAM = f"""
import contextlib, os, runpy, sys, time
from ray_adaplr.stages.record import EpochListeners

def told(self, outcome, tell=EpochListeners.__call__):
    with contextlib.suppress(OSError), open(f"{{notes}}-{{os.getpid()}}", "a") as file:  # the disk may be full
        file.write(f"{{outcome.epoch}}\\n")
    while outcome.epoch == {EPOCHS - 1} and not os.path.exists(may_end) and os.getppid() == parent:
        time.sleep(0.02)
    return tell(self, outcome)

may_end, notes, parent = sys.argv.pop(1), sys.argv.pop(1), os.getppid()
EpochListeners.__call__ = told
runpy.run_module("ray_adaplr", run_name="__main__")
"""


def command(source: Path, target: ImageStore, out: Path, engine: str = "local", members: int = 0) -> list[str]:
    arguments = ["adapt", "--source", str(source), "--target", target.paths[0], "--out", str(out), "--quiet"]
    settings = SETTINGS | {"n_e": members or MEMBERS[engine]}
    return [*arguments, *(f"--set={name}={value}" for name, value in settings.items()), "--engine", engine]


def start(
    source: Path, target: ImageStore, out: Path, engine: str = "local", may_end: Path = Path("/nowhere")
) -> subprocess.Popen[str]:
    """The command in a process of its own, to be stopped; it stands still before its end until a file is there."""
    arguments = [str(may_end), f"{out}-epochs", *command(source, target, out, engine)]
    program = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for_epochs(run: subprocess.Popen[str], out: Path, count: int) -> None:
    """Wait until this very process has done so many epochs, or stands still before the last."""
    deadline, notes = time.monotonic() + 600, Path(f"{out}-epochs-{run.pid}")
    done: list[str] = []
    while len(done) < count and str(EPOCHS - 1) not in done:
        assert run.poll() is None, run.stderr.read() if run.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.02)
        done = notes.read_text().splitlines() if notes.exists() else []


@pytest.fixture
def target(digit_stores: dict[str, ImageStore]) -> ImageStore:
    return digit_stores["optdigits"]


def finish(source: Path, target: ImageStore, out: Path, begun_on: str = "local") -> list[bytes]:
    """The same command to its end, in this process, which spares it the time to load."""
    assert main(command(source, target, out, members=MEMBERS[begun_on])) == 0
    return bits(out)


@pytest.fixture(scope="module")
def straight(
    source_folder: Path, digit_stores: dict[str, ImageStore], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    """Bits of the undisturbed runs, by where the disturbed ones begin."""
    place, target = tmp_path_factory.mktemp("straight"), digit_stores["optdigits"]
    return {engine: finish(source_folder, target, place / engine, engine) for engine in MEMBERS}


def test_a_stopped_run_says_how_to_go_on_and_goes_on_to_the_same_bits(
    source_folder: Path, target: ImageStore, tmp_path: Path, straight: dict[str, bytes]
) -> None:
    run = start(source_folder, target, tmp_path / "run")
    wait_for_epochs(run, tmp_path / "run", 3)
    run.send_signal(signal.SIGINT)
    _, error = run.communicate(timeout=600)
    assert run.returncode == 130
    assert "the same command continues" in error
    assert "Traceback" not in error
    assert list((tmp_path / "run/checkpoints").glob("manifest-*.json"))
    assert finish(source_folder, target, tmp_path / "run") == straight["local"]


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the runs of a test keep their Ray's sessions."""
    with tempfile.TemporaryDirectory(prefix="ra-", dir="/tmp") as place:
        monkeypatch.setenv("RAY_TMPDIR", place)
        yield Path(place) / "ray"


def child(parent: int, name: str) -> int:
    """The pid of the child process of that name."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid, rest = status.read_text().split(" (", 1)
            comm, fields = rest.rsplit(") ", 1)
            if comm == name and int(fields.split()[1]) == parent:
                return int(pid)
    raise LookupError(f"{parent} has no child {name}")


def test_a_run_whose_ray_is_lost_in_three_ways_says_each_time_how_to_go_on_and_ends_with_the_same_bits(
    source_folder: Path, target: ImageStore, tmp_path: Path, straight: dict[str, bytes], sessions: Path
) -> None:
    lost: set[Path] = set()
    for what in ("raylet", "gcs_server", "all"):
        run = start(source_folder, target, tmp_path / "run", "ray")
        wait_for_epochs(run, tmp_path / "run", 2)
        if what == "all":
            os.killpg(run.pid, signal.SIGTERM)
        else:
            os.kill(child(run.pid, what), signal.SIGKILL)
        output, error = run.communicate(timeout=600)
        assert run.returncode == 1 or (what, run.returncode) == ("all", 130)
        assert "the same command continues from the last checkpoint" in error
        assert len(error.splitlines()) == 1 or (what == "all" and "Traceback" not in error)
        assert output == ""
        assert not any(session.exists() for session in lost)  # logs stay until the next start
        lost = set(sessions.glob("session_2*"))
        assert what == "all" or any(str(session) in error for session in lost)
    deadline = time.monotonic() + 600
    while list(sessions.glob("session_2*")) and time.monotonic() < deadline:  # what Ray ended hard may take a moment
        remove_leftovers(sessions)
    assert not list(sessions.glob("session_2*"))
    assert finish(source_folder, target, tmp_path / "run", "ray") == straight["ray"]


def test_a_run_lets_no_other_into_its_folder_and_killed_again_and_again_ends_with_the_same_bits(
    source_folder: Path,
    target: ImageStore,
    tmp_path: Path,
    straight: dict[str, bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    for _ in range(2):
        run = start(source_folder, target, tmp_path / "run")
        wait_for_epochs(run, tmp_path / "run", 2)
        assert main(command(source_folder, target, tmp_path / "run")) == 2
        assert f"in use by a live run (pid {run.pid} " in capsys.readouterr().err
        run.kill()
        run.communicate()
    assert finish(source_folder, target, tmp_path / "run") == straight["local"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("mount is not allowed here")
    yield place
    subprocess.run(["umount", "-l", place], check=False)


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError):
        (disk / "ballast").write_bytes(b"x" * (3 << 20))


def make_room(disk: Path) -> None:
    (disk / "ballast").unlink()
    subprocess.run(["mount", "-o", "remount,size=50m", disk], check=True)


def test_a_full_disk_keeps_the_earlier_checkpoint_and_the_run_goes_on_with_space(
    source_folder: Path, target: ImageStore, tmp_path: Path, straight: dict[str, bytes], disk: Path
) -> None:
    run = start(source_folder, target, disk / "run", may_end=tmp_path / "full")
    wait_for_epochs(run, disk / "run", 2)
    fill(disk)
    (tmp_path / "full").touch()
    _, error = run.communicate(timeout=600)
    assert run.returncode == 1
    assert "No space left" in error
    assert "Traceback" not in error
    make_room(disk)
    assert finish(source_folder, target, disk / "run") == straight["local"]


@pytest.mark.ray
def test_a_member_that_finds_the_disk_full_ends_the_run_with_the_same_words(
    ray_cluster: None, source_folder: Path, target: ImageStore, straight: dict[str, bytes], disk: Path, capfd: Any
) -> None:
    told = EpochListeners.__call__

    def fill_after_two(listeners: EpochListeners, outcome: EpochOutcome) -> dict[str, Any]:
        line = told(listeners, outcome)
        if outcome.epoch == 1:
            fill(disk)
        return line

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EpochListeners, "__call__", fill_after_two)
        assert main(command(source_folder, target, disk / "run", "ray")) == 1
    error = capfd.readouterr().err
    assert "No space left" in error
    assert "Traceback" not in error
    assert "ray::" not in error
    make_room(disk)
    assert finish(source_folder, target, disk / "run", "ray") == straight["ray"]


def test_storage_without_permission_is_told(source_model: Classifier, target: ImageStore) -> None:
    from ray_adaplr.errors import InputError

    with pytest.raises(InputError, match="cannot write to /proc/none"):
        adapt(RunPlan([source_model], target, "/proc/none", Config(), LOCAL))
