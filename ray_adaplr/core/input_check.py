"""A look at a source model's first outputs, before anything long runs: is it fed what it was trained on?

What cannot be right is refused; what is only unlikely to be right is said in words, for a person to judge.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ray_adaplr.errors import InputError, counted, few

ONE_CLASS = 0.95  # share of one class among the labels of several classes that is worth a word
FEW_CLASSES = 3  # with more, a shift of the domain makes some classes rare more often than the world does
LEAST_RANGE = 32  # of the 256 values, over all images looked at; 12 bits in 16 leave 16
NO_IDEA = 1.5  # times 1/C: a mean confidence that says nothing; of two classes 1.055 times, for 0.75 says much


def check_images(images: np.ndarray) -> list[str]:
    """A warning where some of the target's images, uint8 [n, h, w, c], are all of nearly one colour."""
    low, high = int(images.min()), int(images.max())
    if high - low >= LEAST_RANGE:
        return []
    return [
        f"All values of the {len(images)} images first looked at lie between {low} and {high} of 255: there is hardly "
        "anything to see. Pictures of 12 bits in files of 16 come out like that: scale them to all 16 first."
    ]


def check_logits(logits: Tensor, num_classes: int, names: Sequence[str] = ()) -> list[str]:
    """Warnings about a model's outputs on some target images, [n, C]; `names` are those of its classes.

    InputError when they are not finite logits of `num_classes` classes, or are probabilities already.
    """
    if logits.dim() != 2 or logits.shape[1] != num_classes:
        raise InputError(f"the model gives outputs of shape {list(logits.shape)} where [n, {num_classes}] is needed")
    if not torch.isfinite(logits).all():
        raise InputError("the model gives NaN or infinite outputs on these images; is its normalisation right?")
    sums_to_one = ((logits.sum(1) - 1).abs() < 1e-3).all()
    if sums_to_one and (logits >= 0).all():
        raise InputError("the model gives probabilities, not logits; hand it over without its last softmax")
    confidence, labels = logits.float().softmax(1).max(1)
    share, largest = torch.bincount(labels, minlength=num_classes).float().div(len(labels)).max(0)
    found = []
    if len(labels) >= 20 and share >= ONE_CLASS:
        name = f"'{names[int(largest)]}'" if names else int(largest)
        found.append(
            f"The source model calls {share:.0%} of the {len(labels)} images first looked at class {name}. "
            "Is its normalisation right, and are these its classes?"
        )
    if confidence.mean() < min(NO_IDEA, 1 + 0.055 * (num_classes - 1)) / num_classes:
        found.append(
            f"The source model is {confidence.mean():.2g} sure on average, hardly more than by chance "
            f"({1 / num_classes:.2g}). Is its normalisation right?"
        )
    return found


def check_finite(outputs: Tensor, ids: Sequence[Any]) -> Tensor:
    """A model's outputs, [n, C], for the images of these ids; InputError where some are not finite numbers."""
    unknown = (~outputs.isfinite()).any(1).nonzero().flatten().tolist()
    if unknown:
        images = f"{counted(len(unknown), 'image')} ({few((str(ids[row]) for row in unknown), 3)})"
        raise InputError(f"the model gives NaN or infinite outputs for {images}; mend it, or leave such images out")
    return outputs


def uneven_classes(labels: Tensor, num_classes: int, names: Sequence[str] = ()) -> list[str]:
    """A warning where few classes have very different shares of a source model's labels, int [n].

    Training expects classes of about the same size. Digits 3 and 8 at 96 : 4, three seeds: noise .05, .23 and .10
    became .10, .29 and .32 with the default settings, .05, .06 and .05 with the preset `uneven`.
    """
    share, rarest = torch.bincount(labels, minlength=num_classes).float().div(len(labels)).min(0)
    if num_classes > FEW_CLASSES or share >= 1 / (2 * num_classes):
        return []
    name = f"'{names[int(rarest)]}'" if names else int(rarest)
    return [
        f"The source model gives class {name} to {share:.0%} of the images only, and training pulls towards classes of "
        "equal size. If the class is really so rare, use --preset uneven."
    ]
