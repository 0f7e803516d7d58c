"""Plain supervised training: the source model on its labels, the target model on refined ones (paper, section 3.2).

It trains in a member's place, on as many ranks as a member has or `distill_workers` says (`core/ranks.py`): their
number changes the bits, as threads and the kind of device do, and not more than that.
"""

import copy
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core import devices
from ray_adaplr.core.feed import USUAL_CACHE, DeviceCache
from ray_adaplr.core.learner import Learner, TrainSettings, Workplace
from ray_adaplr.core.models import Classifier, averaged
from ray_adaplr.core.objectives import supervised, targets_of
from ray_adaplr.core.ranks import ALONE, Ranks
from ray_adaplr.core.refine import high_confidence
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.checkpoint import load_state, save_state
from ray_adaplr.engine.engine import Engine
from ray_adaplr.errors import RunFailed
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.models import save_model

log = logging.getLogger(__name__)

RIGHT = "right_in_training"  # in a source model's notes: share of its images, by the last epoch's training pass
SOFT_TEMPERATURE = 0.5
"""Of soft labels, as in MixMatch. PACS, 150 images, mean of five tasks, percent right on adapted / unseen images: at .5
65.6 / 59.8, at 1 64.0 / 61.0, from hard labels weighted by confidence 65.1 / 58.8."""

KEPT_WITHOUT_SHIFT = 0.75
"""Of the source model's weights, by the target model. Points gained on adapted / unseen images: PACS without a shift,
mean of twelve runs, with .6 +1.2 / -.1, with .75 +1.0 / +.1, with .9 +.3 / +.2; digits, eight runs, with .75 +.6 / +.4;
three small shifts (blur, brightness) with .5 +3.3 / +2.2, with .75 +2.0 / +1.2."""


@dataclass(frozen=True)
class Lesson:
    """What to learn: labels (and how much each counts) for a choice of images."""

    store_paths: tuple[str, ...]
    labels: np.ndarray  # int [N], or soft ones, float32 [N, C]; for all images of the stores
    samples: np.ndarray  # which images to train on, ascending, int [n]
    weights: np.ndarray | None = None  # float [N]
    smoothing: float = 0.0  # share of each label that is spread over all classes


@dataclass(frozen=True)
class Training:
    """A supervised training as it is sent to who does it."""

    name: Literal["pretrain", "distill"]  # of the state that is kept after each epoch
    model: Classifier  # where to start
    lesson: Lesson
    settings: TrainSettings
    folder: str  # where the model goes
    checkpoints: str  # where the state after each epoch is kept
    notes: dict[str, str] = field(default_factory=dict)  # for model.json
    kept: tuple[Classifier, float] | None = None  # a model, and its share of the weights in the end

    def epochs(
        self, device: str, threads: int, cache: DeviceCache = USUAL_CACHE, ranks: Ranks = ALONE
    ) -> Iterator[tuple[int, float]]:
        """Train, or continue from the last epoch that was kept; yields (epoch, loss) and last writes the model.

        The loss is the training pass's cross entropy. All kept epochs of a target model are told of again: a trainer on
        Ray runs ahead of who writes them down, and may outlive it.
        """
        store = ImageStore.open(*self.lesson.store_paths)
        device = devices.usable_device(device)
        place = Workplace(device, threads, ranks, cache.of(store.read, len(store), device))
        learner = Learner(self.model, store.read, self.lesson.samples, self.settings, place=place)
        first, losses, known = 0, list[float](), dict[str, float]()
        if saved := load_state(self.checkpoints, self.name):
            first = saved.pop("epoch") + 1
            if (before := saved.pop("ranks", ranks.world)) != ranks.world:
                log.warning(
                    "%s continues with %d ranks, and had %d before: its bits are not those of one whole training",
                    *(self.name, ranks.world, before),
                )
            losses, known = saved.pop("losses", []), saved.pop("known", {})  # none of an earlier version
            learner.load_state(saved)
            for epoch, loss in enumerate(losses, first - len(losses)) if self.name == "distill" else ():
                yield epoch, loss
        lesson = self.lesson
        targets = targets_of(lesson.labels, lesson.samples)
        for epoch in range(first, self.settings.epochs):
            logits = learner.train_epoch(epoch, supervised(lesson.labels, lesson.weights, lesson.smoothing))
            losses.append(F.cross_entropy(torch.from_numpy(logits), targets).item())
            if self.name == "pretrain":
                known = {RIGHT: float((logits.argmax(1) == targets.numpy()).mean())}
            if ranks.rank == 0:
                state = {"epoch": epoch, "ranks": ranks.world, "losses": losses, "known": known, **learner.state()}
                save_state(self.checkpoints, self.name, state)
            yield epoch, losses[-1]
        if ranks.rank == 0:
            together = {"ranks": str(ranks.world)} if ranks.world > 1 else {}
            model = mixed(learner.model, *self.kept) if self.kept else learner.model
            save_model(Folder(self.folder), model, **self.notes, **together, **known)


