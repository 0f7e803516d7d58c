"""Networks: the digit CNN, any torchvision or timm name, any module with a named head; how each takes its input.

`Classifier` wraps a network so that everything else deals with one kind of thing: images in [0, 1] in, logits out,
with the head known by name. `ModelSpec` is its description as data, and lies beside the weights as `model.json`.
"""

import copy
import importlib
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from ray_adaplr.core.augment import LUMA
from ray_adaplr.core.devices import seeded
from ray_adaplr.core.hugging_face import HF, hugging_face_config, hugging_face_network, of_processor
from ray_adaplr.errors import InputError, nearest, need

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
NORMALIZATIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "half": {"mean": (0.5,), "std": (0.5,)},
    "imagenet": {"mean": IMAGENET_MEAN, "std": IMAGENET_STD},
    "image": {"per_image": True},
}
OWN = "own/"  # begins the name of a network that no name can build
# What torchvision sets for its published weights of these names alone: ImageNet's mean and deviation are turned into
# 0.5 and 0.5 inside the network, and googlenet has no auxiliary heads. Weights do not tell that, so it is always so.
PUBLISHED_ARGUMENTS: dict[str, dict[str, Any]] = {
    "googlenet": {"transform_input": True, "aux_logits": False},
    "inception_v3": {"transform_input": True},
}
_HEAD_NAMES = ("head", "fc", "classifier", "heads", "head.fc")


def normalization(text: str) -> dict[str, Any]:
    """Fields of `ModelSpec` for a way to normalise: one of `NORMALIZATIONS`, numbers as `MEAN,…/STD,…`, or a file.

    A file is the `preprocessor_config.json` of a Hugging Face model.

    >>> normalization("0.48,0.46,0.41/0.27,0.26,0.28")["std"]
    (0.27, 0.26, 0.28)
    """
    if text in NORMALIZATIONS:
        return NORMALIZATIONS[text]
    if text.endswith(".json"):
        try:
            return of_processor(json.loads(Path(text).read_text()), text)
        except OSError as error:
            raise ValueError(f"normalize={text!r} cannot be read ({error.strerror})") from error
        except (json.JSONDecodeError, UnicodeDecodeError, TypeError, AttributeError) as error:
            raise ValueError(f"normalize={text!r} does not describe an image processor ({error})") from error
    try:
        mean, std = (tuple(float(number) for number in part.split(",")) for part in text.split("/"))
    except ValueError:
        words = ", ".join(NORMALIZATIONS)
        example = "numbers as mean/std, e.g. 0.48,0.46,0.41/0.27,0.26,0.28"
        raise ValueError(f"normalize={text!r} is not {words} nor {example}") from None
    return {"mean": mean, "std": std}


