"""Guests: frozen networks of other people's, whose view of the target's images votes on labels beside the model's.

A guest knows nothing of the classes. It is asked how alike images are; where classes lie in its features is read off
the source model's own soft labels (`core.centroids`). One that does not help here is sent away.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ray_adaplr.core import devices
from ray_adaplr.core.augment import to_float
from ray_adaplr.core.centroids import Voter, clearness, kappa_of_features, whitened
from ray_adaplr.core.feed import even_slices
from ray_adaplr.core.models import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    OWN,
    Classifier,
    ModelSpec,
    as_logits,
    channels_of,
    find_head,
)
from ray_adaplr.core.predict import images_per_pass, predict_features
from ray_adaplr.core.shift import distances
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError, counted, first_line

USUAL_SIZE = (224, 224)  # of networks that know ImageNet
# Tried in this order where a network takes no images of that size: of those that take one size alone.
_OTHER_SIZES = (32, 64, 96, 28, 48, 112, 128, 160, 192, 256, 288, 299, 320, 336, 384, 448, 512, 16)
_LEAST_WORTH = 0.65
"""Least worth of a guest (`_worth`). 33 pairs of a source and 150 images of PACS: MobileNetV2 has .63 to 2.7 and gains
5.2 points of right labels in the mean, random weights .09 to .63, and lose 1.8. At .63 (photo→rest) a run lost 6."""
_STRANGE, _ENOUGH_TO_TELL = (0.05, 3.0), 100
"""Images whose `distances` are both larger are strange to a guest; so many tell. To four networks that know ImageNet,
sketches of PACS have .067 and 5 at least, other images .06 and 1.7 at most, those of one fixed camera .038 and 19."""


def as_guest(module: nn.Module, name: str) -> Classifier:
    """A module, in evaluation mode; where its output is not that of a final linear layer, the output is the features.

    A transformer without a head still ends each block with a linear layer, of its output's width. InputError for a
    module that takes no images of its channels in its own or a usual size, or has no row of features for each.
    """
    known: dict[str, Any] = getattr(module, "pretrained_cfg", None) or {}
    own = [tuple(known["input_size"][1:])] if "input_size" in known else []
    sizes = own or [USUAL_SIZE, *((side, side) for side in _OTHER_SIZES)]
    mean, std = tuple(known.get("mean", IMAGENET_MEAN)), tuple(known.get("std", IMAGENET_STD))
    channels = channels_of(module)
    if channels == 1:
        mean, std = (sum(mean) / len(mean),), (sum(std) / len(std),)
    has_linear = any(isinstance(layer, nn.Linear) for layer in module.modules())
    head, given, failed = find_head(module) if has_linear else "", list[Tensor](), list[Exception]()
    with module.get_submodule(head).register_forward_hook(lambda _layer, _inputs, output: given.append(output)):
        for size in sizes:
            given.clear()
            try:
                with torch.inference_mode():
                    output = as_logits(module.eval()(torch.zeros(2, channels, *size)))
                break
            except Exception as error:  # a module is the user's own code
                if isinstance(error, InputError):
                    raise
                failed.append(error)
    guest = f"the guest {name.removeprefix(OWN)}"
    if len(failed) == len(sizes):
        asked = "{} x {} x {}".format(channels, *sizes[0])
        why = f"{first_line(failed[0])}; give a network that takes pictures of this size"
        raise InputError(f"{guest} does not take images of {asked}: {why}") from failed[0]
    if output.dim() < 2 or len(output) != 2 or not output[0].numel():
        raise InputError(f"{guest} gives {list(output.shape)} numbers for two images, and a row for each is needed")
    spec: dict[str, Any] = {"name": name, "mean": mean, "std": std, "image_size": size, "channels": channels}
    if head and len(given) == 1 and torch.equal(given[0], output):
        return Classifier(module, ModelSpec(num_classes=output.shape[1], head=head, **spec))
    unused = nn.Linear(output.flatten(1).shape[1], 2)
    for weights in unused.parameters():  # random ones would make it another guest each time
        nn.init.zeros_(weights)
    return Classifier(nn.Sequential(module, _Rows(), unused), ModelSpec(num_classes=2, head="2", **spec))


class _Rows(nn.Module):
    """Whatever a module gives, as a row of float32 for each image."""

    def forward(self, output: Any) -> Tensor:
        return as_logits(output).flatten(1).float()


def why_not_asked(guest: Classifier, store: ImageStore, device: str) -> str:
    """Why a guest is not asked: the images are strange to it. Empty where it is, or where it cannot tell."""
    found = distances(guest, len(store), lambda samples: _look(guest, store, samples, device), _ENOUGH_TO_TELL)
    if not found or not all(distance > strange for distance, strange in zip(found, _STRANGE)):
        return ""
    return (
        f"The guest {name_of(guest)} is not used: it does not know such images. Their squared distance to those that "
        "its BatchNorm layers remember is {:.2g} times the variance of these and {:.2g} times their own.".format(*found)
    )


def features_of(guest: Classifier, store: ImageStore, samples: np.ndarray, device: str) -> Tensor:
    """The guest's features of some images and of their mirror images, [b, 2, d]."""
    return torch.stack([_look(guest, store, samples, device, mirrored) for mirrored in (False, True)], 1)


