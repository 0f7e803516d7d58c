"""Models by name and by file: Lightning checkpoints, NAME=FILE, published weights from a package's own cache."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

from ray_adaplr import AdaPLR, Config, ScalingConfig
from ray_adaplr.cli.main import main
from ray_adaplr.core.models import DigitCNN
from ray_adaplr.errors import InputError
from ray_adaplr.integrations.sources import open_guest, open_model
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.models import absolute_model_name, load_model, save_model

pytestmark = pytest.mark.usefixtures("unrendered")
QUICK = Config(epochs=2, distill_epochs=1, warm_start_epochs=1, warmup=1, n_e=2)


def lightning_checkpoint(path: Path, attribute: str, **hyperparameters: Any) -> DigitCNN:
    """A checkpoint that Lightning's trainer wrote after a step; returns the network that was in it."""
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self, **_parameters: Any) -> None:
            super().__init__()
            self.save_hyperparameters()
            setattr(self, attribute, DigitCNN(3))
            self.register_buffer("class_weights", torch.ones(3))

        def training_step(self, batch: list[torch.Tensor], _number: int) -> torch.Tensor:
            images, labels = batch
            return nn.functional.cross_entropy(getattr(self, attribute)(images), labels)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters())

    module = Module(**hyperparameters)
    data = torch.utils.data.TensorDataset(torch.rand(4, 3, 16, 16), torch.tensor([0, 1, 2, 0]))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, **quiet)
    trainer.fit(module, torch.utils.data.DataLoader(data, 4))
    trainer.save_checkpoint(path)
    return getattr(module, attribute).eval()


@pytest.mark.parametrize("attribute", ["model", "net"])
def test_a_lightning_checkpoint_is_a_weights_file(attribute: str, tmp_path: Path) -> None:
    file = tmp_path / "last.ckpt"
    network = lightning_checkpoint(file, attribute, lr=0.1, names=["a", "b"])
    images = torch.rand(5, 3, 16, 16)
    for model in (open_model(f"digit_cnn={file}"), open_model(file, "digit_cnn", ["ant", "bee", "cat"])):
        assert model.spec.num_classes == 3
        with torch.inference_mode():
            torch.testing.assert_close(model.eval().network(images), network(images), atol=1e-5, rtol=0)


def test_a_lightning_checkpoint_is_adapted(tmp_path: Path, pictures: np.ndarray) -> None:
    lightning_checkpoint(tmp_path / "last.ckpt", "model")
    np.savez(tmp_path / "pictures.npz", images=pictures)
    (tmp_path / "classes.txt").write_text("ant\nbee\ncat\n")
    quick = [f"--set={name}={QUICK.model_dump()[name]}" for name in QUICK.model_fields_set]
    source = [f"--source=digit_cnn={tmp_path / 'last.ckpt'}", f"--classes={tmp_path / 'classes.txt'}"]
    words = [f"--target={tmp_path / 'pictures.npz'}", f"--out={tmp_path / 'run'}", "--engine=local", "--quiet"]
    assert main(["adapt", *source, *words, *quick]) == 0
    os.remove(tmp_path / "pictures.npz")
    assert main(["adapt", f"--out={tmp_path / 'run'}", "--engine=local", *quick]) == 0  # by run.json alone
    scaling = ScalingConfig(engine="local")
    result = AdaPLR(QUICK, scaling, verbose=False).fit(source[0][9:], pictures, tmp_path / "again")
    assert result.labels.num_rows == 60


