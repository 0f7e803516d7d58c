"""Looking at images without training on them: as they are, mirrored, or enlarged.

Networks train on random crops, in which things look larger than in whole images, so enlarged images are more like what
they know. Labels are read off enlarged images where `enlarge` says so; the network that trains keeps its size, since
larger images would cost it more than twice the time.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ray_adaplr.core import devices
from ray_adaplr.core.centroids import kappa_of_features, whitened
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.predict import clean_view, mirrored_view, predict_features, predict_logits
from ray_adaplr.data.store import ImageStore

LEAST_AGREEMENT = 0.47
"""Cohen's kappa below which a view of enlarged images has no vote. Chosen with other networks' views, on seven tasks of
PACS with 150 and 400 images: those that raised accuracy had more; raw pixels, untrained networks and noise had less."""


@dataclass(frozen=True)
class Cached:
    """A store's images on the device."""

    read: Tensor  # uint8 [n, h, w, c]

    def __len__(self) -> int:
        return len(self.read)


@dataclass(frozen=True)
class Enlarged:
    """A store's images, each side longer by a factor."""

    store: ImageStore
    factor: float

    def __len__(self) -> int:
        return len(self.store)

    def read(self, index: np.ndarray) -> np.ndarray:
        """The images of sample numbers, uint8 [b, h, w, c]."""
        images = torch.from_numpy(self.store.read(index)).permute(0, 3, 1, 2).float()
        size = [round(self.factor * side) for side in images.shape[2:]]
        larger = F.interpolate(images, size=size, mode="bilinear", antialias=True)
        return larger.round().clamp(0, 255).byte().permute(0, 2, 3, 1).contiguous().numpy()


ImageSource: TypeAlias = ImageStore | Cached | Enlarged  # what is looked at


def clean_logits(model: Classifier, images: ImageSource, device: str) -> Tensor:
    """Logits of the images as they are, [n, C]."""
    return torch.from_numpy(predict_logits(model, images.read, np.arange(len(images)), device))


def features_and_logits(
    model: Classifier, images: ImageSource, device: str, mirrored: tuple[bool, ...] = (False, True)
) -> tuple[Tensor, Tensor]:
    """What goes into the head for each way of looking, [n, v, d], and the mean of their logits, [n, C]."""
    rows, views = np.arange(len(images)), [mirrored_view if each else clean_view for each in mirrored]
    features, logits = zip(*(predict_features(model, images.read, rows, device, view) for view in views))
    return torch.stack(features, 1), torch.stack(logits).mean(0)


def accepts_size(model: Classifier, images: ImageSource, device: str) -> bool:
    """Whether a network takes images of this size; many transformers have one size only."""
    try:
        predict_logits(model, images.read, np.arange(1), device)
    except (RuntimeError, AssertionError, ValueError) as error:
        if devices.advice(error):
            raise
        return False
    return True


def agreement_of_view(model: Classifier, images: ImageSource, probs: Tensor, device: str) -> float:
    """How well a model's view of images predicts labels [n, C] that were read off others: Cohen's kappa."""
    features, _ = features_and_logits(model, images, device, mirrored=(False,))
    return kappa_of_features(probs, whitened(features, probs.shape[1]))
