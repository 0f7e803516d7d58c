"""Networks of every kind behave as one kind of thing: images in [0, 1] in, logits out, the head known."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from torch import Tensor, nn

from ray_adaplr.core.models import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Classifier,
    DigitCNN,
    ModelSpec,
    as_logits,
    averaged,
    build,
    fields_of_factory,
    find_head,
    grey,
    published_input,
)
from ray_adaplr.errors import InputError


class TwoBranches(nn.Module):
    """A network of the user's own: two linear layers, the head not the last one, no usual name."""

    def __init__(self, channels: int = 3, num_classes: int = 5) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, 6))
        self.decide = nn.ModuleDict({"classes": nn.Linear(6, num_classes)})
        self.unused = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.decide["classes"](self.body(x))


def spec(**changes: Any) -> ModelSpec:
    return ModelSpec(**{"num_classes": 5, "width": 2, **changes})


def images(n: int = 3, channels: int = 3, size: int = 8) -> Tensor:
    return torch.rand(n, channels, size, size, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def resnet18() -> Classifier:
    return build(ModelSpec(name="resnet18", num_classes=5)).eval()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(8, 8), (16, 16), (28, 20)])
@pytest.mark.parametrize("width", [1, 4])
def test_the_digit_cnn_takes_any_size_and_width(channels: int, size: tuple[int, int], width: int) -> None:
    network = DigitCNN(num_classes=7, channels=channels, width=width).eval()
    assert network(torch.rand(2, channels, *size)).shape == (2, 7)
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert [m.out_channels for m in convolutions] == [width, 2 * width, 4 * width]


def test_the_digit_cnn_is_small() -> None:
    assert 23_000 < sum(p.numel() for p in DigitCNN(10, channels=1, width=16).parameters()) < 27_000


@pytest.mark.parametrize(
    ("name", "head"), [("digit_cnn", "head"), ("mobilenet_v3_small", "classifier.3"), ("shufflenet_v2_x0_5", "fc")]
)
def test_the_head_of_a_known_network_is_found(name: str, head: str) -> None:
    model = build(ModelSpec(name=name, num_classes=6)).eval()
    assert model.head_name == model.spec.head == head
    assert model(images(2, size=32)).shape == (2, 6)


def test_the_head_of_a_resnet_is_found(resnet18: Classifier) -> None:
    assert resnet18.head_name == "fc"
    assert resnet18.head is resnet18.network.fc


def test_the_last_linear_layer_is_the_head_when_no_name_is_usual() -> None:
    assert find_head(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4))) == "2"


def test_a_named_head_of_a_users_own_network_is_taken() -> None:
    model = Classifier(TwoBranches(), spec(head="decide.classes"))
    assert model.head is model.network.decide["classes"]
    assert model(images()).shape == (3, 5)


def test_a_head_of_the_wrong_width_is_refused_with_a_sentence() -> None:
    with pytest.raises(InputError, match=r"the head 'unused' gives 2 classes but 5 are asked for; name the right head"):
        Classifier(TwoBranches(), spec())
    with pytest.raises(InputError, match=r"the head 'head' gives 4 classes but 5"):
        Classifier(DigitCNN(4), spec())


def test_a_named_head_that_is_not_there_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match="no layer 'heads' to be its head; did you mean 'head'"):
        Classifier(DigitCNN(5), spec(head="heads"))


def test_a_network_without_a_linear_layer_is_refused_with_a_sentence() -> None:
    with pytest.raises(InputError, match="no linear layer"):
        find_head(nn.Conv2d(1, 1, 1))


@pytest.mark.parametrize(
    ("wrong", "nearest"), [("resnet81", "resnet18"), ("digitcnn", "digit_cnn"), ("vit_b16", "vit_b_16")]
)
def test_an_unknown_network_is_refused_with_the_nearest_name(wrong: str, nearest: str) -> None:
    with pytest.raises(InputError, match=f"there is no model '{wrong}'; did you mean '{nearest}'"):
        build(spec(name=wrong))


def test_a_name_near_to_nothing_is_refused_with_what_there_is() -> None:
    with pytest.raises(InputError, match="use digit_cnn, a torchvision name, timm/NAME or package"):
        build(spec(name="qqqq"))


def test_a_network_for_colour_says_so_when_asked_to_be_grey() -> None:
    with pytest.raises(InputError, match="'resnet18' wants 3 channels, not 1; use channels=3"):
        build(spec(name="resnet18", channels=1))


@pytest.mark.parametrize(
    "wrong", [{"num_classes": 1}, {"channels": 2}, {"width": 0}, {"normalize": "mean"}, {"depth": 3}]
)
def test_a_description_that_makes_no_sense_is_refused(wrong: dict) -> None:
    with pytest.raises(ValidationError):
        spec(**wrong)


