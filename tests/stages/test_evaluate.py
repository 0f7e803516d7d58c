"""Predictions on all cores are those on one."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.devices import torch_threads
from ray_adaplr.core.models import Classifier, ModelSpec, build
from ray_adaplr.core.predict import predict_logits
from ray_adaplr.data.ingest import prepare
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.store import ImageStore
from ray_adaplr.data.store_writer import write_store
from ray_adaplr.errors import InputError
from ray_adaplr.stages import evaluate as stage
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.stages.evaluate import evaluate, fitted, images_for, predict
from ray_adaplr.stages.first_labels import Inference

N = 1100  # three batches


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    pixels = np.random.default_rng(0).integers(0, 256, (N, 8, 8, 1), dtype=np.uint8)
    ids, truth = [str(i) for i in range(N)], np.arange(N) % 4
    return write_store(tmp_path / "store", [(ids, pixels)], classes=list("abcd"), domain="noise", truth=truth)


@pytest.fixture
def model() -> Classifier:
    return build(ModelSpec(num_classes=4, channels=1, width=4))


def test_several_threads_give_the_bits_of_one_and_the_model_stays_as_it_is(
    store: ImageStore, model: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[int] = set()
    both = threading.Barrier(2, timeout=60)  # a thread that did all the work alone would wait in vain

    def watched(network: Classifier, read: Any, samples: np.ndarray, *more: Any) -> np.ndarray:
        if len(seen) < 2:
            seen.add(threading.get_ident())
            both.wait()
        assert (network is not model, torch.get_num_threads()) == (True, 1)
        return predict_logits(network, read, samples, *more)

    with torch_threads(1):
        alone, scores = predict(model, store, probabilities=True), evaluate(model, store)
    before = {name: (tensor.data_ptr(), tensor.clone()) for name, tensor in model.state_dict().items()}
    monkeypatch.setattr(stage, "predict_logits", watched)
    with torch_threads(2):
        assert predict(model, store, probabilities=True).equals(alone)
        assert evaluate(model, store) == scores
        assert torch.get_num_threads() == 2
    assert len(seen) == 2
    for name, tensor in model.state_dict().items():
        assert (tensor.data_ptr(), tensor.equal(before[name][1])) == (before[name][0], True), name


def test_images_for_which_a_model_gives_no_numbers_are_named_and_not_labelled(
    store: ImageStore, tmp_path: Path
) -> None:
    class Divides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(64, 4)

        def forward(self, images: Tensor) -> Tensor:
            first = images[:, :1, 0, 0]
            return self.head(images.flatten(1)) * (first / first)  # NaN where it is 0

    pixels = np.full((N, 8, 8, 1), 9, np.uint8)
    pixels[501, 0, 0] = 0  # not among those that are looked at first
    dark = write_store(tmp_path / "dark", [(store.ids.to_pylist(), pixels)], classes=[], domain="dark")
    model = Classifier(Divides(), ModelSpec(num_classes=4, channels=1))
    with pytest.raises(InputError, match=r"NaN or infinite outputs for 1 image \(501\); mend it"):
        predict(model, dark)
    with pytest.raises(InputError, match="outputs for 1 image"):
        Inference(dark.paths, Config(), "cpu").look([model], [])


def test_an_error_in_a_thread_is_the_commands_error(
    store: ImageStore, model: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_index: np.ndarray) -> np.ndarray:
        raise OSError("the disk is gone")

    shape = store.read
    monkeypatch.setattr(store, "read", lambda index: shape(index) if len(index) == 1 else broken(index))
    with torch_threads(2), pytest.raises(OSError, match="the disk is gone"):
        predict(model, store)


def test_a_model_that_does_not_say_its_size_is_told_what_it_is_fed(
    store: ImageStore, model: Classifier, caplog: pytest.LogCaptureFixture
) -> None:
    with stage.images_for([model], store.paths[0]):
        assert "it is fed 8x8, the size of the images" in caplog.text
    caplog.clear()
    model.spec = model.spec.model_copy(update={"image_size": (8, 8)})
    with stage.images_for([model], store.paths[0]):
        assert not caplog.text


def test_images_that_cannot_be_read_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Image.new("L", (8, 8)).save(tmp_path / "good.png")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    model = build(ModelSpec(num_classes=2, channels=1, width=4, image_size=(8, 8)))
    with images_for([model], tmp_path) as seen:
        assert len(seen) == 1
    assert "1 image is left out: 'broken.png' (not an image of a known format)" in caplog.text


def test_models_whose_classes_stand_in_another_order_are_not_added_up(tmp_path: Path, model: Classifier) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 1), dtype=np.uint8)
    unnamed = write_store(tmp_path / "store", [([str(i) for i in range(6)], pixels)], classes=[], domain="noise")
    one, other = (
        Classifier(model.network, model.spec.model_copy(update={"classes": tuple(n)})) for n in ("abcd", "abdc")
    )
    assert predict([one, one], unnamed)["label"].equals(predict(one, unnamed)["label"])
    assert len(predict([one, model], unnamed)) == 6  # one without names is taken at its word
    with pytest.raises(InputError, match="where one has 'c', another has 'd'"):
        predict([one, other], unnamed)
    local = ScalingConfig(engine="local")
    with pytest.raises(InputError, match="where one has 'c', another has 'd'"):
        adapt(RunPlan([one, other], unnamed, str(tmp_path / "run"), Config(), local))


def test_pictures_become_squares_as_the_models_images_did(tmp_path: Path) -> None:
    rng, photos = np.random.default_rng(0), tmp_path / "photos"
    photos.mkdir()
    for i in range(6):
        Image.fromarray(rng.integers(0, 256, (8, 16, 3), dtype=np.uint8)).save(photos / f"{i}.png")
    source = build(ModelSpec(num_classes=2, channels=1, width=4, image_size=(8, 8)))
    cropped = ImageStore.open(
        *(prepare(str(photos), str(tmp_path / "cropped"), PrepareOptions(size=8, aspect="crop"))).paths
    )
    model = fitted(source, cropped)
    assert model.spec.aspect == "crop"
    assert "of the middle square" in model.spec.input
    with images_for([model], photos) as seen:
        assert (seen.aspect, seen.image_shape) == ("crop", (8, 8, 1))
        # A grey model on an RGB store sees what it sees of pictures that are made grey, to Pillow's rounding.
        same = predict_logits(model, seen.read, np.arange(6), "cpu")
    assert np.abs(predict_logits(model, cropped.read, np.arange(6), "cpu") - same).max() < 0.01


@pytest.mark.parametrize(("model_takes", "store_has", "told"), [("crop", "resize", True), ("resize", "crop", False)])
def test_a_model_of_middle_squares_that_is_fed_squeezed_pictures_is_told(
    model_takes: str, store_has: str, told: bool, model: Classifier, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "wide").mkdir()
    Image.new("L", (16, 8)).save(tmp_path / "wide/a.png")
    prepare(str(tmp_path / "wide"), str(tmp_path / "store"), PrepareOptions(size=8, channels=1, aspect=store_has))
    model.spec = model.spec.model_copy(update={"aspect": model_takes})
    predict(model, ImageStore.open(str(tmp_path / "store")))
    assert ("prepare it with --aspect crop" in caplog.text) == told
