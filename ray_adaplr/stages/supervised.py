"""Plain supervised training: the source model on its labels, the target model on refined ones.

One worker trains in a member's place. Several, if asked for, train through Ray Train's TorchTrainer, each rank on its
slice of every batch: BatchNorm sees that slice only, and so does the weighting of samples. So the result depends on
the number of workers, and the bits also on their torch threads and their kind of device; a run records all three.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
import torch
import torch.nn.functional as F

from ray_adaplr.config import ScalingConfig
from ray_adaplr.core import devices
from ray_adaplr.core.learner import Learner, TrainSettings, Workplace
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.objectives import supervised
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.checkpoint import load_training, save_training
from ray_adaplr.engine.engine import Engine
from ray_adaplr.errors import InputError, RunFailed
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.models import save_model

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lesson:
    """What to learn: labels (and how much each counts) for a choice of images."""

    store_paths: tuple[str, ...]
    labels: np.ndarray  # int [N], for all images of the stores
    samples: np.ndarray  # which images to train on, ascending, int [n]
    weights: np.ndarray | None = None  # float [N]
    smoothing: float = 0.0  # share of each label that is spread over all classes


@dataclass(frozen=True)
class Training:
    """A supervised training as it is sent to who does it."""

    name: str  # of the state that is kept after each epoch
    model: Classifier  # where to start
    lesson: Lesson
    settings: TrainSettings
    folder: str  # where the model goes
    checkpoints: str  # where the state after each epoch is kept
    notes: dict[str, str] = field(default_factory=dict)  # for model.json

    def epochs(self, device: str, threads: int, rank: int = 0, world: int = 1) -> Iterator[tuple[int, float]]:
        """Train, or go on from the last epoch that was kept; yields (epoch, loss) and last writes the model.

        The loss is the training pass's cross entropy; a rank of several knows that of its own slices only.
        """
        store = ImageStore.open(*self.lesson.store_paths)
        place = Workplace(devices.usable_device(device), threads, shard=(rank, world))
        learner = Learner(self.model, store.read, self.lesson.samples, self.settings, place=place)
        first = 0
        if saved := load_training(self.checkpoints, self.name):
            first = saved.pop("epoch") + 1
            learner.load_state(saved)
        if world > 1:
            learner.distribute()
        for epoch in range(first, self.settings.epochs):
            lesson = self.lesson
            logits = learner.train_epoch(epoch, supervised(lesson.labels, lesson.weights, lesson.smoothing))
            if rank == 0:
                save_training(self.checkpoints, self.name, epoch, learner.state())
            rows = learner.own_rows(epoch)
            targets = torch.from_numpy(lesson.labels[lesson.samples[rows]].astype(np.int64))
            yield epoch, F.cross_entropy(torch.from_numpy(logits[rows]), targets).item()
        if rank == 0:
            save_model(Folder(self.folder), learner.model, **self.notes)


def train(training: Training, engine: Engine, scaling: ScalingConfig) -> Iterator[tuple[int, float]]:
    """Train on one or several workers; yields (epoch, loss) of each finished epoch, of several only the last."""
    workers = scaling.distill_workers
    if workers == 1:
        yield from engine.stream(training.epochs, engine.device, scaling.threads)
        return
    if not ray.is_initialized():
        raise InputError(f"distill_workers={workers} needs Ray; use --engine ray")
    [backend] = engine.stream(_collectives)
    engine.vacate()
    log.info("%s trains on %d workers (%s)", training.name, workers, backend)
    deterministic = scaling.deterministic and engine.device != "cpu"
    place = {"training": training, "device": engine.device, "threads": scaling.threads, "deterministic": deterministic}
    yield _train_on_workers(place, workers, backend, scaling.max_restarts)


def _collectives() -> Iterator[str]:
    """What ranks talk through, as seen from where they will run: a GPU that Ray counts need not be one for torch."""
    backend = devices.COLLECTIVES.get(devices.accelerator() or "cpu", "gloo")
    yield backend if torch.distributed.is_backend_available(backend) else "gloo"


def _train_on_workers(place: dict[str, Any], workers: int, backend: str, max_failures: int) -> tuple[int, float]:
    from ray.train import FailureConfig, RunConfig
    from ray.train import ScalingConfig as Workers
    from ray.train.torch import TorchConfig, TorchTrainer

    training: Training = place["training"]
    name = f"{training.name}-workers"
    result = TorchTrainer(
        _train_rank,
        train_loop_config=place,
        torch_config=TorchConfig(backend=backend),
        scaling_config=Workers(num_workers=workers, use_gpu=place["device"] != "cpu"),
        run_config=RunConfig(
            name=name,
            storage_path=training.checkpoints,
            # Without a limit the controller retries for ever when resources are short.
            failure_config=FailureConfig(max_failures=max_failures, controller_failure_limit=1),  # type: ignore[call-arg]
        ),
    ).fit()
    if result.error:
        raise RunFailed(f"training the model on {workers} workers failed: {result.error}") from result.error
    Folder(training.checkpoints).delete(name)  # Ray Train's own records
    return training.settings.epochs - 1, (result.metrics or {}).get("loss", float("nan"))


def _train_rank(place: dict[str, Any]) -> None:
    from ray.train import get_context, report

    context = get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    with devices.explained(), devices.deterministic(place["deterministic"]):
        for epoch, loss in place["training"].epochs(place["device"], place["threads"], rank, world):
            report({"epoch": epoch, "loss": loss})
