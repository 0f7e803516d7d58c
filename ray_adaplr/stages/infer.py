"""First labels: the source model's, after whatever may help it without labels (BatchNorm statistics, warm start)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from ray_adaplr.config import Config
from ray_adaplr.core.learner import Learner, predict_logits, reestimate_batchnorm, usable_device
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.objectives import information_maximisation
from ray_adaplr.data.store import ImageStore


@dataclass(frozen=True)
class Inferred:
    """What refinement starts from."""

    labels: np.ndarray  # int64 [n]
    confidence: np.ndarray  # float32 [n]
    models: list[Classifier]  # member k starts from models[k mod len]


def infer(models: list[Classifier], store_paths: list[str], config: Config, device: str) -> Iterator[int | Inferred]:
    """Label every target image: argmax of the source models' summed logits (equations 3 and 4).

    Yields the number of warm-start epochs done so far, and last what was inferred.
    """
    store, device = ImageStore.open(*store_paths), usable_device(device)
    samples = np.arange(len(store))
    done = 0
    for model in models:
        if config.bn_adapt:
            reestimate_batchnorm(model, store.read, samples, device)
        if config.warm_start == "im":
            for _ in warm_start(model, store, config, device):
                yield (done := done + 1)
    logits = np.sum([predict_logits(model, store.read, samples, device) for model in models], axis=0)
    probs = torch.from_numpy(logits).softmax(1)
    confidence, labels = probs.max(1)
    yield Inferred(labels.numpy(), confidence.numpy(), [model.to("cpu") for model in models])


def warm_start(model: Classifier, store: ImageStore, config: Config, device: str) -> Iterator[int]:
    """Information maximisation on the clean target images with the head frozen, in place (SHOT's first gain)."""
    settings = replace(config.member_training(), epochs=config.warm_start_epochs, augment=None)
    head = list(model.head.parameters())
    for parameter in head:
        parameter.requires_grad_(False)
    learner = Learner(model, store.read, np.arange(len(store)), settings, device=device)
    for epoch in range(config.warm_start_epochs):
        learner.train_epoch(epoch, information_maximisation)
        yield epoch
    for parameter in head:
        parameter.requires_grad_(True)
