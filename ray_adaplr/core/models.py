"""Networks: the digit CNN, any torchvision or timm name, any module with a named head; how each takes its input.

`Classifier` wraps a network so that everything else deals with one kind of thing: images in [0, 1] in, logits out,
with the head known by name. `ModelSpec` is its description as data, and lies beside the weights as `model.json`.
"""

import difflib
import itertools
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from ray_adaplr.errors import InputError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_HEAD_NAMES = ("head", "fc", "classifier", "heads", "head.fc")


class ModelSpec(BaseModel):
    """What is needed to build a network again and to feed it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = "digit_cnn"
    num_classes: int = Field(ge=2)
    channels: Literal[1, 3] = 3
    width: int = Field(16, ge=1, description="channels of the digit CNN's first layer")
    head: str | None = Field(None, description="dotted name of the final linear layer; found when not given")
    normalize: Literal["image", "imagenet", "half", "none"] = Field(
        "none", description="image: each image to mean 0 and deviation 1; half: (x - .5) / .5"
    )
    image_size: tuple[int, int] | None = Field(None, description="height and width it was trained on")
    classes: tuple[str, ...] = ()


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
    """A network, fed with images in [0, 1] of one or three channels, whose head is known.

    Args:
        network: any module from normalised images to logits.
        spec: its description; `spec.head` names the final linear layer.
    """

    def __init__(self, network: nn.Module, spec: ModelSpec) -> None:
        super().__init__()
        self.network = network
        self.head_name = spec.head or find_head(network)
        self.spec = spec.model_copy(update={"head": self.head_name})
        layers = [name for name, _ in network.named_modules() if name]
        if self.head_name not in layers:
            near = difflib.get_close_matches(self.head_name, layers, 1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise InputError(f"the model has no layer '{self.head_name}' to be its head{hint}")
        width = getattr(self.head, "out_features", None)
        if width != spec.num_classes:
            raise InputError(
                f"the head '{self.head_name}' gives {width} classes but {spec.num_classes} are asked for; "
                "name the right head, or pass the matching class list"
            )
        mean, std = {"imagenet": (IMAGENET_MEAN, IMAGENET_STD), "half": ((0.5,), (0.5,))}.get(
            spec.normalize, ((0.0,), (1.0,))
        )
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    @property
    def head(self) -> nn.Module:
        """The final linear layer."""
        return self.network.get_submodule(self.head_name)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [n, C] of float images [n, 1 or 3, h, w] in [0, 1]."""
        return self.network(self.prepare(images))

    def prepare(self, images: Tensor) -> Tensor:
        """Images as the network wants them: channels matched, normalised."""
        if images.shape[1] != self.spec.channels:
            images = images.expand(-1, 3, -1, -1) if self.spec.channels == 3 else images.mean(1, keepdim=True)
        if self.spec.normalize == "image":
            std, mean = torch.std_mean(images, dim=(1, 2, 3), keepdim=True)
            return (images - mean) / (std + 1e-3)
        if self.spec.normalize == "none":
            return images
        return (images - self.mean) / self.std

    def features_and_logits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """What goes into the head, [n, d], and what comes out, [n, C]."""
        caught: list[Tensor] = []
        hook = self.head.register_forward_pre_hook(lambda _module, inputs: caught.append(inputs[0].flatten(1)))
        try:
            logits = self(images)
        finally:
            hook.remove()
        return caught[0], logits

    def reset_head(self, seed: int) -> None:
        """A fresh head: the paper starts members from the source's feature extractor alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
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


def find_head(network: nn.Module) -> str:
    """The dotted name of the final linear layer: a usual name, or else the last linear layer of all."""
    linear = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise InputError("the model has no linear layer that could be its head; name the head's layer")
    for usual in _HEAD_NAMES:
        if usual in linear:
            return usual
    return linear[-1]


def build(spec: ModelSpec, seed: int = 0) -> Classifier:
    """A freshly initialised network, the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if spec.name == "digit_cnn":
            network: nn.Module = DigitCNN(spec.num_classes, spec.channels, spec.width)
        elif spec.name.startswith("timm/"):
            network = _timm(spec)
        else:
            network = _torchvision(spec)
    return Classifier(network, spec).to(memory_format=torch.channels_last)


def _torchvision(spec: ModelSpec) -> nn.Module:
    import torchvision.models as zoo

    known = zoo.list_models(module=zoo)
    if spec.name not in known:
        near = difflib.get_close_matches(spec.name, [*known, "digit_cnn"], 1)
        hint = f"; did you mean '{near[0]}'?" if near else "; use digit_cnn, a torchvision name or timm/NAME"
        raise InputError(f"there is no model '{spec.name}'{hint}")
    if spec.channels != 3:
        raise InputError(f"model '{spec.name}' wants 3 channels, not {spec.channels}; use channels=3")
    return zoo.get_model(spec.name, weights=None, num_classes=spec.num_classes)


def _timm(spec: ModelSpec) -> nn.Module:
    try:
        import timm
    except ImportError as error:
        raise InputError(f"model '{spec.name}' needs timm: pip install 'ray-adaplr[timm]'") from error
    return timm.create_model(
        spec.name.removeprefix("timm/"), num_classes=spec.num_classes, in_chans=spec.channels, pretrained=False
    )
