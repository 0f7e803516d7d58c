"""Whatever a user calls a model, opened: for --source, --guest and --model, and the same words in Python.

A model folder, a Hugging Face folder, a weights file of a named architecture (also as NAME=FILE), a torchvision or timm
name with its published weights, hf:NAME of a model on Hugging Face's hub, or in Python a module.
"""

import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from torch import nn

from ray_adaplr.core.hugging_face import of_processor
from ray_adaplr.core.models import (
    OWN,
    Classifier,
    channels_of,
    find_head,
    head_width,
    is_torchvision,
    published,
    published_input,
)
from ray_adaplr.errors import InputError
from ray_adaplr.integrations.huggingface import download, is_hugging_face, read_hugging_face, told_apart
from ray_adaplr.stages.guests import as_guest
from ray_adaplr.storage.folder import is_uri
from ray_adaplr.storage.layout import SPEC
from ray_adaplr.storage.models import check_description, describe, load_model

HUB = "hf:"
Source: TypeAlias = str | Path | nn.Module
Normalize: TypeAlias = str | Sequence[Sequence[float]]  # by name, or mean and std


def open_model(
    wanted: str | Path, name: str | None = None, classes: list[str] | None = None, **spec: Any
) -> Classifier:
    """A model by what a user calls it, as in the module's first lines.

    `name` is the architecture of a weights file, `classes` are names for weights or a model that has none, and `spec`
    other fields of `ModelSpec` for weights. InputError for a name that nothing builds, or weights that cannot be had or
    do not fit.
    """
    text = os.path.expanduser(wanted)
    if os.path.isdir(text) and not (Path(text) / SPEC).is_file() and is_hugging_face(text):
        return check_description(read_hugging_face(text, classes, spec.get("normalize")), text, None, name=name)
    if os.path.exists(text) or is_uri(text):
        return load_model(wanted, name, classes, **spec)
    if text.startswith(HUB):
        place = text.removeprefix(HUB)
        folder = place if os.path.isdir(place) else download(place)
        return check_description(read_hugging_face(folder, classes, spec.get("normalize")), text, None, name=name)
    if "=" in text:
        name, _, file = text.partition("=")
        return load_model(file, name, classes, **spec)
    if name in (None, text) and (text.startswith("timm/") or is_torchvision(text)):
        return check_description(_published(text), text, spec.get("normalize"), classes)
    return load_model(wanted, name, classes, **spec)  # which says what is missing


def open_guest(wanted: str | Path | nn.Module) -> Classifier:
    """A guest: what `open_model` opens, or a module; one without a final linear layer gives its output as features."""
    if isinstance(wanted, nn.Module):
        guest = copy.deepcopy(wanted).cpu().float()  # the user's own stays in its mode and its place
        return guest if isinstance(guest, Classifier) else as_guest(guest, OWN + type(wanted).__name__)
    if not isinstance(wanted, str | Path):
        raise InputError(f"a {type(wanted).__name__} is not a guest; give an nn.Module, or a model by its name")
    text = os.path.expanduser(wanted)
    if os.path.exists(text) or is_uri(text) or text.startswith(HUB) or "=" in text:
        return open_model(wanted)
    return as_guest(published(text), text)


def _published(name: str) -> Classifier:
    """A torchvision or timm network with its published weights, size and, from torchvision, class names."""
    network = published(name)
    if name.startswith("timm/"):
        side, names = network.pretrained_cfg["input_size"][-1], []  # type: ignore[index]
    else:
        import torchvision

        weights = torchvision.models.get_model_weights(name).DEFAULT
        side, names = weights.transforms().crop_size[0], told_apart(weights.meta["categories"])
    head = find_head(network)
    fields = {"name": name, "head": head, "image_size": (side, side), **published_input(name)}
    return Classifier(network, describe(num_classes=head_width(network, head), classes=tuple(names), **fields))


def as_module(
    source: Source, head: str | None, normalize: Normalize | None, classes: Sequence[str] | None
) -> nn.Module:
    """A source that was given in Python, as a network: a `Classifier` unless it is a module of the user's.

    What is said of its head, input and classes goes into the description of weights; a model that says so itself may
    not be denied.
    """
    names = None if classes is None else list(classes)
    if not isinstance(source, nn.Module | str | Path):
        raise InputError(f"a {type(source).__name__} is not a source; give an nn.Module or a model folder")
    if not isinstance(source, nn.Module) and Path(source).is_file():
        raise InputError(
            f"{source} holds weights alone; load them into a network, and give that as the source, or NAME={source}"
        )
    if isinstance(source, nn.Module) and not isinstance(source, Classifier):
        return source
    fed = None if normalize is None else _spelled(normalize)
    if isinstance(source, Classifier):
        model = check_description(source, "the source model", fed, names)
    else:
        said: dict[str, Any] = {"head": head, "normalize": fed, "classes": names}
        model = open_model(source, **{name: value for name, value in said.items() if value is not None})
    if head and model.head_name != head:
        raise InputError(f"the source's head is its layer {model.head_name}, not {head}; leave head out")
    return model


def classes_of(module: nn.Module, head: str | None) -> int:
    """How many classes a network tells apart."""
    return module.spec.num_classes if isinstance(module, Classifier) else head_width(module, head or find_head(module))


def as_classifier(
    module: nn.Module, head: str | None, normalize: Normalize | None, channels: int, classes: Sequence[str] | None
) -> Classifier:
    """A module with its description; one without convolutions takes images of `channels`."""
    if isinstance(module, Classifier):
        return module
    channels = channels_of(module, channels)
    head = head or find_head(module)
    fields = {"name": OWN + type(module).__name__, "num_classes": head_width(module, head), "channels": channels}
    model = Classifier(module, describe(**fields, head=head, **_normalization(module, normalize, channels)))
    return check_description(model, "the source model", None, None if classes is None else list(classes))


def _normalization(module: nn.Module, normalize: Normalize | None, channels: int) -> dict[str, Any]:
    """Fields of a description: as told, as a timm module carries them, or ImageNet's for three channels."""
    if normalize is not None:
        normalize = _spelled(normalize)
    if normalize is None and (known := getattr(module, "pretrained_cfg", None)) and "mean" in known:
        return {"mean": tuple(known["mean"]), "std": tuple(known["std"])}
    if channels == 1 and normalize in (None, "imagenet"):
        raise InputError("normalize='imagenet' is for three channels but the module takes one; use none, half or image")
    return {"normalize": normalize or "imagenet"}


def _spelled(normalize: Normalize) -> str:
    """What `ModelSpec` and the command line call it: a name, or numbers as mean/std."""
    if isinstance(normalize, str):
        return normalize
    if hasattr(normalize, "image_mean"):  # a Hugging Face image processor
        numbers = of_processor(vars(normalize), type(normalize).__name__)
        parts = [numbers.get("mean", (0.0,)), numbers.get("std", (1.0,))]
    else:
        try:
            parts = [tuple(map(float, values)) for values in normalize]
        except (TypeError, ValueError):
            parts = []
    if len(parts) != 2:
        raise InputError(f"normalize={normalize!r} is not (mean, std), each with one number per channel")
    return "/".join(",".join(map(repr, values)) for values in parts)