def parts_of(count: int) -> list[slice]:
    """Images that one seat shows to a guest in one go, 16 parts at most; the same ones however many seats there are."""
    return list(even_slices(count, max(64, -(-count // 16))))


def judge(
    names: Sequence[str], seen: Sequence[Tensor], probs: Tensor, own: Voter, store: ImageStore
) -> tuple[list[Voter], list[str]]:
    """Those of the guests that help, by the features [n, 2, d] of each, and a sentence on every one.

    A guest is judged beside the source model's `own` features and predictions, `probs` [n, C]. One in whose features
    classes lie apart more clearly has more weight than they have. The images are as large as there are any.
    """
    staying, remarks = list[Voter](), list[str]()
    known = max(kappa_of_features(probs, look) for look in own.looks)
    for name, found in zip(names, seen):
        if unknown := int((~found.isfinite()).flatten(1).any(1).sum()):
            remarks.append(
                f"The guest {name} is not used: its features of {counted(unknown, 'image')} are not finite numbers."
            )
            continue
        features = whitened(found, probs.shape[1])
        kappa, clear = kappa_of_features(probs, features), clearness(Voter([features]), own, probs)
        if _worth(kappa, known, clear) < _LEAST_WORTH:
            remarks.append(
                f"The guest {name} is not used: its features tell too little of the classes. They predict the source "
                f"model's labels with a kappa of {kappa:.2f} (its own features: {known:.2f}), and classes lie "
                f"{clear:.2f} times as clearly apart in them."
            )
            continue
        staying.append(Voter([features], max(1.0, clear)))
        height, width, _ = store.image_shape
        remarks.append(
            f"The guest {name} votes on the labels, with {staying[-1].weight:.2f} times the weight of the source "
            f"model's own features (kappa {kappa:.2f} with its labels, theirs {known:.2f}; the guest looked at images "
            f"of {width} x {height} pixels)."
        )
    return staying, remarks


def _worth(kappa: float, known: float, clear: float) -> float:
    """How well a guest's features predict the source model's labels, or what that comes to where these are poor.

    Of poor labels even a perfect guest predicts few. Then the model's own features, `known`, predict few as well, and
    classes lie clearly apart in the guest's.
    """
    return kappa * max(1.0, clear / max(known, 0.1))


def name_of(guest: Classifier) -> str:
    """What a guest is called in messages."""
    return guest.spec.name.removeprefix(OWN)


def _look(guest: Classifier, store: ImageStore, samples: np.ndarray, device: str, mirrored: bool = False) -> Tensor:
    """The guest's features of images, or of their mirror images, [b, d], in the size that it knows.

    Small images are enlarged: on PACS at 96 px, labels of photo and MobileNetV2 together for art were 61 % right from
    96 px and 67 % from 224.
    """
    size = guest.spec.image_size or USUAL_SIZE
    together = images_per_pass(torch.empty(1, *size, 3), device)

    def view(images: Tensor, _samples: np.ndarray) -> Tensor:
        seen = F.interpolate(to_float(images), size=size, mode="bilinear", antialias=True)
        return seen.flip(3) if mirrored else seen

    try:
        return predict_features(guest, store.read, samples, device, view, together)[0]
    except Exception as error:  # a guest may be the user's own code
        if isinstance(error, InputError) or devices.advice(error):
            raise
        raise InputError(f"the guest {name_of(guest)} cannot look at the images: {first_line(error)}") from error
