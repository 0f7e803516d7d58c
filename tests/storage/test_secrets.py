"""Keys in a URI are shown and written nowhere."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from s3_server import S3Place

from ray_adaplr.cli.main import main
from ray_adaplr.config import Config
from ray_adaplr.core.models import Classifier
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError
from ray_adaplr.stages.plan import class_prior
from ray_adaplr.stages.result import Result
from ray_adaplr.storage import lease
from ray_adaplr.storage.folder import Folder, joined, parent_of
from ray_adaplr.storage.lease import hold
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


def test_a_whole_run_in_a_bucket_writes_and_shows_no_keys(
    source_folder: Path,
    digit_stores: dict[str, ImageStore],
    s3: S3Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    unrendered: None,
) -> None:
    monkeypatch.setattr(lease, "SECONDS", 12.0)
    secret, cache = "sEcReT0fTheBucket", tmp_path / "cache"
    monkeypatch.setenv("ADAPLR_CACHE", str(cache))
    base = s3.uri("")
    open_uri = base.replace("s3://", f"s3://{os.environ['AWS_ACCESS_KEY_ID']}:{secret}@")
    source, target, out = (joined(open_uri, name) for name in ("source", "target", "run"))
    np.savez(tmp_path / "digits.npz", images=digit_stores["optdigits"].read(np.arange(300)))
    for file in ("model.json", "model.safetensors"):
        Folder(source).write(file, (source_folder / file).read_bytes())
    settings = joined(open_uri, "mine.toml")
    folder, name = parent_of(settings)
    folder.write(name, 'epochs = 2\nwarm_start = "off"\ndistill_epochs = 1\ndistill_on = "all"\n')
    assert main(["prepare", str(tmp_path / "digits.npz"), "--out", target]) == 0
    adapt = ["adapt", "--source", source, "--target", target, "--out", out, "--config", settings, "--engine", "local"]
    assert main(adapt) == 0
    assert main(adapt) == 0, "again, on what is done"
    assert main([*adapt, "--set", "epochs=3"]) == 2, "a refusal names the folder"
    assert main(["report", out]) == 0
    with hold(Folder(out)):
        assert main([*adapt, "--force"]) == 2, "and so does one who waits for another"
    assert "is held by" in caplog.text
    told = capfd.readouterr()
    assert "***@" in told.out
    assert secret not in told.out + told.err + caplog.text
    written = {name: Folder(base).read(name) for name in s3.keys(base)}
    assert {"run/run.json", "run/report.html", "run/labels.csv", "target/store.json"} <= set(written)
    written |= {str(path): path.read_bytes() for path in cache.rglob("*") if path.is_file()}
    assert not [name for name, content in written.items() if secret.encode() in content or secret in name]


def test_settings_that_a_run_writes_down_take_no_keys() -> None:
    config = Config(prior="s3://KEY:SECRET@bucket/shares.txt")
    with pytest.raises(InputError, match="keys do not belong into settings") as told:
        class_prior(config, torch.ones(3))
    assert "SECRET" not in str(told.value)


def test_a_result_shows_no_keys(source_model: Classifier) -> None:
    run = SimpleNamespace(folder=SimpleNamespace(uri="s3://KEY:SECRET@bucket/run"), done=lambda _name: False)
    assert repr(Result(run, source_model)) == "Result(s3://***@bucket/run: not finished)"  # type: ignore[arg-type]
