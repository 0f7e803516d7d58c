"""The digit tasks of the benchmarks, as a table, and what each starts from: stores and a source model, made once.

Stores and source models lie in a work folder under names that say how they were made, so that all methods, and a
benchmark that was killed and is run again, start from the same ones.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier, ModelSpec, normalization
from ray_adaplr.data.ingest import prepare
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.store import ImageStore
from ray_adaplr.data.store_writer import write_store
from ray_adaplr.engine.training import pretraining
from ray_adaplr.stages.pretrain import SourcePlan, pretrain


@dataclass(frozen=True)
class Task:
    """A pair of domains and how they are shown to all methods. Files are `<domain>_<train or test>.npz`.

    Where both are the same there is no shift; half of the test split is then adapted to, the other half unseen.
    """

    name: str
    source: str
    target: str
    size: int = 16  # pixels a side; 16 is USPS's own resolution
    channels: Literal[1, 3] = 1
    width: int = 16  # of the digit CNN
    normalize: Literal["image", "none"] = "none"
    source_augmented: bool = False
    source_epochs: int = 12
    source_limit: int | None = 25000  # images, as in the paper's Digit5; None is all
    target_limit: int | None = 5000  # images that are adapted to; the test is on the whole test split (see above)
    imbalance: float = 1.0  # the largest class of the target's images over the smallest; 1 leaves them as they are
    changes: dict[str, Any] = field(default_factory=dict)  # to the preset for this task, also for the source model


TASKS = {
    task.name: task
    for task in (
        Task("usps-mnist", "usps", "mnist"),
        Task("mnist-usps", "mnist", "usps", target_limit=None),
        Task("svhn-mnist", "svhn", "mnist", normalize="image", source_augmented=True),
        Task(
            "mnist-mnistm",
            "mnist",
            "mnistm",
            channels=3,
            normalize="image",
            source_augmented=True,
            target_limit=8000,
            changes={"palette": 0.5, "warm_start_epochs": 20},
        ),
    )
}
NO_SHIFT = {
    task.name: task
    for task in (
        Task("usps-usps", "usps", "usps", normalize="image"),
        Task("mnist-mnist", "mnist", "mnist", normalize="image"),
        Task("svhn-svhn", "svhn", "svhn", normalize="image"),
        Task("mnistm-mnistm", "mnistm", "mnistm", channels=3, normalize="image"),
    )
}


@dataclass(frozen=True)
class Start:
    """What every method gets: a source model, the target's images, and the images to test on."""

    source: Classifier
    target: ImageStore
    test: ImageStore


def start_of(task: Task, seed: int, data: Path, work: Path) -> Start:
    """Stores and source model of a task; made now or found in `work`.

    Args:
        task: which one.
        seed: of the source model; the target's images are the same for all seeds.
        data: folder of the npz files.
        work: where stores and models are kept.
    """
    labelled = _store(task, task.source, "train", task.source_limit, data, work)
    spec = ModelSpec(
        num_classes=len(labelled.classes),
        channels=task.channels,
        width=task.width,
        **normalization(task.normalize),
        image_size=(task.size, task.size),
        classes=tuple(labelled.classes),
    )
    lessons = {"pretrain_epochs": task.source_epochs, "pretrain_augment": task.source_augmented}
    config = Config(seed=seed, **lessons, **task.changes)
    made_by = short_hash([labelled.fingerprint, spec.model_dump(mode="json"), repr(pretraining(config))])
    source = pretrain(
        SourcePlan(
            labelled,
            str(work / "models" / f"{task.source}-{seed}-{made_by}"),
            spec,
            config,
            ScalingConfig(engine="local"),
        )
    )
    if task.source == task.target:
        return Start(source, *_halves(_store(task, task.target, "test", None, data, work), task.target_limit, work))
    limit = None if task.imbalance != 1 else task.target_limit
    target = _store(task, task.target, "train", limit, data, work)
    if task.imbalance != 1:
        target = _imbalanced(target, task.imbalance, task.target_limit or len(target) // 3, work / "stores")
    return Start(source, target, _store(task, task.target, "test", None, data, work))


def _halves(store: ImageStore, limit: int | None, work: Path) -> tuple[ImageStore, ImageStore]:
    """Images to adapt to and images to test on: two halves of a store at random, of at most `limit` images each."""
    order = np.random.default_rng(0).permutation(len(store))
    parts = [part[:limit] for part in np.array_split(order, 2)]
    path = f"{store.domains[0]}-{store.image_shape[0]}px-{store.image_shape[2]}c-{limit or 'all'}"
    adapted, unseen = (_part(store, part, work / f"stores/{path}-half-{i}") for i, part in enumerate(parts))
    return adapted, unseen


def _imbalanced(store: ImageStore, ratio: float, count: int, folder: Path) -> ImageStore:
    """About `count` images whose class sizes fall geometrically, the classes in a random but fixed order."""
    path = folder / f"{store.domains[0]}-{store.image_shape[0]}px-{store.image_shape[2]}c-{ratio:g}to1-{count}"
    truth = store.ground_truth()
    assert truth is not None
    rng, num_classes = np.random.default_rng(0), len(store.classes)
    shares = rng.permutation(ratio ** -np.linspace(0, 1, num_classes))
    sizes = (count * shares / shares.sum()).astype(int)
    chosen = [rng.permutation(np.flatnonzero(truth == c))[:size] for c, size in enumerate(sizes)]
    return _part(store, np.concatenate(chosen), path)


def _part(store: ImageStore, rows: np.ndarray, path: Path) -> ImageStore:
    """A store of these images, in the order that they have; made now or found."""
    if path.exists():
        return ImageStore.open(str(path))
    truth, rows = store.ground_truth(), np.sort(rows)
    assert truth is not None
    ids = store.ids.take(rows).to_pylist()
    return write_store(
        path, [(ids, store.read(rows))], classes=store.classes, domain=store.domains[0], truth=truth[rows]
    )


def _store(task: Task, domain: str, split: str, limit: int | None, data: Path, work: Path) -> ImageStore:
    name = f"{domain}-{split}-{task.size}px-{task.channels}c-{limit or 'all'}"
    options = PrepareOptions(size=task.size, channels=task.channels, limit=limit, seed=0, workers=1)
    return prepare(str(data / f"{domain}_{split}.npz"), str(work / "stores" / name), options)


def described(task: Task) -> dict[str, Any]:
    """The task as data, for the record."""
    return asdict(task)


def short_hash(value: Any) -> str:
    """Eight hex digits that stand for a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
