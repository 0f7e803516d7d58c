"""The members as the coordinator sees them: start an epoch, collect logits in member order, save, hand over models.

`LocalEnsemble` runs them one after another in this process, `RayEnsemble` as actors that it watches and restarts. Both
drive the same `Member`, so both give the same bits.
"""

import copy
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import ray

from ray_adaplr.config import ScalingConfig
from ray_adaplr.core.models import Classifier
from ray_adaplr.engine import waiting
from ray_adaplr.engine.checkpoint import Checkpoints, FileRecord, UnfinishedCheckpoint
from ray_adaplr.engine.member import Member, MemberPlan
from ray_adaplr.engine.seats import Seats
from ray_adaplr.engine.supervise import Action, Failure, classify, decide
from ray_adaplr.engine.waiting import LOADING, Patience, Watched
from ray_adaplr.errors import RunFailed, first_line

log = logging.getLogger(__name__)
Receipts = Callable[[], list[FileRecord | None]]


class Ensemble(Protocol):
    """What the coordinator needs of its members."""

    def start(self, epoch: int, labels: np.ndarray, snapshot: bool) -> None:
        """Let all members train an epoch on these labels; returns at once where members run elsewhere."""

    def collect(self) -> dict[int, np.ndarray]:
        """Logits of the epoch that was started, by member in ascending order; a lost member is left out."""

    def save(self, epoch: int) -> Receipts:
        """Write the members' state after that epoch beside the next one; the result waits for the receipts."""

    def models(self) -> dict[int, Classifier]:
        """The members' networks."""

    def close(self) -> None:
        """Let go of everything."""


class LocalEnsemble:
    """Members one after another in this process."""

    def __init__(self, plans: list[MemberPlan], models: list[Classifier], checkpoints: Checkpoints) -> None:
        self._folder = checkpoints.folder.uri
        self._count = len(plans)
        self._members = {k: Member() for k in range(len(plans)) if not checkpoints.is_lost(k)}
        for k, member in self._members.items():
            member.setup(plans[k], copy.deepcopy(models[k]), checkpoints.member_state(k))

    def start(self, epoch: int, labels: np.ndarray, snapshot: bool) -> None:
        """Note the work; it is done in `collect`."""
        self._work = (epoch, labels, snapshot)

    def collect(self) -> dict[int, np.ndarray]:
        """Train the members in turn."""
        logits = {}
        for k, member in self._members.items():
            try:
                logits[k] = member.train_epoch(*self._work)
            except FloatingPointError as error:
                raise RunFailed(f"member {k} in epoch {self._work[0]} diverged: {error}") from error
        return logits

    def save(self, epoch: int) -> Receipts:
        """Write when the receipts are asked for."""
        return lambda: [
            self._members[k].save(self._folder, epoch) if k in self._members else None for k in range(self._count)
        ]

    def models(self) -> dict[int, Classifier]:
        """The members' networks."""
        return {k: member.model() for k, member in self._members.items()}

    def close(self) -> None:
        """Nothing to let go of."""