def test_the_same_seed_builds_the_same_network_and_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    one, same, other = build(spec(), seed=4), build(spec(), seed=4), build(spec(), seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    for key, tensor in one.state_dict().items():
        assert torch.equal(tensor, same.state_dict()[key])
    assert not torch.equal(one.head.weight, other.head.weight)


def test_grey_images_are_repeated_for_a_colour_network() -> None:
    model = build(spec(channels=3)).eval()
    grey = images(channels=1)
    assert torch.equal(model.prepare(grey), grey.repeat(1, 3, 1, 1))
    torch.testing.assert_close(model(grey), model(grey.repeat(1, 3, 1, 1)))


def test_a_grey_network_sees_colours_as_pillow_makes_them_grey() -> None:
    model = build(spec(channels=1)).eval()
    colours = (255 * images()).byte()
    pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L") for image in colours]
    by_pillow = torch.stack([torch.from_numpy(np.array(picture)) for picture in pictures])[:, None]
    torch.testing.assert_close(255 * model.prepare(colours / 255), by_pillow.float(), atol=0.51, rtol=0)
    assert model(images()).shape == (3, 5)


def test_normalisation_none_and_half_and_imagenet_are_their_formulas() -> None:
    x = images()
    assert torch.equal(build(spec(normalize="none")).prepare(x), x)
    torch.testing.assert_close(build(spec(normalize="half")).prepare(x), (x - 0.5) / 0.5)
    torch.testing.assert_close(build(spec(normalize="half", channels=1)).prepare(x), (grey(x) - 0.5) / 0.5)
    mean, std = (torch.tensor(values)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))
    torch.testing.assert_close(build(spec(normalize="imagenet")).prepare(x), (x - mean) / std)


def test_image_normalisation_standardises_each_image_by_itself() -> None:
    model = build(spec(normalize="image"))
    x = images()
    prepared = model.prepare(x)
    assert prepared.mean((1, 2, 3)).abs().max() < 1e-5
    torch.testing.assert_close(prepared.std((1, 2, 3)), torch.ones(3), atol=0.01, rtol=0)
    torch.testing.assert_close(model.prepare(x[1:2]), prepared[1:2])
    brighter = model.prepare(x * 0.5 + 0.3)
    torch.testing.assert_close(brighter, prepared, atol=0.02, rtol=0)


def test_a_blank_image_stays_finite_under_image_normalisation() -> None:
    assert build(spec(normalize="image")).prepare(torch.full((1, 3, 8, 8), 0.7)).isfinite().all()


def test_how_images_are_normalised_is_not_among_the_weights() -> None:
    assert {key.split(".")[0] for key in build(spec(normalize="imagenet")).state_dict()} == {"network"}


def test_features_and_head_get_their_own_learning_rates(resnet18: Classifier) -> None:
    for model in (build(spec()), resnet18, Classifier(TwoBranches(), spec(head="decide.classes"))):
        body, head = model.parameter_groups(lr=1e-5, lr_head=1e-4)
        assert (body["lr"], head["lr"]) == (1e-5, 1e-4)
        assert [id(p) for p in head["params"]] == [id(p) for p in model.head.parameters()]
        of_head = {id(p) for p in head["params"]}
        assert [id(p) for p in body["params"]] == [id(p) for p in model.parameters() if id(p) not in of_head]


def test_frozen_parameters_are_left_out_and_so_is_a_wholly_frozen_part() -> None:
    model = build(spec())
    first = next(model.network.features.parameters())
    first.requires_grad_(False)
    body = model.parameter_groups(1e-3, 1e-2)[0]
    assert all(p is not first for p in body["params"])
    model.head.requires_grad_(False)
    groups = model.parameter_groups(1e-3, 1e-2)
    assert [group["lr"] for group in groups] == [1e-3]


def test_a_fresh_head_is_seeded_and_changes_the_head_alone() -> None:
    model, twin = build(spec()), build(spec())
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    generator = torch.get_rng_state()
    model.reset_head(seed=9)
    twin.reset_head(seed=9)
    assert torch.equal(torch.get_rng_state(), generator)
    changed = {key for key, tensor in model.state_dict().items() if not torch.equal(tensor, before[key])}
    assert changed == {"network.head.weight", "network.head.bias"}
    assert torch.equal(model.head.weight, twin.head.weight)
    twin.reset_head(seed=10)
    assert not torch.equal(model.head.weight, twin.head.weight)


def test_a_description_survives_json() -> None:
    described = spec(name="resnet18", classes=("a", "b", "c", "d", "e"), image_size=(8, 8), normalize="half", head="fc")
    assert ModelSpec.model_validate_json(described.model_dump_json()) == described


