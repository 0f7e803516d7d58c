"""`sweep.json`: which sweep a folder holds."""

from pathlib import Path

import pytest
from s3_server import S3Place

from ray_adaplr.cli.main import main
from ray_adaplr.config import Config
from ray_adaplr.core.models import Classifier
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError
from ray_adaplr.storage.folder import Folder, joined
from ray_adaplr.sweep.options import SweepJob, SweepOptions
from ray_adaplr.sweep.space import SweepRecord, check_sweep, content_hash, plan_sweep, put_record


def record_of(source: str, weights: str = "w") -> SweepRecord:
    return SweepRecord(
        space="alpha",
        space_sha256=content_hash("alpha"),
        source=[source],
        target=["/stores/sketch"],
        target_fingerprint="f",
        source_fingerprint=weights,
        options=SweepOptions(),
        config=Config().to_toml(),
        listed=[{"alpha": 0.5}],
    )


def test_a_sweep_is_resumed_by_any_spelling_of_its_source_and_by_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Folder(tmp_path / "sweep")
    put_record(folder, SweepJob(folder.uri, "alpha"), record_of("models/photo"))
    again = SweepJob(folder.uri, None, resume=True)
    for spelling in ("models/photo/", "./models/photo", str(tmp_path / "models/photo")):
        check_sweep(folder, again, record_of(spelling))
    with pytest.raises(InputError, match="a sweep with other source"):
        check_sweep(folder, again, record_of("models/sketch"))
    with pytest.raises(InputError, match="a sweep with other source_fingerprint"):
        check_sweep(folder, again, record_of("models/photo", weights="trained again"))


def test_the_class_list_of_a_sweep_is_found_from_any_folder(
    source_folder: Path, digit_stores: dict[str, ImageStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[SweepJob] = []
    monkeypatch.setattr("ray_adaplr.sweep.trials.run_sweep", lambda job, *_: told.append(job) or stop())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "classes.txt").write_text("\n".join("0123456789"))
    said = ["--source", str(source_folder), "--target", digit_stores["optdigits"].paths[0], "--out", "s"]
    assert main(["tune", "alpha", "--classes", "classes.txt", *said]) == 2
    assert told[0].origin["classes"] == str(tmp_path / "classes.txt")


def test_keys_of_a_class_list_in_a_bucket_are_not_written_down_and_the_sweep_goes_on_when_it_is_named_again(
    source_folder: Path,
    digit_stores: dict[str, ImageStore],
    tmp_path: Path,
    s3: S3Place,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def planned(job: SweepJob, models: list[Classifier], store: ImageStore, config: Config, *_: object) -> None:
        put_record(Folder(job.out), job, plan_sweep(job, models, store, config)[1])
        stop()

    monkeypatch.setattr("ray_adaplr.sweep.trials.run_sweep", planned)
    place, out = s3.uri(), tmp_path / "s"
    Folder(place).write("classes.txt", "\n".join("0123456789"))
    classes = joined(place, "classes.txt").replace("s3://", "s3://KEY:SECRET@")
    said = ["--source", str(source_folder), "--target", digit_stores["optdigits"].paths[0], "--out", str(out)]

    def told(*words: str) -> str:
        assert main(["tune", *words]) == 2
        return capsys.readouterr().err

    assert "far enough" in told("alpha", "--classes", classes, *said)
    assert "classes.txt" in (out / "sweep.json").read_text()
    assert "SECRET" not in (out / "sweep.json").read_text()
    assert "name it again with --classes" in told("--resume", "--out", str(out))
    assert "far enough" in told("--resume", "--classes", classes, "--out", str(out))
    assert "a resumed sweep keeps its settings" in told("--resume", "--classes", "other.txt", "--out", str(out))


def stop() -> None:
    raise InputError("far enough")
