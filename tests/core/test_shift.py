"""Whether images are another domain's is read off BatchNorm's statistics: not off labels, and not off too little."""

import numpy as np
import pytest
import torch
from torch import nn

from ray_adaplr.core.models import Classifier, ModelSpec, build
from ray_adaplr.core.predict import batchnorm_layers, predict_logits, reestimate_batchnorm
from ray_adaplr.core.shift import ENOUGH_IMAGES, FAMILIAR, distances, shift_of
from ray_adaplr.data.store import ImageStore

SPEC = ModelSpec(num_classes=4, channels=1, width=8, image_size=(8, 8))


def noise(count: int, brightest: int = 256, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, brightest, (count, 8, 8, 1), dtype=np.uint8)


def knowing(images: np.ndarray) -> Classifier:
    model = build(SPEC)
    reestimate_batchnorm(model, images.__getitem__, np.arange(len(images)))
    return model


def test_images_like_those_a_network_knows_have_no_shift_and_others_have_one() -> None:
    model = knowing(noise(2000))
    for count in (ENOUGH_IMAGES, 200, 2000):
        same, darker = noise(count, seed=1), noise(count, brightest=128, seed=1)
        assert abs(shift_of(model, same.__getitem__, count)) < FAMILIAR / 2  # type: ignore[arg-type]
        assert shift_of(model, darker.__getitem__, count) > 10 * FAMILIAR  # type: ignore[operator]


def test_real_digits_of_another_domain_have_a_shift_and_others_of_the_same_have_none(
    source_model: Classifier, digit_stores: dict[str, ImageStore]
) -> None:
    known, other = digit_stores["mnist"], digit_stores["optdigits"]
    reestimate_batchnorm(source_model, known.read, np.arange(0, 1500, 2))
    same, shifted = (
        shift_of(source_model, lambda rows: known.read(2 * rows + 1), 750),
        shift_of(source_model, other.read, 300),
    )
    assert same is not None
    assert shifted is not None
    assert same < FAMILIAR < shifted


def test_images_are_strange_where_they_lie_closer_to_one_another_than_to_what_a_network_knows() -> None:
    def found(images: np.ndarray) -> tuple[float, float] | None:
        return distances(model, len(images), lambda rows: predict_logits(model, images.__getitem__, rows), 100)

    def lit(count: int, lamps: tuple[int, int], seed: int = 0) -> np.ndarray:
        """Noise, each image as bright as its own lamp."""
        lamp = np.random.default_rng(seed).integers(*lamps, (count, 1, 1, 1))
        return (noise(count, seed=seed) * (lamp / 255)).astype(np.uint8)

    model = knowing(lit(2000, (40, 256)))
    same, darker, all_dark = lit(200, (40, 256), 1), lit(200, (40, 200), 1), lit(200, (40, 60), 1)
    among_them = [(found(images) or (0, 0))[1] for images in (same, darker, all_dark)]
    assert among_them[0] < 0.1 < among_them[1] < 1 < 3 < among_them[2]
    assert found(same[: ENOUGH_IMAGES - 1]) is None


def test_looking_for_a_shift_changes_nothing_in_the_network() -> None:
    images = noise(200)
    model = knowing(images)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first = shift_of(model, images.__getitem__, len(images))
    assert shift_of(model, images.__getitem__, len(images)) == first
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("why", ["no layer", "few images", "never trained", "no statistics", "not called"])
def test_what_cannot_be_told_is_none(why: str) -> None:
    images = noise(ENOUGH_IMAGES - (why == "few images"))
    model = knowing(noise(500))
    if why == "no layer":
        model = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), SPEC)
    if why == "never trained":
        model = build(SPEC)
    if why == "no statistics":  # as some methods leave a layer that is to use each batch's own
        for layer in batchnorm_layers(model):
            layer.running_mean = layer.running_var = None
    if why == "not called":
        spare = nn.BatchNorm2d(3)
        spare.running_mean.fill_(1.0)  # type: ignore[union-attr]
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
        network.spare = spare
        network.forward = lambda x: network[1](network[0](x))  # type: ignore[method-assign]
        model = Classifier(network, SPEC)
    assert shift_of(model, images.__getitem__, len(images)) is None


def test_layers_of_flat_features_count_too() -> None:
    model = Classifier(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 4)), SPEC)
    known = noise(2000)
    reestimate_batchnorm(model, known.__getitem__, np.arange(2000))
    same = shift_of(model, noise(500, seed=1).__getitem__, 500)
    assert same is not None
    assert same < FAMILIAR
    assert shift_of(model, noise(500, brightest=64).__getitem__, 500) > FAMILIAR  # type: ignore[operator]


def test_a_layer_that_is_given_its_input_by_name_counts_too() -> None:
    class ByName(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.BatchNorm2d(1), nn.Linear(64, 4)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.head(self.norm(input=images).flatten(1))

    model, known = Classifier(ByName(), SPEC), noise(2000)
    reestimate_batchnorm(model, known.__getitem__, np.arange(2000))
    assert shift_of(model, noise(500, brightest=64).__getitem__, 500) > FAMILIAR  # type: ignore[operator]


def test_a_network_without_such_layers_looks_at_no_image() -> None:
    def looked_at(rows: np.ndarray) -> np.ndarray:
        raise AssertionError("looked at")

    model = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), SPEC)
    assert shift_of(model, looked_at, 500) is None
