"""A real run, killed while an epoch trains: its folder can be reported on and watched."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from ray_adaplr.cli.main import main
from ray_adaplr.data.store import ImageStore

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def killed(source_folder: Path, digit_stores: dict[str, ImageStore], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of 500 epochs that was killed after two."""
    out = tmp_path_factory.mktemp("killed") / "run"
    data = ["--source", str(source_folder), "--target", digit_stores["optdigits"].paths[0], "--out", str(out)]
    settings = ["--engine", "local", "--quiet", "--set=epochs=500", "--set=warm_start=off"]
    command = [sys.executable, "-m", "ray_adaplr", "adapt", *data, *settings]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as run:
        deadline = time.monotonic() + 600
        while not (out / "metrics.jsonl").exists() or (out / "metrics.jsonl").read_text().count("\n") < 2:
            assert run.poll() is None, run.stderr.read() if run.stderr else ""
            assert time.monotonic() < deadline
            time.sleep(0.02)
        run.kill()
    return out


def test_its_report_shows_the_epochs_that_ended(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(killed)]) == 0
    assert "report.html" in capsys.readouterr().out
    page = (killed / "report.html").read_text()
    epochs = (killed / "metrics.jsonl").read_text().count("\n")
    assert f"unfinished, {epochs} of 500 epochs" in page
    assert "Gamma against noise" in page
    assert "The labels are not written yet" in page


def test_it_can_be_watched(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(killed), "--once"]) == 0
    text = capsys.readouterr().out
    assert "refining, epoch " in text
    assert "of 500" in text
    assert "gamma" in text
