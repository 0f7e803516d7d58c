"""Commands that train: what they refuse at once, and what they say."""

import contextlib
import json
import os
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from local_runs import LOCAL
from PIL import Image
from s3_server import S3Place

from ray_adaplr import AdaPLR
from ray_adaplr.cli.main import main
from ray_adaplr.cli.options import read_classes
from ray_adaplr.config import Config
from ray_adaplr.core.models import ModelSpec, build
from ray_adaplr.data.digits import demo_domain
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.data.store_writer import write_store
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.stages.pretrain import SourcePlan, pretrain
from ray_adaplr.storage.folder import Folder, joined, read_file


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["n_rl=4"], "use n_rl<=3"),
        (["prior=/none.txt"], "nor a file of 10 numbers (there is no prior /none.txt)"),
        (["residuals=drl", "n_e=12"], "use n_e<=9"),
    ],
)
def test_the_demo_refuses_bad_settings_before_it_makes_anything(
    settings: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demo"
    said = [part for text in settings for part in ("--set", text)]
    assert main(["demo", "--engine", "local", "--out", str(out), *said]) == 2
    assert words in capsys.readouterr().err
    assert not out.exists()


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Path]:
    """A pipe without a writer; whoever waits for one gets an empty file after five seconds."""
    place = tmp_path / "pipe.parquet"
    os.mkfifo(place)

    def write_nothing() -> None:
        with contextlib.suppress(OSError):  # nobody waits
            os.close(os.open(place, os.O_WRONLY | os.O_NONBLOCK))

    writer = threading.Timer(5, write_nothing)
    writer.start()
    yield place
    writer.cancel()
    assert stat.S_ISFIFO(place.stat().st_mode), "it is still the user's"


@pytest.mark.parametrize(
    "options",
    [
        "adapt --source {model} --target {store} --out run --config {pipe}",
        "adapt --source {model} --target {store} --out run --labels {pipe}",
        "adapt --source {model} --target {store} --out run --set prior={pipe}",
        "adapt --source {model} --target {pipe} --out run",
        "adapt --source {pipe} --target {store} --out run",
        "adapt --source {model} --target {store} --out {pipe}",
        "pretrain --data {store} --model digit_cnn --start {pipe} --out run",
        "predict --model {model} --data {store} --out {pipe}",
        "prepare {pipe} --out run",
    ],
)
def test_a_pipe_in_a_files_place_is_refused_at_once_and_stays(
    options: str,
    pipe: Path,
    source_folder: Path,
    digit_stores: dict[str, ImageStore],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"model": source_folder, "store": digit_stores["optdigits"].paths[0], "pipe": pipe}
    started = time.monotonic()
    assert main(options.format(**places).split()) == 2
    assert time.monotonic() - started < 4
    assert list(tmp_path.iterdir()) == [pipe]


