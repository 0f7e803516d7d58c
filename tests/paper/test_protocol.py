"""`ray-adaplr paper`: rows by the protocol, beside the paper's figures, in what it prints and in its two files."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ray_adaplr.cli.main import main
from ray_adaplr.config import Config
from ray_adaplr.core.models import ModelSpec, build
from ray_adaplr.data.digits import demo_domain
from ray_adaplr.data.store import ImageStore
from ray_adaplr.paper.published import paper_row
from ray_adaplr.paper.table import ALL, rows_beside, table
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.models import load_model

pytestmark = pytest.mark.usefixtures("unrendered")
QUICK = ["--engine", "local", "--quiet", "--scale", "0.2"]
ABOUT = {"task": "t", "preset": "p", "scale": 1.0, "seeds": 1, "late_fusion": False, "remarks": []}
ABOUT |= {"target_images": 9, "epochs": 7, "minutes": 1.0, "distill_epochs": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of three digit domains, by the names that are looked for; 300 and 100 images each."""
    folder = tmp_path_factory.mktemp("data")
    mnist, optdigits = (demo_domain(name, folder / name) for name in ("mnist", "optdigits"))
    for name, store in (("mnist", mnist), ("usps", optdigits), ("svhn", optdigits)):
        truth = store.ground_truth()
        assert truth is not None
        order = np.random.default_rng(0).permutation(len(store))
        for split, rows in (("train", order[:300]), ("test", order[300:400])):
            images = store.read(rows)[..., 0]
            np.savez(folder / f"{name}_{split}.npz", images=images, labels=truth[rows])
    return folder


def paper(*arguments: object) -> int:
    short = ("epochs=10", "distill_epochs=5", "pretrain_epochs=2", "distill_on=all", "on_harm=off")
    return main(["paper", *map(str, arguments), *QUICK, *(part for text in short for part in ("--set", text))])


def test_a_row_stands_beside_the_papers_figures_and_says_its_scale(data, tmp_path, capsys):
    arguments = ("digit5", "--task", "usps-mnist", "--seeds", 2, "--data", data, "--out", tmp_path)
    assert paper(*arguments) == 0
    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if line.startswith("| usps-mnist"))
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[:6] == ["usps-mnist", "mnist", "60", "2 + 1", "0", "2"]  # images, epochs, minutes, seeds
    assert cells[7::2] == ["70.2", "99.2 ± 0.02", "99.2 ± 0.02"]
    assert "SBA 87.5" in cells[-1]
    assert "scale 0.2: this share of images and epochs" in printed
    assert "--set epochs=10" in printed

    content = json.loads((tmp_path / "results.json").read_text())
    (written,) = content["rows"]
    assert (written["scale"], written["epochs"], written["distill_epochs"]) == (0.2, 2, 1)
    assert (written["target_images"], written["test_images"]) == (60, 20)  # a fifth of the files
    assert len(written["refined"]["values"]) == 2
    assert 0 <= written["minutes"] < 1
    assert written["target"]["paper"] == 99.2
    markdown = (tmp_path / "results.md").read_text()
    assert "scale 0.2" in markdown.splitlines()[0]
    assert row in markdown

    before = (tmp_path / "paper/usps-mnist/seed-0/labels.parquet").stat().st_mtime_ns
    assert paper(*arguments) == 0
    assert json.loads((tmp_path / "results.json").read_text()) == content
    assert (tmp_path / "paper/usps-mnist/seed-0/labels.parquet").stat().st_mtime_ns == before