class Dangerous:
    """Makes a file when it is unpickled."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.made), "w")


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    content = {"state_dict": DigitCNN(3).state_dict(), "hyper_parameters": Dangerous(tmp_path / "ran")}
    torch.save(content, tmp_path / "bad.ckpt")
    with pytest.raises(InputError, match="holds more than tensors, and code in a file is not run"):
        open_model(f"digit_cnn={tmp_path / 'bad.ckpt'}")
    assert not (tmp_path / "ran").exists()
    pickle.loads(pickle.dumps(Dangerous(tmp_path / "ran"))).close()  # it would have
    assert (tmp_path / "ran").exists()


def test_two_networks_in_a_checkpoint_are_not_chosen_from(tmp_path: Path) -> None:
    parts = {"student": DigitCNN(3), "teacher": DigitCNN(3)}
    torch.save({"state_dict": nn.ModuleDict(parts).state_dict()}, tmp_path / "two.ckpt")
    with pytest.raises(InputError, match=r"2 networks of this kind, below 'student\.' and 'teacher\.'"):
        open_model(f"digit_cnn={tmp_path / 'two.ckpt'}")


def test_published_weights_come_by_name_for_sources_and_guests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    name = "mobilenet_v3_small"
    file = torchvision.models.get_model_weights(name).DEFAULT.url.rsplit("/", 1)[1]
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    network = torchvision.models.get_model(name, weights=None)
    torch.save(network.state_dict(), tmp_path / "hub" / "checkpoints" / file)
    source, guest = open_model(name), open_guest(name)
    assert source.spec.num_classes == 1000
    assert source.spec.classes[0] == "tench"
    assert len(set(source.spec.classes)) == 1000
    assert source.spec.image_size == guest.spec.image_size == (224, 224)
    assert source.spec.mean == guest.spec.mean == (0.485, 0.456, 0.406)
    for key, tensor in network.state_dict().items():
        assert torch.equal(source.network.state_dict()[key], tensor)


@pytest.mark.filterwarnings("ignore:The default weight initialization")
@pytest.mark.parametrize("name", ["inception_v3", "googlenet"])
def test_networks_that_change_their_input_themselves_do_so_by_name_by_file_and_from_a_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    torch.manual_seed(0)
    made = torchvision.models.get_model(name, weights=None, init_weights=False).eval()  # with auxiliary heads
    for layer in made.modules():
        if isinstance(layer, nn.BatchNorm2d):  # fitted to images, so that logits do not vanish
            layer.train().momentum = None
    made(2 * torch.rand(4, 3, 96, 96) - 1)
    file = tmp_path / "hub" / "checkpoints" / torchvision.models.get_model_weights(name).DEFAULT.url.rsplit("/", 1)[1]
    file.parent.mkdir(parents=True)
    torch.save(made.state_dict(), file)
    theirs = torchvision.models.get_model(name, weights="DEFAULT").eval()
    torch.save(theirs.state_dict(), tmp_path / "own.pt")
    source = open_model(name)
    save_model(Folder(tmp_path / "saved"), source)
    images = torch.rand(2, 3, 96, 96)
    with torch.inference_mode():
        expected = theirs(source.prepare(images))
        for model in (source, load_model(tmp_path / "saved"), open_model(f"{name}={tmp_path}/own.pt")):
            torch.testing.assert_close(model.eval()(images), expected, atol=1e-3 * expected.std().item(), rtol=0)


def test_names_that_are_nothing_get_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # no network
    with pytest.raises(InputError, match=r"weights of mobilenet_v3_small cannot be had .* mobilenet_v3_small=FILE"):
        open_model("mobilenet_v3_small")
    with pytest.raises(InputError, match="there is no model at nowhere"):
        open_model("nowhere")
    with pytest.raises(InputError, match=r"there is no model at no\.ckpt"):
        open_model("resnet18=no.ckpt")


def test_a_models_name_is_found_again_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.pt").touch()
    assert absolute_model_name("weights.pt") == f"{tmp_path}/weights.pt"
    assert absolute_model_name("resnet18=weights.pt") == f"resnet18={tmp_path}/weights.pt"
    for name in ("resnet18", "timm/vit_tiny_patch16_224", "hf:nobody/nothing", "s3://bucket/model?region=eu"):
        assert absolute_model_name(name) == name
