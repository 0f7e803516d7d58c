"""Whatever a user calls a model, opened: for --source, --guest and --model, and the same words in Python.

A model folder, a Hugging Face folder, a weights file of a named architecture (also as NAME=FILE), a torchvision or timm
name with its published weights, or hf:NAME of a model on Hugging Face's hub.
"""

import os
from pathlib import Path
from typing import Any

from torch import nn

from ray_adaplr.core.models import OWN, Classifier, find_head, is_torchvision, published, published_input
from ray_adaplr.integrations.huggingface import download, is_hugging_face, read_hugging_face, told_apart
from ray_adaplr.stages.guests import as_guest
from ray_adaplr.storage.folder import is_uri
from ray_adaplr.storage.models import SPEC, describe, load_model

HUB = "hf:"


def open_model(
    wanted: str | Path, name: str | None = None, classes: list[str] | None = None, **spec: Any
) -> Classifier:
    """A model by what a user calls it.

    Args:
        wanted: see the module's first lines.
        name: architecture of a weights file.
        classes: class names, for weights or a model that has none.
        **spec: other fields of `ModelSpec` for weights, e.g. normalize="imagenet".

    Raises:
        InputError: for a name that nothing builds, or weights that cannot be had or do not fit.
    """
    text = os.path.expanduser(wanted)
    if os.path.isdir(text) and not (Path(text) / SPEC).is_file() and is_hugging_face(text):
        return read_hugging_face(text, classes, spec.get("normalize"))
    if os.path.exists(text) or is_uri(text):
        return load_model(wanted, name, classes, **spec)
    if text.startswith(HUB):
        place = text.removeprefix(HUB)
        return read_hugging_face(place if os.path.isdir(place) else download(place), classes, spec.get("normalize"))
    if "=" in text:
        name, _, file = text.partition("=")
        return load_model(file, name, classes, **spec)
    if name in (None, text) and (text.startswith("timm/") or is_torchvision(text)):
        return _published(text, classes)
    return load_model(wanted, name, classes, **spec)  # which says what is missing


def open_guest(wanted: str | Path | nn.Module) -> Classifier:
    """A guest: what `open_model` opens, or a module; one without a final linear layer gives its output as features.

    Raises:
        InputError: for a name that nothing builds or weights that cannot be had.
    """
    if isinstance(wanted, nn.Module):
        return wanted if isinstance(wanted, Classifier) else as_guest(wanted, OWN + type(wanted).__name__)
    text = os.path.expanduser(wanted)
    if os.path.exists(text) or is_uri(text) or text.startswith(HUB) or "=" in text:
        return open_model(wanted)
    return as_guest(published(text), text)


def _published(name: str, classes: list[str] | None) -> Classifier:
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
    width = getattr(network.get_submodule(head), "out_features", 2)
    return Classifier(network, describe(num_classes=width, classes=tuple(classes or names), **fields))
