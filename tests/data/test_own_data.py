"""Own data straight from a folder: `adapt` makes the store in the run's folder, and says what does not fit."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from image_trees import class_folders, picture, save

from ray_adaplr.cli.main import main
from ray_adaplr.core.models import ModelSpec, build
from ray_adaplr.data.store import ImageStore

MODEL = "shufflenet_v2_x0_5"  # the smallest of torchvision with a linear head


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """A torchvision state dict for two classes."""
    file = tmp_path_factory.mktemp("own") / "my_model.pt"
    torch.save(build(ModelSpec(name=MODEL, num_classes=2), seed=3).network.state_dict(), file)
    return file


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    file = tmp_path / "classes.txt"
    file.write_text("cat\ndog\n")
    return file


def adapt(*arguments: object, command: str = "adapt") -> int:
    short = ("n_e=1", "epochs=1", "distill_epochs=1", "distill_on=all", "warm_start=off", "batch_size=16")
    settings = [part for text in short for part in ("--set", text)]
    return main([command, *map(str, arguments), "--engine", "local", "--quiet", *settings])


@pytest.mark.usefixtures("unrendered")
def test_a_state_dict_and_a_folder_of_photos_are_enough(weights, classes, tmp_path, capsys):
    photos, run = class_folders(tmp_path / "photos", each=15, size=(50, 40)), tmp_path / "run"
    command = ("--source", weights, "--model", MODEL, "--classes", classes, "--target", photos, "--size", 32)
    assert adapt(*command, "--out", run) == 0
    store = ImageStore.open(str(run / "stores/0"))
    assert (len(store), store.image_shape, store.classes) == (30, (32, 32, 3), ["cat", "dog"])
    summary = json.loads((run / "summary.json").read_text())
    assert summary["classes"] == ["cat", "dog"]
    assert summary["num_images"] == 30
    assert summary["inferred"] is not None  # the folders' names are the ground truth
    assert (run / "target_model/model.safetensors").exists()
    assert adapt(*command, "--out", run) == 0, "the same command again finds its store and its result"
    save(photos / "cat" / "new.png", picture(99))
    capsys.readouterr()
    assert adapt(*command, "--out", run) == 2
    assert "holds a run of other images; use --force to start again" in capsys.readouterr().err
    assert adapt(*command, "--out", run, "--force") == 0
    assert json.loads((run / "summary.json").read_text())["num_images"] == 31


def test_a_flat_folder_is_unlabelled_and_its_corrections_go_by_the_models_class_names(weights, classes, tmp_path):
    for i in range(20):
        save(tmp_path / "photos" / f"{i:02d}.png", picture(i))
    (tmp_path / "corrections.csv").write_text("id,label\n05.png,dog\n")
    command = ("--source", weights, "--model", MODEL, "--classes", classes, "--target", tmp_path / "photos")
    command = (*command, "--size", 32, "--labels", tmp_path / "corrections.csv", "--out", tmp_path / "run")
    assert adapt(*command, command="infer") == 0
    assert ImageStore.open(str(tmp_path / "run/stores/0")).ground_truth() is None
    inferred = pq.read_table(tmp_path / "run/inferred.parquet")
    assert inferred["id"][19].as_py() == "19.png"
    assert inferred["start_label"][5].as_py() == 1


@pytest.mark.parametrize(
    ("folders", "listed", "model", "sentence"),
    [
        (("cat", "dog"), "cat\ndog\nfox\n", MODEL, "has 2 outputs but there are 3 classes"),
        (("cat", "dog"), "cat\ndog\n", "resnet18", "weights of resnet18, e.g. "),
        (("cat", "dog"), "cat\ndog\n", "shuflenet_v2_x0_5", f"did you mean '{MODEL}'"),
        (("cat", "dog", "fox"), "cat\ndog\n", MODEL, "2 classes"),
        (("cat", "cow"), "cat\ndog\n", MODEL, "cow"),
    ],
)
def test_what_does_not_fit_gets_one_sentence(weights, tmp_path, capsys, folders, listed, model, sentence):
    photos = class_folders(tmp_path / "photos", folders, each=4)
    (tmp_path / "names.txt").write_text(listed)
    command = ("--source", weights, "--model", model, "--classes", tmp_path / "names.txt", "--target", photos)
    assert adapt(*command, "--size", 32, "--out", tmp_path / "run") == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert len(told.strip().splitlines()) == 1


def test_a_file_of_weights_alone_needs_its_architecture(weights, tmp_path, capsys):
    photos = class_folders(tmp_path / "photos")
    assert adapt("--source", weights, "--target", photos, "--out", tmp_path / "run") == 2
    assert "--model" in capsys.readouterr().err