def test_rows_and_all_they_are_made_from_stand_in_a_bucket(data, tmp_path, monkeypatch, s3):
    monkeypatch.chdir(tmp_path)
    out = s3.uri()
    arguments = ("--seeds", "1", "--data", str(data), "--out", out, "--set", "alpha=0.9999999", *QUICK)
    short = ("epochs=5", "distill_epochs=5", "pretrain_epochs=1", "on_harm=off")
    arguments += tuple(part for text in short for part in ("--set", text))
    for task in ("usps-mnist", "usps+svhn-mnist"):
        assert main(["paper", "digit5", "--task", task, *arguments]) == 0
    assert list(tmp_path.iterdir()) == []
    rows = Folder(out).read_json("results.json")["rows"]
    assert [row["task"] for row in rows] == ["usps-mnist", "usps+svhn-mnist"]
    assert any("was trained on all labels" in remark for remark in rows[0]["remarks"])
    folders = {"/".join(name.split("/")[:3]) for name in s3.keys(out)}
    assert {"paper/usps-mnist/seed-0-all-labels", "paper/sources/usps+svhn", "results.md"} < folders


def test_models_of_one_source_are_not_fused(data, tmp_path, capsys):
    arguments = ("--data", data, "--out", tmp_path / "out", "--late-fusion")
    assert paper("digit5", *arguments, "--task", "rest-mnist", "--task", "usps-mnist") == 2
    assert "usps-mnist has one source, and --late-fusion is for several" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_fewer_target_images_leave_source_and_test_as_they_are_and_the_row_says_so(data, tmp_path, capsys):
    arguments = ("--task", "usps-mnist", "--seeds", 1, "--data", data, "--out", tmp_path, "--images", 40)
    settings = ("--engine", "local", "--quiet", "--set", "epochs=2", "--set", "distill_epochs=1", "--set", "alpha=0.1")
    assert main(["paper", "digit5", *map(str, arguments), *settings, "--set", "pretrain_epochs=1"]) == 0
    assert "at most 40 target images of each domain" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert (row["target_images"], row["test_images"], row["scale"]) == (40, 100, 1.0)
    assert len(ImageStore.open(str(tmp_path / "stores/usps-train"))) == 300


