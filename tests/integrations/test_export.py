"""Models go out: what is written runs in the tool that it is for, without this package, with the same logits."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ray_adaplr
from ray_adaplr import AdaPLR, Config, ScalingConfig
from ray_adaplr.cli.main import main
from ray_adaplr.core.models import Classifier, ModelSpec, build
from ray_adaplr.errors import RunFailed
from ray_adaplr.integrations import export as door
from ray_adaplr.stages.result import Result
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.models import load_model, save_model

pytestmark = pytest.mark.usefixtures("unrendered")
SHORT = Config(n_e=2, epochs=1, distill_epochs=1, warm_start="off")
CLASSES = ("ant", "bee", "ünder the sea")
WITHOUT_US = """
import sys
sys.modules["ray_adaplr"] = None
import numpy, torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification
model = AutoModelForImageClassification.from_pretrained(sys.argv[1]).eval()
processor = AutoImageProcessor.from_pretrained(sys.argv[1])
pictures = [Image.fromarray(picture.squeeze()) for picture in numpy.load(sys.argv[2])]
with torch.no_grad():
    numpy.save(sys.argv[3], model(processor(pictures, return_tensors="pt")["pixel_values"]).logits.numpy())
print(model.config.id2label)
"""


def saved(folder: Path, name: str = "timm/test_resnet", **spec: Any) -> Classifier:
    """A small model's folder; its statistics are no longer those of a fresh BatchNorm."""
    fields = {"name": name, "num_classes": 3, "classes": CLASSES, "image_size": (32, 32), "normalize": "half", **spec}
    model = build(ModelSpec(**fields), seed=1)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.running_mean is not None
            layer.running_mean.normal_()
    save_model(Folder(folder), model)
    return model.eval()


def logits_of(model: Classifier, images: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.from_numpy(images).permute(0, 3, 1, 2) / 255).numpy()


def normalised(model: Classifier, images: np.ndarray) -> Tensor:
    return model.prepare(torch.from_numpy(images).permute(0, 3, 1, 2) / 255).contiguous()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_onnxruntime_gives_the_logits_of_a_runs_target_model(
    straight_run: Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    file = tmp_path / "digits.onnx"
    assert main(["export", straight_run.path, "--to", "onnx", "--out", str(file)]) == 0
    said = capsys.readouterr().out
    assert "on 32 of the run's target images" in said
    assert "[batch, 1, 16, 16]" in said
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    images = np.random.default_rng(3).integers(0, 256, (7, 16, 16, 1), dtype=np.uint8)
    model = straight_run.classifier
    [found] = session.run(None, {"images": normalised(model, images).numpy()})
    np.testing.assert_allclose(found, logits_of(model, images), atol=1e-4)
    assert session.get_inputs()[0].shape == ["batch", 1, 16, 16]
    about = {name: json.loads(value) for name, value in session.get_modelmeta().custom_metadata_map.items()}
    assert about["classes"] == list("0123456789")
    assert about["image_size"] == [16, 16]
    assert (about["channels"], about["mean"], about["std"]) == (1, [0.0], [1.0])
    again = contents(tmp_path)
    assert main(["export", straight_run.path, "--to", "onnx", "--out", str(file)]) == 0, "ours may be replaced"
    assert contents(tmp_path).keys() == again.keys()


def test_torch_export_load_gives_the_logits_of_a_model_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, file = saved(tmp_path / "model", "resnet18", normalize="imagenet"), tmp_path / "model.pt2"
    assert main(["export", str(tmp_path / "model"), "--to", "torch-export", "--out", str(file)]) == 0
    assert "32 images made from a fixed seed (its folder belongs to no run)" in capsys.readouterr().out
    extra = {"model.json": ""}
    module = torch.export.load(file, extra_files=extra).module()
    about = json.loads(extra["model.json"])
    assert about["classes"] == list(CLASSES)
    assert about["mean"] == list(model.spec.mean)
    for count in (1, 5):
        images = np.random.default_rng(count).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        found = module(normalised(model, images)).detach().numpy()
        np.testing.assert_allclose(found, logits_of(model, images), atol=1e-4)


def without_us(folder: Path, images: np.ndarray) -> tuple[np.ndarray, str]:
    """The logits that transformers alone gives, and the class names it knows."""
    given, made = folder.parent / "images.npy", folder.parent / "logits.npy"
    np.save(given, images)
    command = [sys.executable, "-c", WITHOUT_US, str(folder), str(given), str(made)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return np.load(made), done.stdout


def test_transformers_alone_loads_a_timm_network(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    pytest.importorskip("transformers")
    model, out = saved(tmp_path / "model", channels=1), tmp_path / "hf"
    out.mkdir()
    assert main(["export", str(tmp_path / "model"), "--to", "hf", "--out", str(out)]) == 0
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 1), dtype=np.uint8)
    found, names = without_us(out, images)
    np.testing.assert_allclose(found, logits_of(model, images), atol=1e-4)
    assert "ünder the sea" in names
    assert main(["export", str(tmp_path / "model"), "--to", "hf", "--out", str(out)]) == 2, "a folder with files stays"


def test_a_hugging_face_folder_comes_in_is_adapted_and_goes_out_again(
    hugging_face_folder: Callable[..., Path], pictures: np.ndarray, tmp_path: Path
) -> None:
    trainer = AdaPLR(SHORT, ScalingConfig(engine="local"), verbose=False)
    result = trainer.fit(hugging_face_folder(), pictures, tmp_path / "run")
    said = ray_adaplr.export(result, "hf", tmp_path / "hf")
    assert "32 of the run's target images" in said
    found, names = without_us(tmp_path / "hf", pictures[:5])
    np.testing.assert_allclose(found, logits_of(result.classifier, pictures[:5]), atol=1e-4)
    assert names.strip() == "{0: 'ant', 1: 'bee', 2: 'cat'}"
    before = load_model(tmp_path / "run/start_models/0").network.state_dict()
    after = result.classifier.network.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before), "it was trained"


