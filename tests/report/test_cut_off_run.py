"""A real run, cut off while an epoch trains: its folder can be reported on and watched."""

from pathlib import Path
from typing import Any

import pytest
from local_runs import LOCAL

from ray_adaplr.cli.main import main
from ray_adaplr.config import Config
from ray_adaplr.data.store import ImageStore
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.storage.models import load_model


@pytest.fixture(scope="module")
def cut_off(source_folder: Path, digit_stores: dict[str, ImageStore], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of 500 epochs that was cut off after two."""
    out = tmp_path_factory.mktemp("cut-off") / "run"
    config = Config(epochs=500, warm_start="off")

    def stop(line: dict[str, Any]) -> None:
        if line["epoch"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adapt(RunPlan([load_model(source_folder)], digit_stores["optdigits"], str(out), config, LOCAL), watch=stop)
    return out


def test_its_report_shows_the_epochs_that_ended(cut_off: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(cut_off)]) == 0
    assert "report.html" in capsys.readouterr().out
    page = (cut_off / "report.html").read_text()
    assert "unfinished, 2 of 500 epochs" in page
    assert "Gamma against noise" in page
    assert "The labels are not written yet" in page


def test_it_can_be_watched(cut_off: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(cut_off), "--once"]) == 0
    text = capsys.readouterr().out
    assert "refining, epoch 2 of 500" in text
    assert "gamma" in text