class ModelSpec(BaseModel):
    """What is needed to build a network again and to feed it.

    `normalize="imagenet"` (or another of `NORMALIZATIONS`, or numbers) is short for `mean`, `std` and `per_image`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = "digit_cnn"
    num_classes: int = Field(ge=2)
    classes: tuple[str, ...] = Field((), description="names, in the order of the outputs")
    image_size: tuple[int, int] | None = Field(None, description="height and width of what it is fed")
    channels: Literal[1, 3] = 3
    aspect: Literal["resize", "crop"] = Field("resize", description="how pictures become squares, as `prepare` has it")
    mean: tuple[float, ...] = Field((0.0,), description="taken off images in [0, 1]: one number, or one per channel")
    std: tuple[float, ...] = Field((1.0,), description="what the rest is divided by")
    per_image: bool = Field(False, description="instead, each image gets mean 0 and deviation 1")
    head: str | None = Field(None, description="dotted name of the final linear layer; found when not given")
    width: int = Field(16, ge=1, description="channels of the digit CNN's first layer")
    config: dict[str, Any] | None = Field(None, description="config.json of a Hugging Face architecture, hf/NAME")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, fields: Any) -> Any:
        if not isinstance(fields, dict) or "normalize" not in fields:
            return fields
        return {**normalization(fields["normalize"]), **{k: v for k, v in fields.items() if k != "normalize"}}

    @model_validator(mode="after")
    def _consistent(self) -> "ModelSpec":
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.channels):
                one = "one number" if self.channels == 1 else "one number or three"
                raise ValueError(f"{name} has {len(values)} numbers where {self.channels} channels need {one}")
        if min(self.std) <= 0:
            raise ValueError(f"std={min(self.std):g} is not positive")
        return self

    @property
    def normalization(self) -> tuple[Any, ...]:
        """Mean and std of every channel, and whether each image has its own instead: to compare two descriptions."""
        return *(values * (self.channels // len(values)) for values in (self.mean, self.std)), self.per_image

    @property
    def class_names(self) -> list[str]:
        """The names of all classes, in the order of the outputs; their numbers where they have none."""
        return [*self.classes, *map(str, range(len(self.classes), self.num_classes))]

    @property
    def side(self) -> int | None:
        """The side of the images that it is fed, where that is known and they are squares."""
        return self.image_size[0] if self.image_size and len({*self.image_size}) == 1 else None

    @property
    def input(self) -> str:
        """What the network is fed, in words: `112x112 RGB, mean 0.485 0.456 0.406, std 0.229 0.224 0.225`."""
        size = "any size" if self.image_size is None else "{}x{}".format(*self.image_size)
        colour = ("RGB" if self.channels == 3 else "grey") + (" of the middle square" if self.aspect == "crop" else "")
        if self.per_image:
            return f"{size} {colour}, each image to mean 0 and deviation 1"
        mean, std = (" ".join(f"{value:.4g}" for value in values) for values in (self.mean, self.std))
        return f"{size} {colour}, mean {mean}, std {std}"


class DigitCNN(nn.Module):
    """The 3-layer CNN of the digit experiments: conv, BatchNorm, ReLU, pool, three times; 26,000 weights at width 16.

    The head sees a 2 x 2 grid of features whatever the image's size: digits are told apart by where strokes are.
    """

    def __init__(self, num_classes: int, channels: int = 3, width: int = 16) -> None:
        super().__init__()
        widths = [channels, width, 2 * width, 4 * width]
        blocks: list[nn.Module] = []
        for fan_in, fan_out in itertools.pairwise(widths):
            blocks += [nn.Conv2d(fan_in, fan_out, 3, padding=1, bias=False), nn.BatchNorm2d(fan_out), nn.ReLU(True)]
            blocks += [nn.MaxPool2d(2)]
        self.features = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = nn.Linear(4 * widths[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [n, C] of images [n, channels, h, w]."""
        return self.head(self.features(x))


class Classifier(nn.Module):
    """Any module from normalised images to logits, fed with images in [0, 1], with its description and its head."""

    def __init__(self, network: nn.Module, spec: ModelSpec) -> None:
        super().__init__()
        self.network = network
        self.head_name = spec.head or find_head(network)
        self.spec = spec.model_copy(update={"head": self.head_name})
        layers = [name for name, _ in network.named_modules() if name]
        if self.head_name not in layers:
            hint = nearest(self.head_name, layers, "name its final linear layer")
            raise InputError(f"the model has no layer '{self.head_name}' to be its head{hint}")
        width = getattr(self.head, "out_features", None)
        if width != spec.num_classes:
            raise InputError(
                f"the head '{self.head_name}' gives {width} classes but {spec.num_classes} are asked for; "
                "name the right head, or pass the matching class list"
            )
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(spec.mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(spec.std).view(1, -1, 1, 1), persistent=False)

    @property
    def head(self) -> nn.Module:
        """The final linear layer."""
        return self.network.get_submodule(self.head_name)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [n, C] of float images [n, 1 or 3, h, w] in [0, 1]."""
        return as_logits(self.network(self.prepare(images)))

    def prepare(self, images: Tensor) -> Tensor:
        """Images as the network wants them: channels matched, normalised."""
        if images.shape[1] != self.spec.channels:
            images = images.expand(-1, 3, -1, -1) if self.spec.channels == 3 else grey(images)
        if self.spec.per_image:
            std, mean = torch.std_mean(images, dim=(1, 2, 3), keepdim=True)
            return (images - mean) / (std + 1e-3)
        if (self.spec.mean, self.spec.std) == ((0.0,), (1.0,)):
            return images
        return (images - self.mean) / self.std

    def reset_head(self, seed: int) -> None:
        """A fresh head: the paper starts members from the source's feature extractor alone."""
        with seeded(torch.device("cpu"), seed):
            self.head.reset_parameters()  # type: ignore[operator]

    def parameter_groups(self, lr: float, lr_head: float) -> list[dict]:
        """The feature extractor and the head, each with its learning rate; frozen parameters are left out."""
        head = list(self.head.parameters())  # a list: the optimiser's state goes by position
        of_head = {id(p) for p in head}
        groups = [
            {"params": [p for p in self.parameters() if id(p) not in of_head and p.requires_grad], "lr": lr},
            {"params": [p for p in head if p.requires_grad], "lr": lr_head},
        ]
        return [group for group in groups if group["params"]]


