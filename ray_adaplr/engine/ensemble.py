"""The members as the coordinator sees them: start an epoch, collect logits in member order, save, hand over models.

`LocalEnsemble` runs them one after another in this process, `RayEnsemble` as actors that it watches and restarts. Both
drive the same `Member`, so both give the same bits. Member k starts from models[k mod their number].
"""

import copy
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import ray

from ray_adaplr.config import ScalingConfig
from ray_adaplr.core.models import Classifier
from ray_adaplr.engine import waiting
from ray_adaplr.engine.checkpoint import Checkpoints, DamagedCheckpoint, FileRecord, UnfinishedCheckpoint
from ray_adaplr.engine.member import Member, MemberPlan
from ray_adaplr.engine.seats import Seats
from ray_adaplr.engine.supervise import Action, Failure, classify, decide
from ray_adaplr.engine.team import Team
from ray_adaplr.engine.waiting import Patience, Watched
from ray_adaplr.errors import InputError, RunFailed, first_line

log = logging.getLogger(__name__)
Receipts = Callable[[], list[FileRecord | None]]


class LocalEnsemble:
    """Members one after another in this process."""

    def __init__(self, plans: list[MemberPlan], models: list[Classifier], checkpoints: Checkpoints) -> None:
        self._folder = checkpoints.folder.uri
        self._count = len(plans)
        self._members = {k: Member() for k in range(len(plans)) if not checkpoints.is_lost(k)}
        for k, member in self._members.items():
            member.setup(plans[k], copy.deepcopy(models[k % len(models)]), checkpoints.member_state(k))

    def start(self, epoch: int, labels: np.ndarray, snapshot: bool) -> None:
        """Note the work; it is done in `collect`."""
        self._work = (epoch, labels, snapshot)

    def collect(self) -> dict[int, np.ndarray]:
        """Train the members in turn; their logits, by member in ascending order."""
        logits = {}
        for k, member in self._members.items():
            try:
                logits[k], _ = member.train_epoch(*self._work)
            except FloatingPointError as error:
                raise RunFailed(f"member {k} in epoch {self._work[0] + 1} diverged: {error}") from error
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
    """Members as teams of one or more actors, each in its seat, watched while they train.

    A member that has lost a rank is lost. It is started again, gets the last whole checkpoint and replays the epochs
    since then on the labels of those epochs, so that the run continues with the bits it would have had.
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
        self._models = [ray.put(model) for model in models]
        self._labels: dict[int, Any] = {}  # epoch -> labels, for replay, back to the newest whole checkpoint
        self._restarts = {k: 0 for k in range(len(plans))}
        self._teams: dict[int, Team] = {}
        self._pending: dict[Any, tuple[int, int]] = {}  # what is waited for -> (member, rank)
        self._snapshot = False
        self._patience = Patience(scaling.epoch_timeout)
        begun = {k: self._launch(k) for k in self._restarts if not checkpoints.is_lost(k)}
        for k, setup in begun.items():
            try:
                self._await(k, setup)
            except Exception as error:
                self._recover(k, error, replay=False)

    def _launch(self, k: int) -> dict[Any, Watched]:
        """The actors of member k get its state; returns their set-ups, to wait for."""
        plan, state, ranks = self._plans[k], self._checkpoints.member_state(k), self._seats.ranks
        team = self._teams[k] = Team(self._seats, k * ranks, ranks, f"member {k}", plan.device)
        return {
            actor.setup.remote(replace(plan, ranks=own), self._models[k % len(self._models)], state): watched
            for actor, own, watched in zip(team.actors, team.ranks, team.watched)
        }

    def _await(self, k: int, setups: dict[Any, Watched]) -> None:
        """The processes have the deadline of a wait for nodes.

        Their set-up may fetch a store from far away, and has an epoch's deadline.
        """
        self._teams[k].ready(self._scaling.wait_for_nodes or self._scaling.placement_timeout, self._patience)
        waiting.get_all(setups, self._patience)

    def start(self, epoch: int, labels: np.ndarray, snapshot: bool) -> None:
        """Send the labels out once, to all members, and return at once."""
        self._labels = {e: ref for e, ref in self._labels.items() if e > self._checkpoints.epoch}
        self._labels[epoch] = ray.put(labels)
        self._epoch, self._snapshot, self._started = epoch, snapshot, time.monotonic()
        self._pending = {}
        for k in self._teams:
            self._train(k, epoch, snapshot)

    def _train(self, k: int, epoch: int, snapshot: bool) -> None:
        """Let all ranks of member k train an epoch, and wait for them in `collect`."""
        called = self._teams[k].call("train_epoch", epoch, self._labels[epoch], snapshot)
        self._pending |= {ref: (k, rank) for rank, ref in enumerate(called)}

    def collect(self) -> dict[int, np.ndarray]:
        """Wait for all ranks of all members, restarting those that are lost; one lost for good is left out."""
        logits: dict[int, np.ndarray] = {}
        while self._pending:
            awaited = {ref: self._teams[k].watched[rank] for ref, (k, rank) in self._pending.items()}
            done, overdue = waiting.wait_for(awaited, self._patience)
            for ref in [*done, *overdue]:
                if ref not in self._pending:  # of a member that was started again a moment ago
                    continue
                k, rank = self._pending.pop(ref)
                try:
                    if ref in overdue:
                        raise overdue[ref]
                    answer, warnings = ray.get(ref)
                except Exception as error:
                    logits.pop(k, None)
                    self._recover(k, error, replay=True)
                else:
                    self._seats.heard(k * self._seats.ranks + rank, warnings)
                    if rank == 0:
                        logits[k] = answer
        self._patience.measured(time.monotonic() - self._started)
        return dict(sorted(logits.items()))

    def _recover(self, k: int, error: Exception, replay: bool) -> None:
        """Restart member k and replay, go on without it, or end the run by RunFailed.

        DamagedCheckpoint before the first epoch, when the member's file is not whole.
        """
        told = getattr(error, "cause", None)  # a sentence of our own needs no traceback of the process it is from
        if isinstance(told, DamagedCheckpoint) and not self._labels:
            raise told from None
        failure = Failure.HUNG if isinstance(error, TimeoutError) else classify(error)
        where = f"member {k} in epoch {self._epoch + 1}" if self._labels else f"member {k} at its start"
        log.warning("%s: %s (%s)", where, failure.value, first_line(error))
        members = len(self._plans)
        action = decide(failure, self._restarts[k], members - len(self._teams), members, self._scaling)
        if action is Action.STOP:
            said = told if isinstance(told, RunFailed | InputError | FloatingPointError) else error
            raise RunFailed(f"{where} {failure.value}: {said}") from error
        self._pending = {ref: who for ref, who in self._pending.items() if who[0] != k}
        self._teams.pop(k).dismiss()
        if action is Action.DROP:
            log.warning("member %d is given up; the run continues with %d members", k, len(self._teams))
            return
        self._restarts[k] += 1
        again = sorted(e for e in self._labels if e > self._checkpoints.epoch) if replay else []
        try:  # a lost node may never come back: the new actor has to be ready within the placement's deadline
            self._await(k, self._launch(k))
            for epoch in again[:-1]:
                waiting.get_all(self._teams[k].call("train_epoch", epoch, self._labels[epoch], False), self._patience)
        except Exception as loss:
            return self._recover(k, loss, replay)
        for epoch in again[-1:]:
            self._train(k, epoch, self._snapshot and epoch == self._epoch)

    def save(self, epoch: int) -> Receipts:
        """Members write in their io thread while the next epoch trains; the result waits for their receipts."""
        folder = self._checkpoints.folder.uri
        members, writing = list(self._teams), dict[Any, Watched]()
        for team in self._teams.values():
            writing[team.first.save.options(concurrency_group="io").remote(folder, epoch)] = team.watched[0]

        def receipts() -> list[FileRecord | None]:
            try:
                written = dict(zip(members, waiting.get_all(writing, self._patience)))
                return [written.get(k) for k in range(len(self._plans))]
            except (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnavailableError, TimeoutError) as error:
                raise UnfinishedCheckpoint("a member was lost while it wrote its state") from error
            except ray.exceptions.RayTaskError as error:  # a full disk, most often: said as if it had happened here
                raise (error.cause if isinstance(error.cause, OSError) else error) from None

        return receipts

    def models(self) -> dict[int, Classifier]:
        """Bring the members' networks home; one that is lost by now is restarted as in any epoch."""
        refs = {k: team.first.model.remote() for k, team in sorted(self._teams.items())}
        found: dict[int, Classifier] = {}
        for k in refs:
            while k in self._teams and k not in found:
                try:
                    [found[k]] = waiting.get_all({refs[k]: self._teams[k].watched[0]}, self._patience)
                except Exception as error:
                    self._recover(k, error, replay=any(e > self._checkpoints.epoch for e in self._labels))
                    self.collect()
                    if k in self._teams:
                        refs[k] = self._teams[k].first.model.remote()
        return found

    def close(self) -> None:
        """End the actors but the first member's, whose processes go on to train the target model."""
        for k, team in self._teams.items():
            if k == 0:
                team.call("release")
            else:
                team.dismiss()
        self._teams = {}


Ensemble: TypeAlias = LocalEnsemble | RayEnsemble