@pytest.mark.parametrize(("scale", "ran"), [(1, [3, 3]), (0.4, [1, 1])])
def test_epochs_that_nobody_set_are_those_of_photographs_and_are_scaled_after_that(
    scale, ran, data, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("ray_adaplr.stages.plan.LARGE_NETWORK", 1)  # the digits' network is a large one now
    monkeypatch.setattr("ray_adaplr.stages.plan.LARGE_IMAGE", 8)
    arguments = ("--task", "usps-mnist", "--seeds", 1, "--data", data, "--out", tmp_path, "--images", 40)
    short = ("--set", "pretrain_epochs=1", "--set", "warm_start_epochs=1", "--set", "seed=7")
    words = ("paper", "digit5", "--preset", "robust", "--scale", scale, *arguments, *short, "--engine", "local")
    assert main([*map(str, words), "--quiet"]) == 0
    config = Config.load_text((tmp_path / "robust/usps-mnist/seed-7/config.toml").read_text())
    assert (config.defaults, config.seed) == ("photographs", 7)
    (row,) = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [config.epochs, config.distill_epochs] == [row["epochs"], row["distill_epochs"]] == ran
    assert "--set seed=7" in row["remarks"]
    assert not (tmp_path / "robust/usps-mnist/seed-0").exists()


def test_several_targets_have_a_figure_each_and_several_sources_may_be_fused(data, tmp_path, capsys):
    arguments = ("digit5", "--seeds", 1, "--data", data, "--out", tmp_path)
    assert paper(*arguments, "--task", "mnist-usps+svhn") == 0
    assert paper(*arguments, "--task", "usps+svhn-mnist", "--late-fusion") == 0
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    both = [("mnist-usps+svhn", name) for name in ("usps", "svhn", ALL)]
    assert [(row["task"], row["on"]) for row in rows] == [*both, ("usps+svhn-mnist", "mnist")]
    assert [row["late_fusion"] for row in rows] == [False, False, False, True]
    assert all(row["target"]["paper"] is None for row in rows)  # not tasks of the paper
    assert sorted(p.name for p in (tmp_path / "paper/sources").iterdir()) == ["mnist", "svhn", "usps"]


def test_without_a_task_those_run_whose_data_is_there(data, tmp_path, capsys):
    part = tmp_path / "part"
    part.mkdir()
    for name in ("mnist_train", "mnist_test", "usps_train", "usps_test"):
        (part / f"{name}.npz").symlink_to(data / f"{name}.npz")
    assert paper("digit5", "--seeds", 1, "--data", part, "--out", tmp_path / "out", "--preset", "robust") == 0
    rows = json.loads((tmp_path / "out/results.json").read_text())["rows"]
    assert [row["task"] for row in rows] == ["mnist-usps", "usps-mnist"]
    assert rows[0]["preset"] == "robust"


def test_without_a_sure_label_the_target_model_learns_from_all_and_the_row_says_so(data, tmp_path, capsys):
    arguments = ("digit5", "--task", "usps-mnist", "--seeds", 1, "--data", data, "--out", tmp_path)
    settings = ("--set", "epochs=5", "--set", "distill_epochs=5", "--set", "alpha=0.999999")
    assert main(["paper", *map(str, arguments), *QUICK, *settings]) == 0
    assert "seed 0: no label is above alpha=0.999999" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert None not in [row[stage]["mean"] for stage in ("inferred", "refined", "target")]


def test_the_source_starts_from_a_given_backbone(data, tmp_path, capsys):
    file = tmp_path / "backbone.pt"
    network = build(ModelSpec(num_classes=30)).network  # a head of another width, which is left out
    for tensor in network.state_dict().values():
        tensor.fill_(0)
    torch.save(network.state_dict(), file)
    arguments = ("digit5", "--task", "usps-mnist", "--seeds", 1, "--data", data, "--out", tmp_path / "out")
    assert paper(*arguments, "--backbone", file) == 0
    body = load_model(tmp_path / "out/paper/sources/usps").network.state_dict()["features.0.weight"]
    assert body.abs().max() == 0  # zeros have no gradient: they stayed
    assert paper(*arguments) == 2
    assert "a model of another kind, or trained on other data" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["digit6", "--data", "."], "'digit6' is not a benchmark"),
        (["digit5", "--task", "usps-moon", "--data", "."], "'moon' is not a domain of digit5"),
        (["digit5", "--task", "usps-mnist", "--data", "nowhere"], "digit5/usps is not below nowhere"),
        (["digit5", "--data", "nowhere"], "name one with --task"),
        (["digit5"], "--data"),
        (["digit5", "--data", ".", "--scale", "0"], "--scale 0"),
        (["digit5", "--data", ".", "--seeds", "0"], "--seeds 0"),
    ],
)
def test_bad_input_gets_one_sentence(arguments, sentence, capsys, monkeypatch):
    monkeypatch.delenv("ADAPLR_DATA", raising=False)
    assert main(["paper", *arguments, "--quiet"]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert len(told.strip().splitlines()) == 1


def test_visda_has_a_row_a_class_and_pacs_one_a_target_with_the_papers_figures():
    visda = paper_row("visda", "train-test")
    assert visda is not None
    figures = {stage: dict.fromkeys([*visda["columns"], ALL], 50.0) for stage in ("inferred", "refined", "target")}
    rows = rows_beside(ABOUT, [figures], visda)
    assert len(rows) == 13
    assert [rows[0]["on"], rows[0]["refined"]["paper"], rows[0]["refined"]["paper_sd"]] == ["aeroplane", 95.2, 0.05]
    assert rows[-1]["target"]["paper"] == 84.2

    pacs = paper_row("pacs", "photo-rest")
    assert pacs is not None
    figures = {stage: dict.fromkeys([*pacs["columns"], ALL], 50.0) for stage in ("inferred", "refined", "target")}
    rows = rows_beside(ABOUT, [figures, figures], pacs)
    assert [row["target"]["paper"] for row in rows] == [80.1, 76.1, 25.9, None]
    assert [row["refined"]["paper"] for row in rows] == [None, None, None, 57.3]  # of all targets together
    assert rows[3]["refined"]["paper_sd"] == 1.13
    assert "57.3 ± 1.13" in table(rows)
