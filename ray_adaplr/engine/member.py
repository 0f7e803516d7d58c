"""One ensemble member: an object that knows nothing of Ray; Ray runs it as an actor, the local engine calls it."""

import logging
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ray_adaplr.config import Config
from ray_adaplr.core import devices, draws
from ray_adaplr.core.feed import USUAL_CACHE, DeviceCache
from ray_adaplr.core.learner import Learner, Workplace
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.objectives import MemberObjective, ResidualDraw
from ray_adaplr.core.ranks import ALONE, Ranks
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.checkpoint import FileRecord, load_member, save_member
from ray_adaplr.engine.group import Group, Meeting
from ray_adaplr.engine.training import member_training


@dataclass(frozen=True)
class MemberPlan:
    """What makes member k different from the others, and where its images lie. Small: images never travel."""

    member: int
    config: Config
    store_paths: tuple[str, ...]
    device: str  # "cpu", or devices.ACCELERATOR
    threads: int
    cache: DeviceCache = USUAL_CACHE
    ranks: Ranks = ALONE  # which of the member's processes this is for


class Overheard(logging.Handler):
    """Keeps the package's warnings in this process until somebody asks for them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.kept: list[str] = []
        for name in ("ray_adaplr", "py.warnings"):
            logging.getLogger(name).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning."""
        self.kept.append(record.getMessage().partition("\n")[0])


class Member:
    """Trains one network on its residual labels and its augmentations, one epoch per call.

    A new member holds nothing and refuses to train until `setup` has given it its weights (and, after a restart, its
    checkpoint), so a restarted actor can never continue from an empty state. In a process of its own, whose terminal
    nobody sees, what is warned of is `overheard` and kept for `warnings`.
    """

    def __init__(self, overheard: bool = False, deterministic: bool = False) -> None:
        self._mode = devices.deterministic(deterministic)
        self._mode.__enter__()
        self._overheard = Overheard() if overheard else None
        self.learner: Learner | None = None
        self._snapshots: dict[int, dict[str, Any]] = {}
        self._group = Group()

    def meet(self, world: int) -> Meeting:
        """Open a place where the ranks of one network meet; this process is the first of them."""
        return self._group.open(world)

    def join(self, meeting: Meeting, ranks: Ranks, device: str) -> None:
        """Be one of the ranks that meet there."""
        self._group.join(meeting, ranks, devices.usable_device(device))

    def stream(self, threads: int, function: Callable[..., Iterator[Any]], *args: Any) -> Iterator[Any]:
        """Run a generator function in this process, with so many torch threads, while there is nothing to train."""
        torch.set_num_threads(threads)
        with devices.explained():
            yield from function(*args)

    @devices.explained()
    def setup(self, plan: MemberPlan, model: Classifier, checkpoint: tuple[str, FileRecord] | None = None) -> None:
        """Take the start model and, when going on, the state from (checkpoint folder, file)."""
        self.plan, config, k = plan, plan.config, plan.member
        store = ImageStore.open(*self.plan.store_paths)
        device = devices.usable_device(plan.device)
        cache = plan.cache.of(store.read, len(store), device)
        if config.fresh_head:
            model.reset_head(draws.torch_seed(draws.key(config.seed, "head", k)))
        self.learner = Learner(
            model,
            store.read,
            np.arange(len(store)),
            member_training(config),
            member=k if config.augmentations == "daug" else 0,
            place=Workplace(device, plan.threads, plan.ranks, cache),
        )
        if checkpoint:
            self.learner.load_state(load_member(*checkpoint))
        assert isinstance(config.n_rl, int), "the config is resolved before members exist"
        assert config.residuals != "auto"
        draw = None
        if config.loss == "nel":
            draw = ResidualDraw(model.spec.num_classes, config.n_rl, config.n_e, config.residuals, config.seed)
        self._objective = MemberObjective(draw, k, config.diversity)

    @devices.explained()
    def train_epoch(self, epoch: int, labels: np.ndarray, snapshot: bool = False) -> tuple[np.ndarray, list[str]]:
        """Train on the pseudo-labels, int [N_t]; returns logits, float32 [N_t, C], and `warnings()`.

        Of several ranks the first one returns logits, the others none. A snapshot of the state after this epoch is kept
        for `save`, which runs beside the next one.
        """
        learner = self._ready()
        logits = learner.train_epoch(epoch, self._objective.of_epoch(epoch, labels))
        if self.plan.config.logits_from == "clean":
            logits = learner.predict()
        if snapshot and not self.plan.ranks.rank:  # all ranks have the same
            self._snapshots[epoch] = learner.state()
        return logits if not self.plan.ranks.rank else logits[:0], self.warnings()

    def save(self, folder: str, epoch: int) -> FileRecord:
        """Write the state after `epoch` to the checkpoint folder, beside the next epoch; says what it wrote."""
        return save_member(folder, self.plan.member, epoch, self._snapshots.pop(epoch))

    def model(self) -> Classifier:
        """The trained network, on the CPU."""
        return self._ready().model.to("cpu")

    def release(self) -> None:
        """Let go of network, optimiser and images; the process stays."""
        self.learner = None
        devices.empty_cache()

    def whereabouts(self) -> str:
        """Which process this is; answered beside the work, by whoever is alive."""
        return f"node {platform.node()}, pid {os.getpid()}"

    def warnings(self) -> list[str]:
        """What was warned of since the last time; answered beside the work."""
        if self._overheard is None:
            return []
        kept, self._overheard.kept = self._overheard.kept, []
        return kept

    def _ready(self) -> Learner:
        if self.learner is None:
            raise RuntimeError("a member was asked to work before its state was loaded")
        return self.learner
