"""Rival methods, from the same source model, images, backbone, batch size and optimiser as AdaPLR's members.

Each is `method(model, store, seed, epochs, device) -> (adapted model, its labels of the store's images)`, leaves the
given model as it is, never sees a label of the target, and is a thin use of the same `Learner`.

What all share was fixed beforehand and not searched: Adam, learning rate 1e-3 falling to 0 by a cosine, weight decay
5e-4, batches of 64. SHOT's and AaD's authors train with SGD (momentum .9, 1e-2 and 1e-3, decaying) and a network with
a bottleneck and a weight-normalised head; here they get the common optimiser and network. SHOT's label smoothing
belongs to the source model, which is the same for all.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ray_adaplr.config import Config
from ray_adaplr.core.feed import even_slices
from ray_adaplr.core.learner import Learner, Objective, TrainSettings, Workplace
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.objectives import (
    MakeObjective,
    MemberObjective,
    ResidualDraw,
    information_maximisation,
    supervised,
)
from ray_adaplr.core.predict import predict_features, predict_logits
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.training import augmentation, distill_training

Adapted = tuple[Classifier, np.ndarray]
Rival = Callable[[Classifier, ImageStore, int, int, str], Adapted]

TRAINING: dict[str, Any] = {"batch_size": 64, "lr": 1e-3, "lr_head": 1e-3, "weight_decay": 5e-4, "schedule": "cosine"}


def source_only(model: Classifier, store: ImageStore, seed: int, epochs: int, device: str) -> Adapted:
    """The source model as it is."""
    return copy.deepcopy(model), labels_of(model, store, device)


def cross_entropy(model: Classifier, store: ImageStore, seed: int, epochs: int, device: str) -> Adapted:
    """Plain training on the source model's labels, with the augmentation that AdaPLR's members have."""
    learner = _learner(model, store, seed, epochs, device, augmented=True)
    labels = labels_of(model, store, device)
    for epoch in range(epochs):
        learner.train_epoch(epoch, supervised(labels))
    return learner.model, labels_of(learner.model, store, device)


def target_labels(model: Classifier, store: ImageStore, seed: int, epochs: int, device: str) -> Adapted:
    """No rival: the same network trained on the target's *true* labels, as the target model is on refined ones.

    What no method without labels can be expected to pass.
    """
    truth = store.ground_truth()
    assert truth is not None
    training = distill_training(Config(seed=seed, distill_epochs=epochs))
    learner = _learner(model, store, seed, epochs, device, augmented=True, training=training)
    for epoch in range(epochs):
        learner.train_epoch(epoch, supervised(truth))
    return learner.model, labels_of(learner.model, store, device)


def classic_nl(model: Classifier, store: ImageStore, seed: int, epochs: int, device: str) -> Adapted:
    """Negative learning (Kim et al. 2019, its first stage): one random complementary label a sample and epoch.

    One network, the source model's labels throughout, the augmentation that AdaPLR's members have.
    """
    learner = _learner(model, store, seed, epochs, device, augmented=True)
    labels = labels_of(model, store, device)
    negative = MemberObjective(ResidualDraw(model.spec.num_classes, n_rl=1, seed=seed))
    for epoch in range(epochs):
        learner.train_epoch(epoch, negative.of_epoch(epoch, labels))
    return learner.model, labels_of(learner.model, store, device)


def shot(
    model: Classifier,
    store: ImageStore,
    seed: int,
    epochs: int,
    device: str,
    *,
    beta: float = 0.1,
    augmented: bool = False,
    training: TrainSettings | None = None,
) -> Adapted:
    """SHOT (Liang et al. 2020): frozen head, information maximisation, and centroid labels renewed every epoch.

    As published for digits: 30 epochs, batches of 64, no augmentation, the weight of information maximisation 1.

    Args:
        model: source model.
        store: target images.
        seed: of order and augmentation.
        epochs: to train.
        device: where.
        beta: weight of the cross entropy on the centroid labels; published are .1 for digits, .3 for objects.
        augmented: train with the augmentation of AdaPLR's members; not as published.
        training: other settings than `TRAINING`, for networks and images of another kind.
    """
    learner = _learner(model, store, seed, epochs, device, augmented, frozen_head=True, training=training)
    for epoch in range(epochs):
        labels = nearest_centroid(*features_and_probabilities(learner.model, store, device)).argmax(1).numpy()
        learner.train_epoch(epoch, shot_objective(labels, beta))
    learner.model.head.requires_grad_(True)
    return learner.model, labels_of(learner.model, store, device)


def nearest_centroid(features: Tensor, probs: Tensor) -> Tensor:
    """Labels of the nearest class centroid, as one-hot rows [n, C]: SHOT's two rounds, first from soft labels.

    Args:
        features: what goes into the head, [n, d].
        probs: the model's predictions, [n, C].
    """
    points = F.normalize(torch.cat([features, features.new_ones(len(features), 1)], 1))
    weights = probs
    for _ in range(2):
        size = weights.sum(0)
        similarity = points @ F.normalize(weights.T @ points / (size[:, None] + 1e-8)).T
        similarity[:, size == 0] = -torch.inf
        weights = F.one_hot(similarity.argmax(1), probs.shape[1]).float()
    return weights


def shot_objective(labels: np.ndarray, beta: float) -> MakeObjective:
    """Information maximisation + beta * cross entropy on the centroid labels, int [n]."""

    def make(order: np.ndarray, device: torch.device) -> Objective:
        maximise, fit = information_maximisation(order, device), supervised(labels)(order, device)
        return lambda logits, rows: maximise(logits, rows) + beta * fit(logits, rows)

    return make


def aad(
    model: Classifier,
    store: ImageStore,
    seed: int,
    epochs: int,
    device: str,
    *,
    neighbours: int = 5,
    beta: float = 5.0,
    augmented: bool = False,
    training: TrainSettings | None = None,
) -> Adapted:
    """Attracting and Dispersing (Yang et al. 2022): predict like the neighbours, unlike the rest of the batch.

    The whole network is trained. No figures are published for digits: `neighbours` and `beta` are those of VisDA-C,
    which of its tasks has the nearest number of classes and of images a class. No augmentation: the published crop
    and flip are for photographs.

    Args:
        model: source model.
        store: target images.
        seed: of order and augmentation.
        epochs: to train.
        device: where.
        neighbours: K.
        beta: how fast dispersing fades, (1 + 10 t)^-beta at the share t of the training.
        augmented: train with the augmentation of AdaPLR's members; not as published.
        training: other settings than `TRAINING`, for networks and images of another kind.
    """
    learner = _learner(model, store, seed, epochs, device, augmented, training=training)
    banks = NeighbourBanks(*features_and_probabilities(learner.model, store, device))
    caught: list[Tensor] = []
    hook = learner.model.head.register_forward_pre_hook(lambda _module, inputs: caught.append(inputs[0].flatten(1)))
    batch_size = training.batch_size if training else TRAINING["batch_size"]
    steps_an_epoch = len(list(even_slices(len(store), batch_size)))
    for epoch in range(epochs):

        def make(order: np.ndarray, device: torch.device, first: int = epoch * steps_an_epoch) -> Objective:
            samples, steps = torch.from_numpy(order).to(device), iter(range(first, first + steps_an_epoch))

            def loss(logits: Tensor, rows: slice) -> Tensor:
                dispersing = (1 + 10 * next(steps) / (epochs * steps_an_epoch)) ** -beta
                return banks.loss(caught.pop(), logits, samples[rows], neighbours, dispersing)

            return loss

        learner.train_epoch(epoch, make)
    hook.remove()
    return learner.model, labels_of(learner.model, store, device)


class NeighbourBanks:
    """AaD's memory: the last features and predictions of every sample.

    Args:
        features: [n, d].
        probs: [n, C].
    """

    def __init__(self, features: Tensor, probs: Tensor) -> None:
        self.features, self.scores = F.normalize(features), probs.clone()

    def loss(self, features: Tensor, logits: Tensor, samples: Tensor, neighbours: int, dispersing: float) -> Tensor:
        """Minus the likeness to the neighbours' predictions, plus `dispersing` times that to the batch's others.

        Args:
            features: of the batch, [b, d].
            logits: of the batch, [b, C].
            samples: the batch's sample numbers, [b].
            neighbours: K.
            dispersing: lambda.
        """
        probs = logits.softmax(1)
        with torch.no_grad():
            self.features[samples] = F.normalize(features)
            self.scores[samples] = probs
            # The sample itself is in the bank, and the nearest of all.
            nearest = (self.features[samples] @ self.features.T).topk(neighbours + 1).indices[:, 1:]  # [b, K]
        attraction = (probs[:, None, :] * self.scores[nearest]).sum((1, 2)).mean()
        likeness = probs @ probs.T
        dispersion = (likeness.sum(1) - likeness.diagonal()).mean()
        return dispersing * dispersion - attraction


RIVALS: dict[str, Rival] = {
    "source_only": source_only,
    "cross_entropy": cross_entropy,
    "classic_nl": classic_nl,
    "shot": shot,
    "aad": aad,
    "shot_augmented": partial(shot, augmented=True),
}


def first_use(model: Classifier, store: ImageStore) -> None:
    """Train a little before any clock runs: a process's first step loads 2 s of torch code, no method's own cost."""
    settings = TrainSettings(seed=0, epochs=1, augment=augmentation(Config(), Config().crop), **TRAINING)
    learner = Learner(copy.deepcopy(model), store.read, np.arange(min(128, len(store))), settings)
    learner.train_epoch(0, information_maximisation)


def labels_of(model: Classifier, store: ImageStore, device: str) -> np.ndarray:
    """The model's own labels of clean images, int64 [n]."""
    return predict_logits(model, store.read, np.arange(len(store)), device).argmax(1)


def features_and_probabilities(model: Classifier, store: ImageStore, device: str) -> tuple[Tensor, Tensor]:
    """What goes into the head, [n, d], and the predictions, [n, C], of clean images in evaluation mode."""
    features, logits = predict_features(model, store.read, np.arange(len(store)), device)
    return features, logits.softmax(1)


def _learner(
    model: Classifier,
    store: ImageStore,
    seed: int,
    epochs: int,
    device: str,
    augmented: bool,
    frozen_head: bool = False,
    training: TrainSettings | None = None,
) -> Learner:
    """A learner on a copy of the model."""
    model = copy.deepcopy(model)
    model.head.requires_grad_(not frozen_head)
    members = Config()
    augment = augmentation(members, members.crop) if augmented else None
    settings = training or TrainSettings(seed=seed, epochs=epochs, augment=augment, **TRAINING)
    return Learner(model, store.read, np.arange(len(store)), settings, place=Workplace(device))
