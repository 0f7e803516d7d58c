"""How images are looked at before anything trains: in which sizes, mirrored too, and what models say of them then."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ray_adaplr.config import Config
from ray_adaplr.core.centroids import NOTHING_KNOWN, Outlook, Voter, belief, vote, whitened
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.predict import predict_logits
from ray_adaplr.data.store import ImageStore
from ray_adaplr.stages.views import Enlarged, ImageSource, features_and_logits


def sizes_of(store: ImageStore, images: ImageSource, config: Config) -> list[ImageSource]:
    """The images in the sizes of `enlarge`."""
    return [images if factor == 1 else Enlarged(store, factor) for factor in config.enlarge]


def predictions(models: list[Classifier], images: ImageSource, device: str) -> Tensor:
    """Probabilities of the models' summed logits, [n, C]."""
    logits = [predict_logits(model, images.read, np.arange(len(images)), device) for model in models]
    return torch.from_numpy(np.sum(logits, axis=0)).softmax(1)


def as_voter(model: Classifier, images: ImageSource, device: str) -> Voter:
    """A model with its own features."""
    return Voter([whitened(features_and_logits(model, images, device)[0], model.spec.num_classes)])


def first_look(
    models: list[Classifier], sizes: Sequence[ImageSource], device: str, config: Config
) -> tuple[Tensor, list[Voter]]:
    """What refinement starts from, [n, C], and each model as a voter with its own features, if they vote.

    The first is as `predictions` or, where mirror images are as good or features vote, the mean over ways and sizes.
    """
    votes = config.warm_start == "centroids"
    if not (votes or config.flip):
        return predictions(models, sizes[0], device), []
    mirrored = (False, True) if config.flip else (False,)
    probs, own = list[Tensor](), [Voter([]) for _ in models]
    for images in sizes:
        features, logits = zip(*(features_and_logits(model, images, device, mirrored) for model in models))
        probs.append(torch.stack(logits).sum(0).softmax(1))
        for voter, seen in zip(own, features if votes else ()):
            voter.looks.append(whitened(seen, models[0].spec.num_classes))
    return torch.stack(probs).mean(0), own if votes else []


def outlook_of(probs: Tensor, start: Tensor, own: list[Voter]) -> Outlook:
    """What is expected, by how many of the sources' labels [n, C] a first vote from `start`, [n, C], changes.

    Where these are few, the sources' class shares count beside equal ones, and the vote of their own features less.
    """
    believed = belief(probs.argmax(1), vote(start, own).argmax(1))
    if not believed:
        return NOTHING_KNOWN
    equal = torch.full((start.shape[1],), 1 / start.shape[1])
    shares = start.mean(0).clamp_min(0.01 * equal[0])
    return Outlook(torch.lerp(equal, shares / shares.sum(), believed), 0.5 * (1 - believed), believed)