class Mine(nn.Module):
    """A network of a user's own, which no name builds; `on_values` makes it one that nothing can trace."""

    def __init__(self, on_values: bool = False) -> None:
        super().__init__()
        self.on_values, self.body, self.head = on_values, nn.Flatten(), nn.Linear(64, 3)

    def forward(self, images: Tensor) -> Tensor:
        if self.on_values and images.mean().item() > 100:
            images = images / 255
        return self.head(self.body(images))


def mine() -> nn.Module:
    return Mine()


def test_a_network_of_ones_own_class_goes_out_from_python_and_by_its_factory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 1), dtype=np.uint8)
    trainer = AdaPLR(SHORT, ScalingConfig(engine="local"), verbose=False)
    result = trainer.fit(Mine(), images, tmp_path / "run", normalize="image")
    assert result.model is not None, "whose guard against raw images does not stand in the way"
    ray_adaplr.export(result, "torch-export", tmp_path / "a.pt2")
    ray_adaplr.export(result.path, "torch-export", tmp_path / "b.pt2", network=Mine())
    place = f"{result.path}/target_model"
    assert main(["export", place, "--to", "torch-export", "--out", str(tmp_path / "c.pt2")]) == 2
    assert "--factory" in capsys.readouterr().err
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    factory = ["--factory", "test_export:mine"]
    assert main(["export", place, "--to", "torch-export", "--out", str(tmp_path / "c.pt2"), *factory]) == 0
    for name in "abc":
        module = torch.export.load(tmp_path / f"{name}.pt2").module()
        found = module(normalised(result.classifier, images)).detach().numpy()
        np.testing.assert_allclose(found, logits_of(result.classifier, images), atol=1e-4)


def test_what_does_not_agree_or_cannot_be_traced_fails_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ModelSpec(name="own/Mine", num_classes=3, channels=1, image_size=(8, 8))
    save_model(Folder(tmp_path / "model"), Classifier(Mine(), spec))
    before = contents(tmp_path)
    with pytest.raises(RunFailed, match="own/Mine cannot be written that way"):
        ray_adaplr.export(tmp_path / "model", "torch-export", tmp_path / "a.pt2", network=Mine(on_values=True))
    assert capsys.readouterr() == ("", ""), "one sentence, and not the tool's pages"
    monkeypatch.setattr(door, "TOLERANCE", -1.0)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    words = ["--to", "torch-export", "--out", str(tmp_path / "a.pt2"), "--factory", "test_export:mine"]
    assert main(["export", str(tmp_path / "model"), *words]) == 1
    assert "from the original's on 32 images made from a fixed seed" in capsys.readouterr().err
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "{model} --to hf --out {here}/new",
            "transformers does not know the network digit_cnn; --to hf takes timm",
        ),
        ("{model} --to hf --out {here}/mine.csv", "is there already; choose a new or empty folder"),
        ("{model} --to onnx --out {here}/a.pt2", "let its name end in .onnx"),
        ("{model} --to onnx --out {here}/mine.onnx", "was not made by this command"),
        ("{here}/nowhere --to torch-export --out {here}/a.pt2", "there is no model at"),
        ("{here} --to cleanlab --out {here}/a.csv", "holds no run"),
        ("{here} --to cleanlab --out {here}/a.txt", "let the name end in .csv"),
        ("{run} --to cleanlab --out {here}/mine.csv", "was not made by this command"),
        ("{here}/inferred --to onnx --out {here}/a.onnx", "is a run without a target model yet"),
    ],
)
def test_bad_input_gets_a_sentence_and_leaves_everything_as_it_was(
    words: str,
    said: str,
    straight_run: Result,
    source_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "mine.csv").write_text("id,label\n")
    (tmp_path / "mine.onnx").write_text("mine")
    (tmp_path / "inferred").mkdir()
    (tmp_path / "inferred/run.json").write_text("{}")
    before = contents(tmp_path)
    line = words.format(model=source_folder, here=tmp_path, run=straight_run.path)
    assert main(["export", *line.split()]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert len(told.strip().splitlines()) == 1
    assert contents(tmp_path) == before


def test_where_a_package_is_missing_there_is_the_pip_command(
    source_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for package, to, extra in (("onnxruntime", "onnx", "onnx"), ("transformers", "hf", "hf")):
        monkeypatch.setitem(sys.modules, package, None)
        assert main(["export", str(source_folder), "--to", to, "--out", str(tmp_path / f"a.{to}")]) == 2
        assert f"needs {package}: pip install 'ray-adaplr[{extra}]'" in capsys.readouterr().err
