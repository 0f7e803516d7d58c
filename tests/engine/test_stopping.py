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

from ray_adaplr.cli.main import main
from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.own_ray import remove_leftovers
from ray_adaplr.stages.adapt import RunPlan, adapt

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unrendered")]
SETTINGS = {"n_e": 2, "epochs": 20, "distill_epochs": 1, "distill_on": "all", "warm_start": "off"}


def command(source: Path, target: ImageStore, out: Path, engine: str = "local") -> list[str]:
    arguments = ["adapt", "--source", str(source), "--target", target.paths[0], "--out", str(out), "--quiet"]
    settings = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    return [*arguments, *settings, "--engine", engine]


def start(*arguments: Any) -> subprocess.Popen[str]:
    """The command in a process of its own, to be stopped."""
    program = [sys.executable, "-m", "ray_adaplr", *command(*arguments)]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for_epochs(run: subprocess.Popen[str], out: Path, count: int) -> None:
    deadline = time.monotonic() + 600
    while not (out / "metrics.jsonl").exists() or len((out / "metrics.jsonl").read_text().splitlines()) < count:
        assert run.poll() is None, run.stderr.read() if run.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def target(digit_stores: dict[str, ImageStore]) -> ImageStore:
    return digit_stores["optdigits"]


def bits(out: Path) -> bytes:
    return (out / "labels.parquet").read_bytes() + (out / "target_model/model.safetensors").read_bytes()


def finish(source: Path, target: ImageStore, out: Path) -> bytes:
    """The same command to its end, in this process, which spares it the time to load."""
    assert main(command(source, target, out)) == 0
    return bits(out)


@pytest.fixture(scope="module")
def straight(
    source_folder: Path, digit_stores: dict[str, ImageStore], tmp_path_factory: pytest.TempPathFactory
) -> bytes:
    """Bits of the undisturbed run."""
    return finish(source_folder, digit_stores["optdigits"], tmp_path_factory.mktemp("straight") / "run")


def test_a_stopped_run_says_how_to_go_on_and_goes_on_to_the_same_bits(
    source_folder: Path, target: ImageStore, tmp_path: Path, straight: bytes
) -> None:
    run = start(source_folder, target, tmp_path / "run")
    wait_for_epochs(run, tmp_path / "run", 3)
    run.send_signal(signal.SIGINT)
    _, error = run.communicate(timeout=600)
    assert run.returncode == 130
    assert "the same command continues" in error
    assert "Traceback" not in error
    assert list((tmp_path / "run/checkpoints").glob("manifest-*.json"))
    assert finish(source_folder, target, tmp_path / "run") == straight


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
    source_folder: Path, target: ImageStore, tmp_path: Path, straight: bytes, sessions: Path
) -> None:
    lost: set[Path] = set()
    for epochs, what in ((2, "raylet"), (6, "gcs_server"), (10, "all")):
        run = start(source_folder, target, tmp_path / "run", "ray")
        wait_for_epochs(run, tmp_path / "run", epochs)
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
    assert finish(source_folder, target, tmp_path / "run") == straight


def test_a_run_killed_again_and_again_ends_with_the_same_bits(
    source_folder: Path, target: ImageStore, tmp_path: Path, straight: bytes
) -> None:
    for epochs in (2, 13):
        run = start(source_folder, target, tmp_path / "run")
        wait_for_epochs(run, tmp_path / "run", epochs)
        run.kill()
        run.communicate()
    assert finish(source_folder, target, tmp_path / "run") == straight


def test_a_second_run_in_the_same_folder_is_refused_while_the_first_lives(
    source_folder: Path, target: ImageStore, tmp_path: Path, straight: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    first = start(source_folder, target, tmp_path / "run")
    wait_for_epochs(first, tmp_path / "run", 1)
    assert main(command(source_folder, target, tmp_path / "run")) == 2
    assert f"in use by a live run (pid {first.pid} " in capsys.readouterr().err
    first.kill()
    first.communicate()
    assert finish(source_folder, target, tmp_path / "run") == straight


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_a_full_disk_keeps_the_earlier_checkpoint_and_the_run_goes_on_with_space(
    engine: str, source_folder: Path, target: ImageStore, tmp_path: Path, straight: bytes
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mount is not allowed here")
    try:
        run = start(source_folder, target, disk / "run", engine)
        wait_for_epochs(run, disk / "run", 2)
        ballast = disk / "ballast"
        with contextlib.suppress(OSError):  # now it is full
            ballast.write_bytes(b"x" * (3 << 20))
        _, error = run.communicate(timeout=600)
        assert run.returncode == 1
        assert "No space left" in error
        assert "Traceback" not in error
        assert "ray::" not in error
        ballast.unlink()
        subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
        assert finish(source_folder, target, disk / "run") == straight
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def test_storage_without_permission_is_told(source_model: Classifier, target: ImageStore) -> None:
    from ray_adaplr.errors import InputError

    with pytest.raises(InputError, match="cannot write to /proc/none"):
        adapt(RunPlan([source_model], target, "/proc/none", Config(), ScalingConfig(engine="local")))