def test_infer_says_what_it_found(
    source_folder: Path, digit_stores: dict[str, ImageStore], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = digit_stores["optdigits"].paths[0]
    said = ["--engine", "local", "--quiet", "--set", "warm_start_epochs=1"]
    assert main(["infer", "--source", str(source_folder), "--target", target, "--out", str(tmp_path / "r"), *said]) == 0
    out = capsys.readouterr().out
    assert "300 images labelled, mean confidence 0." in out
    counts = [int(line.split()[1]) for line in out.splitlines() if line.endswith("%") and len(line.split()) == 3]
    assert (len(counts), sum(counts)) == (10, 300)


def test_the_source_may_be_spelled_otherwise_when_a_run_is_resumed(
    source_folder: Path, digit_stores: dict[str, ImageStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = ["--target", digit_stores["optdigits"].paths[0], "--out", str(tmp_path / "r")]
    said += ["--engine", "local", "--quiet", "--set", "warm_start_epochs=1"]
    monkeypatch.chdir(source_folder.parent)
    for spelling in (source_folder.name, f"./{source_folder.name}/", str(source_folder)):
        assert main(["infer", "--source", spelling, *said]) == 0
    monkeypatch.chdir(tmp_path)
    assert main(["infer", *said]) == 0, "the run knows its source, wherever it is resumed"


def test_a_run_that_began_from_a_weights_file_goes_on_without_being_told_about_it_again(
    digit_stores: dict[str, ImageStore], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, classes, run = (str(tmp_path / name) for name in ("w.pt", "classes.txt", "run"))
    torch.save(build(ModelSpec(num_classes=10)).network.state_dict(), weights)
    Path(classes).write_text("\n".join("0123456789"))
    told = ["--source", weights, "--model", "digit_cnn", "--classes", classes, "--normalize", "0.3/0.2"]
    settings = ["--out", run, "--engine", "local", "--quiet", "--set", "warm_start=off", "--set", "epochs=1"]
    assert main(["infer", "--target", digit_stores["optdigits"].paths[0], "--unlabelled", *told, *settings]) == 0
    assert main(["refine", *settings]) == 0
    assert "noise" not in (Path(run) / "metrics.jsonl").read_text(), "the store's ground truth was looked at"
    assert main(["refine", "--normalize", "half", *settings]) == 2, "what is said replaces what was said"
    assert "say which architecture" in capsys.readouterr().err


def test_a_run_folder_names_no_code_to_run(
    digit_stores: dict[str, ImageStore], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    torch.save(build(ModelSpec(num_classes=10)).network.state_dict(), tmp_path / "w.pt")
    known = {"source": [str(tmp_path / "w.pt")], "target": digit_stores["optdigits"].paths}
    (run / "run.json").write_text(json.dumps({**known, "source_specs": [{"name": "antigravity:fly", "classes": []}]}))
    (run / ".ray-adaplr.json").write_text('{"kind": "run"}')
    assert main(["refine", "--out", str(run), "--engine", "local"]) == 2
    assert "say which architecture" in capsys.readouterr().err
    assert "antigravity" not in sys.modules


@pytest.mark.usefixtures("unrendered")
def test_a_run_begun_in_python_from_a_network_of_ones_own_says_where_it_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class MyNet(torch.nn.Sequential):
        pass

    network = MyNet(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    images = np.random.default_rng(0).integers(0, 256, (24, 8, 8, 1), np.uint8)
    config = Config(epochs=1, distill_epochs=1, warm_start="off", distill_on="all", n_e=1)
    api = AdaPLR(config, LOCAL, verbose=False)
    api.fit(network, images, tmp_path / "run", normalize="none")
    capsys.readouterr()
    assert main(["refine", "--out", str(tmp_path / "run"), "--engine", "local"]) == 2
    said = capsys.readouterr().err
    assert "was started in Python with a network of the class MyNet; continue there, with the same fit(...)" in said


def grey_network(num_classes: int = 10) -> torch.nn.Module:
    body = (torch.nn.Conv2d(1, 4, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten())
    return torch.nn.Sequential(*body, torch.nn.Linear(16, num_classes))


def test_a_grey_network_of_ones_own_is_trained_and_labels_images(
    digit_stores: dict[str, ImageStore], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, local = ["--model", f"{__name__}:grey_network"], ["--engine", "local", "--quiet"]
    store, out = digit_stores["mnist"].paths[0], tmp_path / "model"
    assert main(["pretrain", "--data", store, *own, "--out", str(out), *local, "--set", "pretrain_epochs=1"]) == 0
    described = json.loads((out / "model.json").read_text())
    assert (described["channels"], described["num_classes"]) == (1, 10)
    weights, target = tmp_path / "grey.pt", digit_stores["optdigits"].paths[0]
    torch.save(grey_network().state_dict(), weights)
    for number, source in enumerate((out, weights)):
        said = ["infer", "--source", str(source), *own, "--target", target, "--out", str(tmp_path / f"run{number}")]
        assert main([*said, *local, "--set", "warm_start=off"]) == 0
        assert "300 images labelled" in capsys.readouterr().out
    torch.save(grey_network(7).state_dict(), weights)
    said = ["infer", "--source", str(weights), *own, "--target", target, "--out", str(tmp_path / "run")]
    assert main([*said, *local]) == 2
    assert "gives 10 classes but 7 are asked for" in capsys.readouterr().err


def task_of(folder: Path, digits: list[int]) -> tuple[ImageStore, ImageStore]:
    """A task of a few digits: 400 images of MNIST, 200 optical ones."""
    stores = []
    for name, count in (("mnist", 400), ("optdigits", 200)):
        whole = demo_domain(name, folder / f"{name}-whole")
        truth = whole.ground_truth()
        assert truth is not None
        rows = np.flatnonzero(np.isin(truth, digits))[:count]
        ids = [str(row) for row in rows]
        labels = np.searchsorted(digits, truth[rows])
        names = [str(digit) for digit in digits]
        stores.append(write_store(folder / name, [(ids, whole.read(rows))], classes=names, domain=name, truth=labels))
    return stores[0], stores[1]


@pytest.mark.slow
@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize("digits", [[3, 8], [3, 5, 8]])
def test_two_and_three_classes_work_by_default_and_have_less_noise_than_was_inferred(
    digits: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = task_of(tmp_path, digits)
    names = tuple(str(digit) for digit in digits)
    spec = ModelSpec(num_classes=len(digits), channels=1, width=8, image_size=(16, 16), classes=names)
    for seed in range(3):
        config = Config(pretrain_epochs=2, epochs=6, distill_epochs=1, warm_start_epochs=3, seed=seed)
        model = pretrain(SourcePlan(source, str(tmp_path / f"model-{seed}"), spec, config, LOCAL))
        plan = RunPlan([model], target, str(tmp_path / f"run-{seed}"), config, LOCAL)
        summary = adapt(plan, progress=Progress()).summary
        assert summary["noise_after"] < summary["noise_before"], (seed, summary["noise_before"])
    assert f"{len(digits)} classes leave too few residual labels for 3 members" in capsys.readouterr().err


def test_settings_labels_and_class_names_are_read_from_a_bucket_and_the_report_lies_where_it_says(
    source_folder: Path,
    digit_stores: dict[str, ImageStore],
    s3: S3Place,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    unrendered: None,
) -> None:
    base, target = s3.uri(""), digit_stores["optdigits"]
    settings = 'epochs = 1\nwarm_start = "off"\ndistill_epochs = 1\ndistill_on = "all"\n'
    Folder(base).write("mine.toml", settings)
    Folder(base).write("mine.csv", f"id,label\n{target.ids[0]},3\n")
    Folder(base).write("names.txt", "cat\ndog\n")
    config, labels, names, out = (joined(base, name) for name in ("mine.toml", "mine.csv", "names.txt", "run"))
    said = ["--config", config, "--labels", labels, "--engine", "local", "--quiet"]
    assert main(["adapt", "--source", str(source_folder), "--target", target.paths[0], "--out", out, *said]) == 0
    assert Config.load_text(Folder(out).read("config.toml").decode()).epochs == 1
    report = capsys.readouterr().out.split("report: ")[1].split()[0]
    assert b"<html" in read_file(report, "report")

    np.savez(tmp_path / "pets.npz", images=np.zeros((2, 8, 8, 3), np.uint8), labels=np.arange(2))
    assert main(["prepare", str(tmp_path / "pets.npz"), "--classes", names, "--out", str(tmp_path / "pets")]) == 0
    assert ImageStore.open(str(tmp_path / "pets")).classes == ["cat", "dog"]
    for flag in ("--config", "--labels", "--classes"):
        wrong = ["--source", str(source_folder), "--target", target.paths[0], "--out", str(tmp_path / "run")]
        assert main(["infer", *wrong, flag, joined(base, "nothing")]) == 2
        assert "there is no" in capsys.readouterr().err


def test_a_class_list_that_a_windows_editor_wrote_names_the_same_classes(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_bytes(b"\xef\xbb\xbfdog\r\nhorse\r\n")
    assert read_classes(str(tmp_path / "classes.txt")) == ["dog", "horse"]


def test_a_model_of_cropped_pictures_says_so(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for row in range(4):
            Image.new("RGB", (24, 16), (row, 90, 9)).save(tmp_path / "photos" / name / f"{row}.png")
    store, model = str(tmp_path / "store"), tmp_path / "model"
    assert main(["prepare", str(tmp_path / "photos"), "--out", store, "--size", "16", "--aspect", "crop"]) == 0
    quick = ["--engine", "local", "--quiet", "--set", "pretrain_epochs=1"]
    assert main(["pretrain", "--data", store, "--out", str(model), *quick]) == 0
    assert json.loads((model / "model.json").read_text())["aspect"] == "crop"


def test_a_source_model_of_one_class_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pixels = [(list("ab"), np.zeros((2, 8, 8, 1), np.uint8))]
    write_store(tmp_path / "ok", pixels, classes=["ok"], domain="parts", truth=np.zeros(2, np.int64))
    assert main(["pretrain", "--data", str(tmp_path / "ok"), "--out", str(tmp_path / "m"), "--engine", "local"]) == 2
    assert "has one class, ok; a source model needs two" in capsys.readouterr().err