def train(training: Training, engine: Engine, scaling: ScalingConfig) -> Iterator[tuple[int, float]]:
    """Train on one or several ranks; yields (epoch, loss) of each finished epoch."""
    ranks = workers(engine, scaling)
    place = (engine.device, scaling.threads, engine.cache)
    does = {"pretrain": "trains the source model", "distill": "trains the target model"}[training.name]
    yield from engine.stream(training.epochs, *place, does=does, ranks=ranks)


def workers(engine: Engine, scaling: ScalingConfig) -> int:
    """How many ranks train one model: as many as were asked for, else as many as a member has."""
    return scaling.distill_workers or engine.ranks


def distill_lesson(store: ImageStore, table: pa.Table, config: Config, went_back: bool = False) -> Lesson:
    """What to learn from a table of refined labels: the sure ones, all, all by confidence, or their probabilities.

    After an alarm the labels `went_back` behind the epoch that raised it. Where the probabilities still name another
    class, the label is half of what is learned, so that none stands above it.
    """
    labels, confidence = table["refined_label"].to_numpy().astype(np.int64), table["confidence"].to_numpy().copy()
    samples = np.arange(len(labels))
    if config.distill_on == "soft":
        columns = [table[name].to_numpy() for name in table.column_names if name.startswith("p_")]
        probs = np.stack(columns, 1).astype(np.float32)
        if went_back:
            against = probs.argmax(1) != labels
            probs[against] = (probs[against] + np.eye(probs.shape[1], dtype=np.float32)[labels[against]]) / 2
        sharpened = probs ** (1 / SOFT_TEMPERATURE)
        return Lesson(tuple(store.paths), sharpened / sharpened.sum(1, keepdims=True), samples)
    if config.distill_on == "hcs":
        samples = samples[high_confidence(torch.from_numpy(confidence), config.alpha).numpy()]
        if len(samples) < 2:
            raise RunFailed(
                f"only {len(samples)} of {len(labels)} labels are above alpha={config.alpha}: nothing to train the "
                "target model on; use more epochs, a lower alpha, or distill_on=all"
            )
    return Lesson(tuple(store.paths), labels, samples, confidence if config.distill_on == "weighted" else None)


def share_of_source(changed: float, config: Config) -> float:
    """How much of the source model's weights the target model keeps, given the share of labels that changed.

    All where none did and nothing was to be learned, none from `keep_source` on. PACS, 150 images, percent right on
    adapted / unseen ones, without and with: photo→photo (.06 changed) 93.3 / 95.1, 94.7 / 95.7; art→art (.15) 82.7 /
    81.5, 82.0 / 83.8; art→photo (.14) 92.7 / 88.7, 92.7 / 89.3. Where more changed, any share does harm: photo→art
    (.35) with a quarter 71.3 / 61.0 instead of 72.0 / 63.3.
    """
    return max(0.0, 1 - changed / config.keep_source) if config.keep_source else 0.0


def mixed(model: Classifier, other: Classifier, share: float) -> Classifier:
    """A model with so much of the weights, and of BatchNorm's statistics, of another one of its kind."""
    found, theirs = copy.deepcopy(model), other.state_dict()
    for name, tensor in found.state_dict().items():
        if tensor.is_floating_point():
            tensor.lerp_(theirs[name].to(tensor), share)
    return found


def starting_members(left: list[int], num_sources: int, config: Config) -> list[int]:
    """Which of the members that are left, ascending, the target model starts from; none: from the first source model.

    Either the one with the lowest number, no score chooses it, or the average of those that share a start: networks
    that were trained apart average to chance. Member k started from source k mod their number, and the source with the
    most members left is taken, the first of equals.
    """
    if config.distill_start == "source":
        return []
    if config.distill_start == "member":
        return left[:1]
    groups = [[k for k in left if k % num_sources == source] for source in range(num_sources)]
    return max(groups, key=len)


def distill_start(
    source: Classifier, members: dict[int, Classifier], config: Config, num_sources: int = 1
) -> Classifier:
    """Where the target model starts: the source model, or the average of the weights of its `starting_members`."""
    chosen = [members[k] for k in starting_members(sorted(members), num_sources, config)]
    return averaged(chosen or [source])