def test_numbers_normalise_as_the_words_do() -> None:
    numbers = spec(normalize="0.485,0.456,0.406/0.229,0.224,0.225")
    assert numbers == spec(normalize="imagenet")
    assert numbers.input == "any size RGB, mean 0.485 0.456 0.406, std 0.229 0.224 0.225"


@pytest.mark.parametrize("wrong", ["mean", "1/2/3", "a,b/c", "0,0/1,1", "0,0,0/1,0,1", "0,0,0/1,nan,1"])
def test_a_normalisation_that_makes_no_sense_is_refused(wrong: str) -> None:
    with pytest.raises(ValidationError):
        spec(normalize=wrong)


def test_published_weights_bring_their_own_mean_and_deviation() -> None:
    assert published_input("resnet18")["mean"] == (0.485, 0.456, 0.406)
    pytest.importorskip("timm")
    assert published_input("timm/vit_tiny_patch16_224") == {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}


def test_a_wrong_timm_name_gets_the_nearest() -> None:
    pytest.importorskip("timm")
    with pytest.raises(InputError, match="did you mean 'timm/vit_tiny_patch16_224'"):
        build(spec(name="timm/vit_tiny_patch16_244"))


def test_outputs_that_carry_logits_are_unwrapped_and_others_refused() -> None:
    logits = torch.zeros(2, 3)
    assert as_logits(logits) is logits
    assert as_logits({"logits": logits}) is logits
    assert as_logits(SimpleNamespace(logits=logits)) is logits
    with pytest.raises(InputError, match="returns a tuple, not logits"):
        as_logits((logits, logits))


def test_a_factory_that_cannot_be_imported_is_refused() -> None:
    with pytest.raises(InputError, match="must be importable where the command runs"):
        build(spec(name="no.such.module:make"))


def mixed_network() -> nn.Module:
    return nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(12, 4, 1), nn.Flatten(), nn.Linear(64, 7))


def test_a_factorys_network_tells_its_channels_and_classes_and_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    assert fields_of_factory(f"{__name__}:TwoBranches", "decide.classes") == {"channels": 3, "num_classes": 5}
    assert fields_of_factory(f"{__name__}:TwoBranches", channels=1) == {"channels": 1, "num_classes": 2}
    assert fields_of_factory(f"{__name__}:mixed_network") == {"channels": 3, "num_classes": 7}
    assert torch.equal(torch.get_rng_state(), before)


def test_a_hugging_face_processor_brings_mean_and_deviation(tmp_path: Path) -> None:
    config = tmp_path / "preprocessor_config.json"
    config.write_text('{"do_normalize": true, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.2, 0.2]}')
    spec = ModelSpec(num_classes=3, normalize=str(config))
    assert (spec.mean, spec.std) == ((0.5, 0.4, 0.3), (0.2, 0.2, 0.2))
    config.write_text('{"size": 224}')
    with pytest.raises(ValueError, match="names no image_mean"):
        ModelSpec(num_classes=3, normalize=str(config))
    with pytest.raises(ValueError, match="cannot be read"):
        ModelSpec(num_classes=3, normalize=str(tmp_path / "nowhere.json"))


@pytest.mark.parametrize("content", ["[1, 2]", '"x"', "{", '{"image_mean": 3, "image_std": [1]}', "\xff"])
def test_a_processors_file_of_anything_else_is_named(tmp_path: Path, content: str) -> None:
    config = tmp_path / "preprocessor_config.json"
    config.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=r"preprocessor_config.json.* does not describe an image processor"):
        ModelSpec(num_classes=3, normalize=str(config))


def test_the_average_of_equal_models_is_the_same_model_whatever_numbers_it_holds() -> None:
    network = TwoBranches()
    network.unused.weight = nn.Parameter(torch.full((2, 6), 1 + 2**-40, dtype=torch.float64))
    network.register_buffer("rows", torch.tensor([2**24 + 1, 7]))  # no float32 holds the first
    network.register_buffer("turns", torch.polar(torch.ones(3), torch.arange(3.0)))  # of a rotary embedding
    network.register_buffer("large", torch.tensor([40_000.0], dtype=torch.float16))  # twice that is infinite
    network.register_buffer("seen", torch.tensor([True, False]))
    model = Classifier(network, spec(head="decide.classes"))
    for name, value in averaged([model] * 2).state_dict().items():
        assert torch.equal(value, model.state_dict()[name])


def test_tied_weights_stay_tied_in_an_average() -> None:
    def tied(value: float) -> Classifier:
        network = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 5))
        network[2].weight = network[1].weight
        nn.init.constant_(network[1].weight, value)
        return Classifier(network, spec())

    mean = averaged([tied(1.0), tied(4.0)]).network
    assert mean[1].weight is mean[2].weight
    assert torch.equal(mean[1].weight, torch.full((4, 4), 2.5))
