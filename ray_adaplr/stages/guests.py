"""Guests: frozen networks of other people's, whose view of the target's images votes on labels beside the model's.

A guest knows nothing of the classes. It is asked how alike images are; where classes lie in its features is read off
the source model's own soft labels (`core.centroids`). One that does not help here is sent away.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ray_adaplr.core.augment import to_float
from ray_adaplr.core.centroids import agreement, whitened
from ray_adaplr.core.learner import View, predict_features
from ray_adaplr.core.models import IMAGENET_MEAN, IMAGENET_STD, OWN, Classifier, ModelSpec, find_head, published
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError, first_line
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.models import SPEC, load_model

LEAST_AGREEMENT = 0.47
"""Cohen's kappa below which a guest leaves. PACS, seven tasks, 150 and 400 images, MobileNetV2 against raw pixels, an
untrained network and shuffled features: those that raised accuracy had more, those that lowered it had less."""

_FIXED_SIZE = 224  # pixels of what takes one size only, such as most transformers


@dataclass(frozen=True)
class Invitation:
    """What became of the guests."""

    features: list[Tensor]  # whitened, [n, v, k], of those that stay
    remarks: list[str]  # a sentence on each


def open_guest(wanted: str | Path | nn.Module) -> Classifier:
    """A guest by a torchvision or timm name (`NAME`, or `NAME=WEIGHTS_FILE` where there is no network), or by folder.

    Raises:
        InputError: for a name that nothing builds or weights that cannot be had.
    """
    if isinstance(wanted, Classifier):
        return wanted
    if isinstance(wanted, nn.Module):
        return _from_module(wanted)
    name, equals, file = str(wanted).partition("=")
    if equals:
        return load_model(file, name)
    if Folder(wanted).exists(SPEC):
        return load_model(wanted)
    return published(name)


def _from_module(module: nn.Module) -> Classifier:
    """A module as it is; where it ends in no linear layer, its output is the features."""
    known: dict[str, Any] = getattr(module, "pretrained_cfg", None) or {}
    mean, std = known.get("mean", IMAGENET_MEAN), known.get("std", IMAGENET_STD)
    spec = {"name": OWN + type(module).__name__, "mean": tuple(mean), "std": tuple(std)}
    try:
        head = find_head(module)
    except InputError:
        with torch.inference_mode():
            width = module.eval()(torch.zeros(1, 3, _FIXED_SIZE, _FIXED_SIZE)).flatten(1).shape[1]
        module = nn.Sequential(module, nn.Flatten(), nn.Linear(width, 2))
        return Classifier(module, ModelSpec(num_classes=2, head="2", **spec))
    layer = module.get_submodule(head)
    return Classifier(module, ModelSpec(num_classes=layer.out_features, head=head, **spec))  # type: ignore[arg-type]


def invite(guests: Sequence[Classifier], store: ImageStore, probs: Tensor, device: str) -> Invitation:
    """Ask each guest for its features, and keep those that help.

    Args:
        guests: frozen networks.
        store: the target's images.
        probs: the source model's predictions, [n, C], by which a guest is judged.
        device: where.
    """
    features, remarks = [], []
    for guest in guests:
        found = whitened(_look(guest, store, device), probs.shape[1])
        kappa = agreement(probs, found)
        name = guest.spec.name.removeprefix(OWN)
        if kappa < LEAST_AGREEMENT:
            remarks.append(
                f"The guest {name} was sent away: its features foretell the source model's labels too badly (kappa "
                f"{kappa:.2f}, at least {LEAST_AGREEMENT} is asked for), so its vote would do harm."
            )
            continue
        features.append(found)
        remarks.append(f"The guest {name} votes on the labels (kappa {kappa:.2f} with the source model's).")
    return Invitation(features, remarks)


def _look(guest: Classifier, store: ImageStore, device: str) -> Tensor:
    """The guest's features of each image and of its mirror image, [n, 2, d]."""
    try:
        views = [_view(mirror, None) for mirror in (False, True)]
        return torch.stack([predict_features(guest, store.read, _rows(store), device, view)[0] for view in views], 1)
    except (RuntimeError, AssertionError):  # as networks say that images have the wrong size
        views = [_view(mirror, _FIXED_SIZE) for mirror in (False, True)]
    try:
        return torch.stack([predict_features(guest, store.read, _rows(store), device, view)[0] for view in views], 1)
    except (RuntimeError, AssertionError) as error:
        size = "x".join(map(str, store.image_shape[:2]))
        sizes = f"neither {size} nor {_FIXED_SIZE} pixels"
        raise InputError(f"the guest {guest.spec.name} takes {sizes}: {first_line(error)}") from error


def _rows(store: ImageStore) -> np.ndarray:
    return np.arange(len(store))


def _view(mirror: bool, size: int | None) -> View:
    """Images as they are or mirrored, enlarged to a size where there is one."""

    def view(images: Tensor, _samples: np.ndarray) -> Tensor:
        seen = to_float(images)
        if size:
            seen = F.interpolate(seen, size=(size, size), mode="bilinear", antialias=True)
        return seen.flip(3) if mirror else seen

    return view
