"""Only what the product made is ever removed, and a refused command leaves nothing behind."""

import contextlib
import hashlib
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from s3_server import S3Place

from ray_adaplr.cli.main import main
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError
from ray_adaplr.stages.result import Result
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.layout import MARKER, RUN_FILES, SWEEP_FILES
from ray_adaplr.storage.ownership import check_ours, claim, clear, refuse_to_remove

SHORT = ["--engine", "local", "--quiet", "--set=epochs=1", "--set=warm_start=off", "--set=distill_epochs=1"]
FOREIGN = {
    "everything": ("checkpoints/best.pt", "ensemble/0/model.json", "tensorboard/events.out.tfevents.1", "config.toml"),
    "checkpoints alone": ("checkpoints/manifest-000001.json", "checkpoints/distill.pt"),
    "a sweep's names": ("trials/000/config.toml", "tune/state.json", "results.parquet", "sweep.json"),
    "a store's names": ("images-00000.arrow", "truth.arrow", "rejected.csv", ".partial/00000.json"),
    "one file": ("thesis.txt",),
}


def snapshot(folder: Path) -> dict[str, str]:
    """All that is in a folder, hidden files and empty folders too."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
    }


def put_foreign(out: Path, kind: str) -> None:
    for name in FOREIGN[kind]:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(f"mine: {name}")


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["plain", "force"])
@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("command", ["adapt", "pretrain", "tune"])
def test_a_foreign_project_is_refused_and_left_as_it_was(
    command: str,
    kind: str,
    force: list[str],
    digit_stores: dict[str, ImageStore],
    source_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "project"
    put_foreign(out, kind)
    before, target = snapshot(tmp_path), digit_stores["optdigits"].paths[0]
    what = {
        "adapt": ["adapt", "--source", str(source_folder), "--target", target],
        "pretrain": ["pretrain", "--data", target],
        "tune": ["tune", "alpha", "--source", str(source_folder), "--target", target],
    }[command]
    assert main([*what, "--out", str(out), *SHORT, *force]) == 2
    assert snapshot(tmp_path) == before
    assert "choose" in capsys.readouterr().err


@pytest.mark.parametrize("kind", FOREIGN)
def test_prepare_refuses_a_foreign_folder_and_leaves_it_as_it_was(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_foreign(tmp_path / "project", kind)
    np.savez(tmp_path / "photos.npz", images=np.zeros((3, 8, 8, 3), np.uint8))
    before = snapshot(tmp_path)
    assert main(["prepare", str(tmp_path / "photos.npz"), "--out", str(tmp_path / "project")]) == 2
    assert snapshot(tmp_path) == before
    assert "holds other files" in capsys.readouterr().err
    assert main(["prepare", str(tmp_path / "photos.npz"), "--out", str(tmp_path / "project/store")]) == 0
    assert before.items() <= snapshot(tmp_path).items(), "a store beside them changes none"


@pytest.mark.parametrize("more", [["--size", "0"], ["--classes", "nowhere.txt"], ["--classes", "names.txt"]])
def test_a_refused_prepare_leaves_nothing_behind(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("photos.npz", images=np.zeros((3, 8, 8, 3), np.uint8), labels=np.arange(3))
    Path("names.txt").write_text("cat\n")
    before = snapshot(tmp_path)
    assert main(["prepare", "photos.npz", "--out", "store", *more]) == 2
    assert snapshot(tmp_path) == before


def test_a_refused_run_makes_neither_a_folder_nor_a_store(source_folder: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "cat.jpg").write_bytes(b"no picture")
    before = snapshot(tmp_path)
    assert main(["adapt", "--source", str(source_folder), "--target", str(photos), "--out", str(photos), *SHORT]) == 2
    assert main(["adapt", "--source", "nowhere", "--target", str(photos), "--out", str(tmp_path / "run"), *SHORT]) == 2
    assert snapshot(tmp_path) == before


def test_starting_again_keeps_what_a_user_put_into_the_runs_folder(
    source_folder: Path, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    out, target = tmp_path / "run", digit_stores["optdigits"].paths[0]
    adapt = ["adapt", "--source", str(source_folder), "--target", target, "--out", str(out), *SHORT]
    adapt.append("--set=distill_on=all")
    assert main(adapt) == 0
    mine = [out / name for name in ("notes.txt", "ensemble/notes.txt", "checkpoints/mine.pt")]
    for file in mine:
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
    assert main([*adapt, "--set=seed=1"]) == 2, "other settings are refused without --force"
    assert main([*adapt, "--set=seed=1", "--force"]) == 0
    assert [(out / name).read_text() for name in ("notes.txt", "ensemble/notes.txt", "checkpoints/mine.pt")] == [
        "mine"
    ] * 3


@pytest.mark.parametrize(
    ("option", "place"),
    [
        ("--source", "run/target_model"),
        ("--source", "link/target_model"),
        ("--source", "run"),
        ("--guest", "run/target_model"),
        ("--labels", "run/labels.parquet"),
        ("--set", "prior=run/labels.csv"),
    ],
)
def test_starting_again_does_not_remove_what_the_command_itself_reads(
    option: str,
    place: str,
    straight_run: Result,
    source_folder: Path,
    digit_stores: dict[str, ImageStore],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "run"
    shutil.copytree(straight_run.path, out)
    (tmp_path / "link").symlink_to(out)
    if option == "--set":
        (out / "labels.csv").write_text("1 " * 10)
    monkeypatch.chdir(tmp_path)
    before = snapshot(out)
    source = [] if option == "--source" else ["--source", str(source_folder)]
    target = ["--target", digit_stores["optdigits"].paths[0]]
    assert main(["adapt", *source, *target, option, place, "--out", str(out), *SHORT, "--force"]) == 2
    assert "lies in --out" in (told := capsys.readouterr().err)
    assert "--force would remove it; choose another --out" in told
    assert snapshot(out) == before


@pytest.mark.parametrize(
    ("place", "removed"),
    [
        ("{out}/ensemble/0", True),
        ("{out}/ensemble/", True),
        ("{out}", True),
        ("file://{out}/ensemble/0", True),
        ("resnet18={out}/ensemble/0/model.safetensors", True),
        ("{out}/ensemble/1", False),
        ("{out}/ensemble/0/model", False),
        ("{out}/..", False),
        ("resnet18", False),
        ("", False),
    ],
)
def test_what_would_be_removed_is_known_by_any_of_its_names(place: str, removed: bool, tmp_path: Path) -> None:
    out = Folder(tmp_path)
    claim(out, "run")
    out.write("ensemble/0/model.safetensors", "weights")
    refused = pytest.raises(InputError, match="--force would remove it") if removed else contextlib.nullcontext()
    with refused:
        refuse_to_remove(out, RUN_FILES, {"--source": [place.format(out=tmp_path)]})


def test_what_would_be_removed_from_a_bucket_is_known_too(s3: S3Place) -> None:
    out = Folder(s3.uri())
    claim(out, "run")
    out.write("ensemble/0/model.safetensors", "weights")
    with pytest.raises(InputError, match="--force would remove it"):
        refuse_to_remove(out, RUN_FILES, {"--source": (out / "ensemble/0").uri})
    refuse_to_remove(out, RUN_FILES, {"--source": (out / "source").uri, "--labels": None})


def test_starting_again_reads_what_lies_in_the_folder_and_stays(
    source_folder: Path, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    claim(Folder(tmp_path), "run")
    shutil.copytree(source_folder, tmp_path / "source")
    shutil.copytree(digit_stores["optdigits"].paths[0], tmp_path / "stores/mine")
    adapt = ["infer", "--source", str(tmp_path / "source"), "--target", str(tmp_path / "stores/mine"), *SHORT]
    assert main([*adapt, "--out", str(tmp_path)]) == 0
    assert main([*adapt, "--out", str(tmp_path), "--force"]) == 0


def test_training_again_does_not_remove_the_weights_to_start_from(
    source_folder: Path, digit_stores: dict[str, ImageStore], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    shutil.copytree(source_folder, out)
    before = snapshot(out)
    pretrain = ["pretrain", "--data", digit_stores["mnist"].paths[0], "--width=8", *SHORT, "--force"]
    assert main([*pretrain, "--start", str(out / "model.safetensors"), "--out", str(out)]) == 2
    assert "--start" in (told := capsys.readouterr().err)
    assert "--force would remove it; choose another --out" in told
    assert snapshot(out) == before


def test_a_file_that_predict_or_report_did_not_make_is_left_alone(
    source_folder: Path, straight_run: Result, digit_stores: dict[str, ImageStore], tmp_path: Path, unrendered: None
) -> None:
    (tmp_path / "mine.parquet").write_text("my labels")
    (tmp_path / "mine.sh").write_text("ray-adaplr predict --model m --data d --out labels.parquet")
    (tmp_path / "folder").mkdir()
    predict = ["predict", "--model", str(source_folder), "--data", digit_stores["optdigits"].paths[0], "--out"]
    for command in (predict, ["report", straight_run.path, "--out"]):
        before = snapshot(tmp_path)
        assert main([*command, str(tmp_path / "mine.parquet")]) == 2
        assert main([*command, str(tmp_path / "mine.sh")]) == 2, "a file that names the command is not its work"
        assert main([*command, str(tmp_path / "folder")]) == 2
        assert snapshot(tmp_path) == before
        assert main([*command, str(tmp_path / f"new/{command[0]}.parquet")]) == 0
        assert main([*command, str(tmp_path / f"new/{command[0]}.parquet")]) == 0, "its own it may write again"
    assert len(pq.read_table(tmp_path / "new/predict.parquet")) == len(digit_stores["optdigits"])


def test_predictions_and_reports_go_to_a_bucket(
    source_folder: Path, straight_run: Result, digit_stores: dict[str, ImageStore], s3: S3Place, unrendered: None
) -> None:
    data = ["--data", digit_stores["optdigits"].paths[0]]
    assert main(["predict", "--model", str(source_folder), *data, "--out", s3.uri("labels.parquet")]) == 0
    uri = s3.uri("page.html")
    assert main(["report", straight_run.path, "--out", uri]) == 0
    assert main(["report", straight_run.path, "--out", uri]) == 0


def test_starting_a_sweep_again_removes_what_sweeps_make_and_nothing_of_the_users(tmp_path: Path) -> None:
    made = [
        *("sweep.json", "best.toml", "trials/000/config.toml", "trials/000/ensemble/1/model.json", "trials/000/.lock"),
        *("trials/4f1c0_00001/.ray-adaplr.json", "trials/000/tensorboard/1763.2/events.out.tfevents.1.host"),
        *("inferred/ab12/inferred.parquet", "inferred/ab12/start_models/0/model.safetensors", "tune/tuner.pkl"),
        *("tune/experiment_state-2026-11-17_00-09-37.json", "tune/searcher-state-2026-11-17_00-09-37.pkl"),
        *("tune/basic-variant-state-2026-11-17_00-09-37.json", "tune/4f1c0_00000/result.json"),
    ]
    mine = [
        *("notes.txt", "trials/notes.txt", "trials/000/notes.txt", "trials/000/mine/config.toml", "tune/mine.pkl"),
        *("inferred/figures/plot.png", "tune/4f1c0_00000/notes/result.json"),
    ]
    claim(Folder(tmp_path), "sweep")
    for name in (*made, *mine):
        Folder(tmp_path).write(name, "text")
    (tmp_path / "trials/000/empty").mkdir()
    clear(Folder(tmp_path), SWEEP_FILES)
    assert Folder(tmp_path).files() == sorted((MARKER, *mine))
    assert (tmp_path / "trials/000/empty").is_dir()
    assert not (tmp_path / "trials/4f1c0_00001").exists()


def test_clearing_a_folder_without_a_marker_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("mine")
    clear(Folder(tmp_path), RUN_FILES)
    assert (tmp_path / "config.toml").read_text() == "mine"
    claim(Folder(tmp_path), "run")
    clear(Folder(tmp_path), RUN_FILES)
    assert not (tmp_path / "config.toml").exists()


def test_a_folder_within_that_is_a_link_is_refused_and_what_is_behind_it_stays(tmp_path: Path) -> None:
    claim(Folder(tmp_path / "run"), "run")
    (tmp_path / "another").mkdir()
    (tmp_path / "another/manifest-000001.json").write_text("mine")  # named as a run's, and of another run
    (tmp_path / "run/checkpoints").symlink_to("../another")
    with pytest.raises(InputError, match=r"checkpoints is a link to .*/another, where nothing is removed or written"):
        check_ours(Folder(tmp_path / "run"), "run")
    assert (tmp_path / "another/manifest-000001.json").read_text() == "mine"


def test_a_folder_made_for_one_thing_is_not_taken_for_another(tmp_path: Path) -> None:
    claim(Folder(tmp_path), "sweep")
    check_ours(Folder(tmp_path), "sweep")
    with pytest.raises(InputError, match="made for a sweep, not for a run"):
        check_ours(Folder(tmp_path), "run")


def test_a_folder_that_holds_only_stores_and_models_of_ours_may_be_claimed(tmp_path: Path) -> None:
    claim(Folder(tmp_path / "source"), "model")
    claim(Folder(tmp_path / "stores/0"), "store")
    check_ours(Folder(tmp_path), "run")
    (tmp_path / "stores/1/empty").mkdir(parents=True)
    check_ours(Folder(tmp_path), "run")
    (tmp_path / "stores/1/notes.txt").write_text("mine")
    with pytest.raises(InputError, match="stores"):
        check_ours(Folder(tmp_path), "run")


def test_a_file_that_a_faster_process_is_writing_is_not_somebody_elses(tmp_path: Path) -> None:
    (tmp_path / ".part-0123").write_bytes(b"half of a mark")
    check_ours(Folder(tmp_path), "run")
    (tmp_path / ".lockfile").touch()
    with pytest.raises(InputError, match=r"holds other files \(\.lockfile\)"):
        check_ours(Folder(tmp_path), "run")