class RayEnsemble:
    """Members as actors, each in its seat, watched while they train.

    A lost member is started again, gets the last whole checkpoint and replays the epochs since then on the labels of
    those epochs, so that the run goes on with the bits it would have had.
    """

    def __init__(
        self,
        plans: list[MemberPlan],
        models: list[Classifier],
        checkpoints: Checkpoints,
        scaling: ScalingConfig,
        seats: Seats,
    ) -> None:
        self._plans, self._checkpoints, self._scaling, self._seats = plans, checkpoints, scaling, seats
        same = all(model is models[0] for model in models)
        self._models = [ray.put(models[0])] * len(plans) if same else [ray.put(model) for model in models]
        self._labels: dict[int, Any] = {}  # epoch -> labels, for replay, back to the newest whole checkpoint
        self._restarts = {k: 0 for k in range(len(plans))}
        self._actors: dict[int, Any] = {}
        self._pending: dict[Any, int] = {}
        self._snapshot = False
        self._patience = Patience(scaling.epoch_timeout)
        self._watched: dict[int, Watched] = {}
        begun = {k: self._launch(k) for k in self._restarts if not checkpoints.is_lost(k)}
        for k, setup in begun.items():
            try:
                self._await(k, setup)
            except Exception as error:
                self._recover(k, error, replay=False)

    def _launch(self, k: int) -> Any:
        """The actor in seat k gets its state; returns its set-up, to wait for."""
        actor = self._actors[k] = self._seats.actor(k)
        self._watched[k] = Watched(actor, f"member {k}")
        state = self._checkpoints.member_state(k)
        return actor.setup.remote(self._plans[k], self._models[k], state)

    def _await(self, k: int, setup: Any) -> None:
        """The process has the deadline of a wait for nodes, and where it has a node, time to load from a slow disk.

        Its set-up may fetch a store from far away, and has an epoch's deadline.
        """
        try:
            self._watched[k].ready(self._scaling.wait_for_nodes or self._scaling.placement_timeout)
        except TimeoutError:
            if not self._seats.has_node(k):
                raise
            self._watched[k].ready(LOADING)
        waiting.get(setup, self._watched[k], self._patience)

    def start(self, epoch: int, labels: np.ndarray, snapshot: bool) -> None:
        """Send the labels out once, to all members."""
        self._labels = {e: ref for e, ref in self._labels.items() if e > self._checkpoints.epoch}
        self._labels[epoch] = ray.put(labels)
        self._epoch, self._snapshot, self._started = epoch, snapshot, time.monotonic()
        self._pending = {
            actor.train_epoch.remote(epoch, self._labels[epoch], snapshot): k for k, actor in self._actors.items()
        }

    def collect(self) -> dict[int, np.ndarray]:
        """Wait for all members, restarting those that are lost."""
        logits: dict[int, np.ndarray] = {}
        while self._pending:
            awaited = {ref: self._watched[k] for ref, k in self._pending.items()}
            done, overdue = waiting.wait_for(awaited, self._patience)
            for ref, late in overdue.items():
                self._recover(self._pending.pop(ref), late, replay=True)
            for ref in done:
                k = self._pending.pop(ref)
                try:
                    logits[k] = ray.get(ref)
                except Exception as error:
                    self._recover(k, error, replay=True)
        self._patience.measured(time.monotonic() - self._started)
        self._seats.listen()
        return dict(sorted(logits.items()))

    def _recover(self, k: int, error: Exception, replay: bool) -> None:
        """Restart member k and replay, go on without it, or end the run."""
        failure = Failure.HUNG if isinstance(error, TimeoutError) else classify(error)
        where = f"member {k} in epoch {self._epoch}" if self._labels else f"member {k} at its start"
        log.warning("%s: %s (%s)", where, failure.value, first_line(error))
        action = decide(
            failure,
            self._restarts[k],
            len(self._plans) - len(self._actors),
            max_restarts=self._scaling.max_restarts,
            max_lost=self._scaling.max_lost_members,
            members=len(self._plans),
        )
        if action is Action.STOP:
            told = getattr(error, "cause", None)  # a sentence of our own needs no traceback of the process it is from
            raise RunFailed(f"{where} {failure.value}: {told if isinstance(told, RunFailed) else error}") from error
        del self._actors[k]
        self._seats.dismiss(k)
        if action is Action.DROP:
            log.warning("member %d is given up; the run goes on with %d members", k, len(self._actors))
            return
        self._restarts[k] += 1
        try:  # a lost node may never come back: the new actor has to be ready within the placement's deadline
            self._await(k, self._launch(k))
        except Exception as again:
            return self._recover(k, again, replay)
        if replay:  # the epochs since the checkpoint, then the one that was lost; an actor takes its calls in order
            for epoch in sorted(e for e in self._labels if e > self._checkpoints.epoch):
                keep = self._snapshot and epoch == self._epoch
                ref = self._actors[k].train_epoch.remote(epoch, self._labels[epoch], keep)
            self._pending[ref] = k

    def save(self, epoch: int) -> Receipts:
        """Members write in their io thread while the next epoch trains."""
        folder = self._checkpoints.folder.uri
        refs = {
            k: actor.save.options(concurrency_group="io").remote(folder, epoch) for k, actor in self._actors.items()
        }

        def receipts() -> list[FileRecord | None]:
            try:
                return [
                    waiting.get(refs[k], self._watched[k], self._patience) if k in refs else None
                    for k in range(len(self._plans))
                ]
            except (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnavailableError, TimeoutError) as error:
                raise UnfinishedCheckpoint("a member was lost while it wrote its state") from error
            except ray.exceptions.RayTaskError as error:  # a full disk, most often: said as if it had happened here
                raise (error.cause if isinstance(error.cause, OSError) else error) from None

        return receipts

    def models(self) -> dict[int, Classifier]:
        """Bring the members' networks home; one that is lost by now is restarted as in any epoch."""
        refs = {k: actor.model.remote() for k, actor in sorted(self._actors.items())}
        found: dict[int, Classifier] = {}
        for k in refs:
            while k in self._actors and k not in found:
                try:
                    found[k] = waiting.get(refs[k], self._watched[k], self._patience)
                except Exception as error:
                    self._recover(k, error, replay=any(e > self._checkpoints.epoch for e in self._labels))
                    self.collect()
                    if k in self._actors:
                        refs[k] = self._actors[k].model.remote()
        return found

    def close(self) -> None:
        """End the actors but the first, whose process goes on to train the target model."""
        for k, actor in self._actors.items():
            if k == 0:
                actor.release.remote()
            else:
                self._seats.dismiss(k)
        self._actors = {}
