"""Hugging Face image classifiers come in: as sources and guests, described as their own files say."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from local_runs import LOCAL

import ray_adaplr
from ray_adaplr import AdaPLR, Config
from ray_adaplr.cli.main import main
from ray_adaplr.core.hugging_face import plain_config
from ray_adaplr.errors import InputError
from ray_adaplr.integrations.sources import open_guest, open_model
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.models import load_model, save_model

transformers = pytest.importorskip("transformers")
Make = Callable[..., Path]
pytestmark = pytest.mark.usefixtures("unrendered")
QUICK = Config(epochs=2, distill_epochs=1, warm_start_epochs=1, warmup=1, n_e=2)


@pytest.mark.parametrize("kind", ["vit", "resnet", "convnext"])
def test_a_folder_gives_the_logits_that_transformers_gives(
    kind: str, hugging_face_folder: Make, pictures: np.ndarray, tmp_path: Path
) -> None:
    folder = hugging_face_folder(kind)
    model = open_model(folder).eval()
    assert model.spec.name == f"hf/{kind}"
    assert model.spec.classes == ("ant", "bee", "cat")
    assert (model.spec.image_size, model.spec.mean, model.spec.std) == ((16, 16), (0.4,) * 3, (0.3,) * 3)
    theirs = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    with torch.inference_mode():
        expected = theirs(**processor(list(pictures), return_tensors="pt")).logits
        images = torch.from_numpy(pictures).permute(0, 3, 1, 2) / 255
        torch.testing.assert_close(model(images), expected, atol=1e-5, rtol=0)
    save_model(Folder(tmp_path / "saved"), model)
    again = load_model(tmp_path / "saved").eval()
    assert again.spec == model.spec
    with torch.inference_mode():
        assert torch.equal(again(images), model(images))


def test_a_folder_is_adapted_and_its_result_loads_again(
    hugging_face_folder: Make, pictures: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "pictures.npz", images=pictures)
    out = tmp_path / "run"
    quick = [f"--set={name}={QUICK.model_dump()[name]}" for name in QUICK.model_fields_set]
    source, target = str(hugging_face_folder()), str(tmp_path / "pictures.npz")
    words = ["adapt", "--source", source, "--target", target, "--out", str(out), "--engine", "local", *quick]
    assert main(words) == 0
    assert "16x16 RGB, mean 0.4 0.4 0.4, std 0.3 0.3 0.3" in capsys.readouterr().err
    network = ray_adaplr.load(out / "target_model")
    assert isinstance(network, transformers.ViTForImageClassification)
    assert network.config.id2label == {0: "ant", 1: "bee", 2: "cat"}
    table = tmp_path / "predictions.parquet"
    model = str(out / "target_model")
    assert main(["predict", "--model", model, "--data", target, "--out", str(table)]) == 0
    assert main(["adapt", "--out", str(out), "--engine", "local", *quick]) == 0  # the source is found again
    assert "already done" in capsys.readouterr().err


def test_python_takes_a_folder_as_source_and_as_guest(
    hugging_face_folder: Make, pictures: np.ndarray, tmp_path: Path
) -> None:
    folder = hugging_face_folder("resnet")
    result = AdaPLR(QUICK, LOCAL, verbose=False).fit(folder, pictures, tmp_path / "run", guest=str(folder))
    assert result.labels.num_rows == 60
    assert set(result.labels["refined_class"].to_pylist()) <= {"ant", "bee", "cat"}
    assert "The guest hf/resnet" in result.summary["remarks"][0]
    assert open_guest(f"hf:{folder}").spec.num_classes == 3


def test_unnamed_classes_are_named_by_the_user_and_equal_names_told_apart(hugging_face_folder: Make) -> None:
    folder = hugging_face_folder("vit", num_labels=4)
    assert open_model(folder).spec.classes == ()
    assert open_model(folder).spec.num_classes == 4
    assert open_model(folder, classes=["a", "b", "c", "d"]).spec.classes == ("a", "b", "c", "d")
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {"0": "crane", "1": "bee", "2": "cat", "3": "crane"}
    (folder / "config.json").write_text(json.dumps(config))
    assert open_model(folder).spec.classes == ("crane (0)", "bee", "cat", "crane (3)")
    with pytest.raises(InputError, match=r"says itself what its classes are, crane \(0\), bee.*leave --classes out"):
        open_model(folder, classes=["bee", "crane", "cat", "dog"])


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        ({"do_rescale": False}, (16, 0.4 / 255, 0.3 / 255, "resize")),
        ({"rescale_factor": 1 / 127.5}, (16, 0.2, 0.15, "resize")),
        ({"do_normalize": False}, (16, 0.0, 1.0, "resize")),
        ({"size": {"shortest_edge": 20}}, (20, 0.4, 0.3, "crop")),
        ({"do_center_crop": True, "crop_size": {"height": 12, "width": 12}}, (12, 0.4, 0.3, "crop")),
    ],
)
def test_the_processors_file_says_how_the_model_is_fed(
    hugging_face_folder: Make, processor: dict[str, object], expected: tuple[int, float, float, str]
) -> None:
    folder = hugging_face_folder("resnet")
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | processor))
    spec = open_model(folder).spec
    size, mean, std, aspect = expected
    assert (spec.image_size, spec.aspect) == ((size, size), aspect)
    assert (spec.mean[0], spec.std[0]) == (pytest.approx(mean), pytest.approx(std))


def _without_processor(folder: Path) -> None:
    (folder / "preprocessor_config.json").unlink()


def _swapped(folder: Path) -> None:
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"do_flip_channel_order": True}))


def _other_type(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "bert"}))


def _without_a_head(folder: Path) -> None:
    transformers.AutoModel.from_pretrained(folder).save_pretrained(folder)


def _without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _one_class_more(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["id2label"]["3"] = "dog"
    (folder / "config.json").write_text(json.dumps(config))


def _gaps(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"id2label": {"0": "ant", "2": "bee"}}))


def _flat(folder: Path) -> None:
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"size": {"height": 16, "width": 12}}))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_without_processor, "no preprocessor_config.json, so its mean and std are not known"),
        (_swapped, "swaps red and blue"),
        (_other_type, "no image classifier 'bert'"),
        (_without_a_head, "lacks 2 weights of an image classifier with 3 classes"),
        (_without_weights, "cannot be read as a Hugging Face model"),
        (_one_class_more, "lacks 2 weights of an image classifier with 4 classes"),
        (_gaps, "does not name the classes 0, 1, 2"),
        (_flat, "16x12 pixels; stores hold squares alone"),
    ],
)
def test_a_folder_that_cannot_be_used_gets_a_sentence(
    hugging_face_folder: Make, spoil: Callable[[Path], None], words: str
) -> None:
    folder = hugging_face_folder()
    spoil(folder)
    with pytest.raises(InputError, match=words):
        open_model(folder)


def test_code_that_a_config_names_is_dropped(hugging_face_folder: Make) -> None:
    folder = hugging_face_folder()
    config = json.loads((folder / "config.json").read_text())
    evil = {"auto_map": {"AutoModelForImageClassification": "evil.Evil"}, "_attn_implementation": "somebody/kernels"}
    (folder / "config.json").write_text(json.dumps(config | evil))
    (folder / "evil.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    model = open_model(folder)
    assert not (folder / "ran").exists()
    assert model.spec.config is not None
    assert not set(evil) & set(model.spec.config)
    assert plain_config({"inner": {"attn_implementation": "x/y", "depth": 2}}) == {"inner": {"depth": 2}}


def test_a_hubs_name_without_a_network_gets_a_sentence() -> None:
    with pytest.raises(InputError, match=r"hf:nobody/nothing is no folder here and cannot be had from the hub"):
        open_model("hf:nobody/nothing")


def test_without_transformers_there_is_the_pip_command(
    hugging_face_folder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = hugging_face_folder()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"needs transformers: pip install 'ray-adaplr\[hf\]'"):
        open_model(folder)
