"""Plain supervised training: the source model on its labels, the target model on refined ones."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ray_adaplr.core.learner import Learner, TrainSettings
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.objectives import supervised
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.checkpoint import load_training, save_training


@dataclass(frozen=True)
class Lesson:
    """What to learn: labels (and how much each counts) for a choice of images."""

    store_paths: tuple[str, ...]
    labels: np.ndarray  # int [N], for all images of the stores
    samples: np.ndarray  # which images to train on, ascending, int [n]
    weights: np.ndarray | None = None  # float [N]


def train_supervised(
    model: Classifier, lesson: Lesson, settings: TrainSettings, device: str, threads: int, checkpoint: tuple[str, str]
) -> Iterator[int | Classifier]:
    """Train by cross entropy; yields the number of each finished epoch and last the model, on the CPU.

    Args:
        model: where to start.
        lesson: images and labels.
        settings: how to train.
        device: where.
        threads: torch threads on a CPU.
        checkpoint: (folder, name) to keep the state in after every epoch, and to go on from.
    """
    store = ImageStore.open(*lesson.store_paths)
    learner = Learner(model, store.read, lesson.samples, settings, device=device, threads=threads)
    first = 0
    if saved := load_training(*checkpoint):
        first = saved.pop("epoch") + 1
        learner.load_state(saved)
    for epoch in range(first, settings.epochs):
        learner.train_epoch(epoch, supervised(lesson.labels, lesson.weights))
        save_training(*checkpoint, epoch, learner.state())
        yield epoch
    yield learner.model.to("cpu")
