"""Keys in a URI are shown and written nowhere."""

import json
from pathlib import Path

import pytest

from ray_adaplr.cli.main import main
from ray_adaplr.data.store import ImageStore
from ray_adaplr.storage.secrets import redacted


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://KEY:SECRET@bucket/a b", "s3://***@bucket/a b"),
        ("from s3://K:a%2Fb@x/1 to gs://L:c@y/2", "from s3://***@x/1 to gs://***@y/2"),
        ("s3://b/run?access_key=AK&region=eu", "s3://b/run?access_key=***&region=eu"),
        ("http://head:8265", "http://head:8265"),
        ("photos/me@home:1", "photos/me@home:1"),
    ],
)
def test_keys_are_cut_out_of_any_text(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_an_error_sentence_shows_no_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "nothere://KEY:SECRET@bucket/run"]) == 2
    told = capsys.readouterr().err
    assert "SECRET" not in told
    assert "***@bucket" in told


def test_a_run_s_files_hold_no_keys_of_its_command(
    source_folder: Path, digit_stores: dict[str, ImageStore], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, out = digit_stores["optdigits"].paths[0], f"file://KEY:SECRET@{tmp_path}/run"
    said = ["--engine", "local", "--set", "warm_start=off", "--set", "epochs=1", "--set", "distill_epochs=1"]
    code = main(["adapt", "--source", str(source_folder), "--target", target, "--out", out, *said])
    told = capsys.readouterr()
    assert "SECRET" not in told.out + told.err
    if code == 0:  # where pyarrow takes such a URI for a local folder
        for name in ("run.json", "summary.json", "report.html", "config.toml"):
            assert "SECRET" not in (tmp_path / "run" / name).read_text()
        assert "***@" in json.loads((tmp_path / "run/run.json").read_text())["command"]