def averaged(models: Sequence[Classifier]) -> Classifier:
    """A copy of the first model with the mean of all their weights and statistics; what is counted is the first's."""
    mean, states = copy.deepcopy(models[0]), [model.state_dict() for model in models]
    for name, tensor in mean.state_dict().items():
        if tensor.is_floating_point() or tensor.is_complex():
            wide = torch.promote_types(tensor.dtype, torch.float32)  # the sum of halves may be infinite
            tensor.copy_(torch.stack([state[name] for state in states]).mean(0, dtype=wide))
    return mean


def grey(images: Tensor) -> Tensor:
    """RGB images [n, 3, h, w] as Pillow, and so `prepare --channels 1`, makes them grey, [n, 1, h, w]."""
    return (images * images.new_tensor(LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True)


def as_logits(output: Any) -> Tensor:
    """A network's output as logits: a tensor, or what carries them as `.logits` or `["logits"]` (Hugging Face)."""
    logits = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", output)
    if not isinstance(logits, Tensor):
        raise InputError(f"the model returns a {type(output).__name__}, not logits; wrap it to return a tensor")
    return logits


def find_head(network: nn.Module) -> str:
    """The dotted name of the final linear layer: a usual name, or else the last linear layer of all."""
    linear = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise InputError("the model has no linear layer that could be its head; name the head's layer")
    for usual in _HEAD_NAMES:
        if usual in linear:
            return usual
    return linear[-1]


def channels_of(network: nn.Module, otherwise: int = 3) -> int:
    """Channels of the images that a network takes, by its first convolution; `otherwise` where that does not tell."""
    first = next((layer.in_channels for layer in network.modules() if isinstance(layer, nn.Conv2d)), otherwise)
    return first if first in (1, 3) else otherwise


def head_width(network: nn.Module, head: str) -> int:
    """Outputs of a layer; 2 for one that does not tell or is not there, which `Classifier` refuses."""
    return getattr(dict(network.named_modules()).get(head), "out_features", 2)


def fields_of_factory(name: str, head: str | None = None, channels: int = 3) -> dict[str, int]:
    """`channels` and `num_classes` of what `package.module:function` makes; `channels` without a convolution."""
    with torch.random.fork_rng(devices=[]):
        network = _factory(name)()
    return {"channels": channels_of(network, channels), "num_classes": head_width(network, head or find_head(network))}


def build(spec: ModelSpec, seed: int = 0) -> Classifier:
    """A freshly initialised network, the same for the same seed; InputError for a name that nothing builds."""
    with seeded(torch.device("cpu"), seed):
        if spec.name == "digit_cnn":
            network: nn.Module = DigitCNN(spec.num_classes, spec.channels, spec.width)
        elif spec.name.startswith("timm/"):
            arguments = {"num_classes": spec.num_classes, "in_chans": spec.channels, "pretrained": False}
            network = _timm(spec.name).create_model(spec.name.removeprefix("timm/"), **arguments)
        elif spec.name.startswith(HF):
            network = hugging_face_network(hugging_face_config(spec.config or {}, spec.num_classes, spec.classes))
        elif spec.name.startswith(OWN):
            of = spec.name.removeprefix(OWN)
            told = f"the model is of a user's own class {of}; in Python, ray_adaplr.load(folder, network={of}(...))"
            raise InputError(f"{told}; else --factory package.module:function (adapt: --model)", in_python=told)
        elif ":" in spec.name:
            network = _factory(spec.name)()
        else:
            zoo = _torchvision(spec.name)
            if spec.channels != 3:
                raise InputError(f"model '{spec.name}' wants 3 channels, not {spec.channels}; use channels=3")
            arguments = {"num_classes": spec.num_classes, **PUBLISHED_ARGUMENTS.get(spec.name, {})}
            network = zoo.get_model(spec.name, weights=None, **arguments)
    return Classifier(network, spec).to(memory_format=torch.channels_last)


def published_input(name: str) -> dict[str, Any]:
    """How the published weights of a name are fed: `mean` and `std`, as timm or torchvision have them on record."""
    if name == "digit_cnn" or name.startswith((OWN, HF)) or ":" in name:
        return {}
    if name.startswith("timm/"):
        known = _timm(name).models.get_pretrained_cfg(name.removeprefix("timm/"))
        return {"mean": tuple(known.mean), "std": tuple(known.std)} if known else {}
    transforms = _torchvision(name).get_model_weights(name).DEFAULT.transforms()
    return {"mean": tuple(transforms.mean), "std": tuple(transforms.std)}


def published(name: str) -> nn.Module:
    """A torchvision or timm network with its published weights, from the package's cache or the internet."""
    if not published_input(name):
        raise InputError(f"{name} has no published weights; give a torchvision name, timm/NAME or NAME=FILE")
    try:
        if name.startswith("timm/"):
            return _timm(name).create_model(name.removeprefix("timm/"), pretrained=True)
        return _torchvision(name).get_model(name, weights="DEFAULT")
    except (OSError, RuntimeError) as error:
        raise InputError(f"the weights of {name} cannot be had ({error}); give them as {name}=FILE") from error


def is_torchvision(name: str) -> bool:
    """Whether torchvision has an image classifier of that name."""
    if not name.isidentifier():  # a path
        return False
    import torchvision.models as zoo

    return name in zoo.list_models(module=zoo)


def _torchvision(name: str) -> Any:
    """The package's models, once it is known to have one of that name."""
    import torchvision.models as zoo  # 0.3 s, which members with a digit CNN do without

    known = zoo.list_models(module=zoo)
    if name not in known:
        others = "use digit_cnn, a torchvision name, timm/NAME or package.module:function"
        raise InputError(f"there is no model '{name}'{nearest(name, [*known, 'digit_cnn'], others)}")
    return zoo


def _timm(name: str) -> Any:
    """The package, once it is known to have a model of that name."""
    timm = need(f"model '{name}'", "timm", "timm")
    if not timm.is_model(name.removeprefix("timm/")):
        names = [f"timm/{model}" for model in timm.list_models()]
        raise InputError(f"timm has no model '{name}'{nearest(name, names, 'timm.list_models() has all names')}")
    return timm


def _factory(name: str) -> Callable[[], nn.Module]:
    """The function that `package.module:function` names; it takes no arguments and returns the network."""
    place, _, function = name.partition(":")
    try:
        made = getattr(importlib.import_module(place), function)
    except (ImportError, AttributeError, ValueError) as error:
        why = "it must be importable where the command runs, and on a cluster on every node"
        raise InputError(f"--model {name}: {error}; {why}") from error
    return made
