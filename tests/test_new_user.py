"""A new user with a network and photographs of their own, through the public doors alone: Python, files, commands."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torchvision
from PIL import Image, ImageDraw
from safetensors.torch import load_file
from torch import Tensor, nn

import ray_adaplr
from ray_adaplr import AdaPLR, Config, ScalingConfig
from ray_adaplr.cli.main import main

pytestmark = pytest.mark.usefixtures("unrendered")
SIDE, CLASSES = 112, ("circle", "cross", "square")
MEAN, STD = (0.2, 0.3, 0.4), (0.3, 0.2, 0.25)
SHORT = Config(epochs=2, distill_epochs=2, warm_start_epochs=1, batch_size=16)
HERE = ScalingConfig(engine="local")


class MyNet(nn.Module):
    """What a user might have: no usual names, a head of its own."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        first = [nn.Conv2d(3, 8, 5, 4, 2), nn.BatchNorm2d(8), nn.ReLU()]
        second = [nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU()]
        self.trunk = nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.decide = nn.Linear(256, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.decide(self.trunk(images))


def draw(kind: str, seed: int, shifted: bool) -> Image.Image:
    """A bright shape on a dark ground; the new domain is tinted and noisy."""
    random = np.random.default_rng(seed)
    picture = Image.new("RGB", (SIDE, SIDE), (20, 20, 20))
    pen, (x, y), r = ImageDraw.Draw(picture), random.integers(40, 72, 2), int(random.integers(18, 34))
    if kind == "circle":
        pen.ellipse((x - r, y - r, x + r, y + r), fill=(230, 230, 230))
    elif kind == "square":
        pen.rectangle((x - r, y - r, x + r, y + r), fill=(230, 230, 230))
    else:
        pen.line((x - r, y - r, x + r, y + r), (230, 230, 230), 9)
        pen.line((x - r, y + r, x + r, y - r), (230, 230, 230), 9)
    if not shifted:
        return picture
    noisy = np.asarray(picture) * (0.7, 0.9, 0.6) + random.normal(25, 18, (SIDE, SIDE, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def write_images(folder: Path, per_class: int, shifted: bool, classes: tuple[str, ...] = CLASSES) -> Path:
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i in range(per_class):
            draw(name, 1000 * number + i + 50_000 * shifted, shifted).save(folder / name / f"{i:03d}.png")
    return folder


def tensor_of(files: list[Path]) -> Tensor:
    """The user's own loader and normalisation."""
    pixels = np.stack([np.asarray(Image.open(file).convert("RGB")) for file in files])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    return (images - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def trained(folder: Path, classes: tuple[str, ...] = CLASSES, net: nn.Module | None = None) -> nn.Module:
    """Plain PyTorch, as the user trained it elsewhere."""
    torch.manual_seed(0)
    files = sorted(folder.glob("*/*.png"))
    images, labels = tensor_of(files), torch.tensor([classes.index(file.parent.name) for file in files])
    net = (net or MyNet(len(classes))).train()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(6):
        for rows in torch.randperm(len(images)).split(16):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images[rows]), labels[rows]).backward()
            optimizer.step()
    return net.eval()


def ray_adaplr_command(*words: object) -> None:
    """A command in this process, which spares it the time to load."""
    assert main([str(word) for word in words]) == 0


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    write_images(folder / "old", 40, shifted=False)
    write_images(folder / "new", 30, shifted=True)
    return folder


@pytest.fixture(scope="module")
def net(photos: Path) -> nn.Module:
    return trained(photos / "old")


@pytest.fixture(scope="module")
def adapted(photos: Path, net: nn.Module) -> ray_adaplr.Result:
    """By the Python interface, from the module and the folder as they are."""
    trainer = AdaPLR(SHORT, HERE, verbose=False)
    return trainer.fit(net, photos / "new", photos / "run", normalize=(MEAN, STD), classes=CLASSES)


def test_every_way_to_use_the_new_model_gives_the_same_predictions(photos: Path, adapted: ray_adaplr.Result) -> None:
    files = sorted((photos / "new").glob("*/*.png"))
    images = tensor_of(files)
    with torch.no_grad():
        expected = adapted.model(images)
        loaded = ray_adaplr.load(f"{adapted.path}/target_model", network=MyNet())(images)
        plain = MyNet()
        plain.load_state_dict(load_file(f"{adapted.path}/target_model/model.safetensors"))
        by_hand = plain.eval()(images)
    torch.testing.assert_close(loaded, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(by_hand, expected, rtol=0, atol=1e-5)
    table = adapted.predict(photos / "new")
    rows = {name: i for i, name in enumerate(table["id"].to_pylist())}
    order = [rows[f"{file.parent.name}/{file.name}"] for file in files]
    confidence, labels = expected.softmax(1).max(1)
    np.testing.assert_allclose(table["confidence"].to_numpy()[order], confidence.numpy(), atol=1e-5)
    assert table["label"].to_numpy()[order].tolist() == labels.tolist()
    assert adapted.evaluate(photos / "new")["images"] == len(files)


def test_the_description_beside_the_weights_is_complete(adapted: ray_adaplr.Result) -> None:
    described = json.loads(Path(adapted.path, "target_model/model.json").read_text())
    assert described["image_size"] == [SIDE, SIDE]
    assert (described["mean"], described["std"], described["channels"]) == ([*MEAN], [*STD], 3)
    assert (described["classes"], described["head"]) == ([*CLASSES], "decide")


def test_images_that_nobody_normalised_are_refused(adapted: ray_adaplr.Result) -> None:
    raw = torch.randint(0, 256, (2, 3, SIDE, SIDE), dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"not torch.uint8"):
        adapted.model(raw)
    with pytest.raises(ValueError, match="normalise them as"):
        adapted.model(raw.float())


def test_a_result_is_short_in_print_and_writes_its_report_again(adapted: ray_adaplr.Result) -> None:
    assert len(repr(adapted)) < 200
    assert Path(adapted.report()).is_file()


def test_a_wrong_normalisation_is_noticed(photos: Path, net: nn.Module) -> None:
    far = ((40.0, 40.0, 40.0), (0.01, 0.01, 0.01))
    trainer = AdaPLR(SHORT, HERE, verbose=False)
    result = trainer.fit(net, photos / "new", photos / "wrong", normalize=far, classes=CLASSES)
    assert any("Is its normalisation right" in warning for warning in result.summary["warnings"])


def test_a_softmax_at_the_end_is_refused_before_any_training(photos: Path, net: nn.Module) -> None:
    with pytest.raises(ValueError, match="probabilities, not logits"):
        AdaPLR(SHORT, HERE, verbose=False).fit(
            nn.Sequential(net, nn.Softmax(1)), photos / "new", photos / "soft", head="0.decide", classes=CLASSES
        )


def test_a_network_of_one_size_says_so_and_the_right_size_is_taken_next(photos: Path, tmp_path: Path) -> None:
    """As a ViT would; what is refused is no run that stands in the way of the next."""
    torch.manual_seed(0)
    rigid = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 3))
    trainer = AdaPLR(Config(epochs=1, distill_epochs=1, warm_start="off", distill_on="all"), HERE, verbose=False)
    with pytest.raises(ValueError, match=r"cannot take images of 112x112 .* prepare them in its size"):
        trainer.fit(rigid, photos / "new", tmp_path / "run", normalize=(MEAN, STD), classes=CLASSES)
    result = trainer.fit(rigid, photos / "new", tmp_path / "run", normalize=(MEAN, STD), classes=CLASSES, size=32)
    assert json.loads(Path(result.path, "target_model/model.json").read_text())["image_size"] == [32, 32]


def test_by_command_line_a_factory_names_the_network(
    photos: Path, net: nn.Module, adapted: ray_adaplr.Result, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same adaptation from a weights file: same labels, and `predict` agrees with the Python interface."""
    torch.save(net.state_dict(), photos / "net.pt")
    (photos / "classes.txt").write_text("\n".join(CLASSES))
    numbers = "/".join(",".join(map(str, part)) for part in (MEAN, STD))
    made = ("--model", "test_new_user:MyNet", "--normalize", numbers)
    settings = [word for name in SHORT.model_fields_set for word in ("--set", f"{name}={getattr(SHORT, name)}")]
    command = ("adapt", "--source", photos / "net.pt", *made, "--classes", photos / "classes.txt", "--target")
    ray_adaplr_command(*command, photos / "new", "--out", photos / "by_command", "--engine", "local", *settings)
    assert f"{SIDE}x{SIDE} RGB, mean 0.2 0.3 0.4, std 0.3 0.2 0.25" in "".join(capsys.readouterr())
    ours, theirs = (pq.read_table(f"{run}/labels.parquet") for run in (adapted.path, photos / "by_command"))
    assert ours["refined_label"].to_pylist() == theirs["refined_label"].to_pylist()
    out = photos / "predictions.parquet"
    model = ("--model", photos / "by_command/target_model", "--factory", "test_new_user:MyNet")
    ray_adaplr_command("predict", *model, "--data", photos / "new", "--out", out)
    expected = adapted.predict(photos / "new")["confidence"].to_numpy()
    np.testing.assert_allclose(pq.read_table(out)["confidence"].to_numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "timm/mobilenetv3_small_050"])
def test_a_published_architecture_at_another_size_with_two_classes_from_a_csv(name: str, tmp_path: Path) -> None:
    """No 224 pixels, two classes, a CSV with a header: predictions are those of the plain network on the files."""
    if name.startswith("timm/"):
        timm = pytest.importorskip("timm")
        net = timm.create_model(name.removeprefix("timm/"), num_classes=2)
    else:
        net = torchvision.models.get_model(name, num_classes=2)
    classes = CLASSES[:2]
    torch.save(net.state_dict(), tmp_path / "net.pt")
    (tmp_path / "classes.txt").write_text("\n".join(classes))
    files = sorted(write_images(tmp_path / "new", 12, shifted=True, classes=classes).glob("*/*.png"))
    lines = [f"{file},{file.parent.name}" for file in files]
    (tmp_path / "new.csv").write_text("\n".join(["path,label", *lines]))
    numbers = "/".join(",".join(map(str, part)) for part in (MEAN, STD))
    source = ("--source", tmp_path / "net.pt", "--model", name, "--normalize", numbers)
    settings = [word for change in ("epochs=1", "distill_epochs=1", "warm_start=off") for word in ("--set", change)]
    where = ("--classes", tmp_path / "classes.txt", "--size", "112", "--engine", "local", "--out", tmp_path / "run")
    ray_adaplr_command("adapt", *source, "--target", tmp_path / "new.csv", *where, *settings)
    model, out = tmp_path / "run/target_model", tmp_path / "predictions.parquet"
    ray_adaplr_command("predict", "--model", model, "--data", tmp_path / "new.csv", "--out", out)
    net.load_state_dict(load_file(model / "model.safetensors"))
    with torch.no_grad():
        confidence = net.eval()(tensor_of(files)).softmax(1).max(1).values.numpy()
    np.testing.assert_allclose(np.sort(pq.read_table(out)["confidence"].to_numpy()), np.sort(confidence), atol=1e-5)
