"""Where work runs: in this process, or on Ray. Stages ask an engine to call a function or to seat the members."""

import copy
import logging
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol

import ray
import torch

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core import devices
from ray_adaplr.core.models import Classifier
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine import placement
from ray_adaplr.engine.auth import if_no_token_is_taken
from ray_adaplr.engine.checkpoint import Checkpoints
from ray_adaplr.engine.ensemble import Ensemble, LocalEnsemble, RayEnsemble
from ray_adaplr.engine.member import MemberPlan
from ray_adaplr.engine.seats import Seats
from ray_adaplr.engine.waiting import LOADING, Patience, Watched, wait_for
from ray_adaplr.errors import InputError, RunFailed, first_line

log = logging.getLogger(__name__)


class Engine(Protocol):
    """What the stages need of the place they run in."""

    device: str  # "cpu", or devices.ACCELERATOR
    heard: list[str]  # what the members' processes have warned of

    def vacate(self) -> None:
        """Give the members' seats back, for work that seats itself."""

    def stream(self, function: Callable[..., Iterator[Any]], *args: Any) -> Iterator[Any]:
        """Run a generator function where a member would run; what it yields comes as it is made."""

    def ensemble(
        self, config: Config, store: ImageStore, models: list[Classifier], checkpoints: Checkpoints
    ) -> Ensemble:
        """Members that start from `models` (member k from models[k mod len]) or from the newest checkpoint."""

    def __enter__(self) -> "Engine": ...

    def __exit__(self, *error: Any) -> None: ...


class LocalEngine:
    """Everything in this process."""

    def __init__(self, scaling: ScalingConfig) -> None:
        self._scaling = scaling
        wanted = devices.accelerator() if scaling.gpus_per_member is None else scaling.gpus_per_member
        self.device = devices.ACCELERATOR if wanted else "cpu"
        self.heard: list[str] = []  # a warning in this process reaches the terminal by itself

    def vacate(self) -> None:
        """Nobody is seated."""

    def __enter__(self) -> "LocalEngine":
        self._mode = devices.deterministic(self._scaling.deterministic and self.device != "cpu")
        self._mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(None, None, None)

    def stream(self, function: Callable[..., Iterator[Any]], *args: Any) -> Iterator[Any]:
        """Run it here, on copies of all it knows as if they had been sent, with the threads a member has."""
        before = torch.get_num_threads()
        torch.set_num_threads(self._scaling.threads)
        try:
            function, args = copy.deepcopy((function, args))
            with devices.explained():
                yield from function(*args)
        finally:
            torch.set_num_threads(before)

    def ensemble(
        self, config: Config, store: ImageStore, models: list[Classifier], checkpoints: Checkpoints
    ) -> Ensemble:
        """Members in this process."""
        plans = _plans(config, store, self.device, self._scaling, share=1 / config.n_e)
        return LocalEnsemble(plans, _deal(models, config.n_e), checkpoints)


class RayEngine:
    """Members as actors in one placement group. Inside a Tune trial the trial's own group is used.

    Args:
        scaling: what each member gets.
        n_e: members to seat.
        name: the run's name, for the names of its actors.
    """

    def __init__(self, scaling: ScalingConfig, n_e: int, name: str) -> None:
        self._scaling, self._n_e, self._name = scaling, n_e, name
        self._seats: Seats | None = None
        self.heard: list[str] = []

    def __enter__(self) -> "RayEngine":
        self._connected = placement.connected(self._scaling)
        self._connected.__enter__()
        try:
            self._seat()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def _seat(self) -> None:
        self._group = None
        current = ray.util.get_current_placement_group()
        if current:
            self._shared_group, self._first_bundle = current, 1
            self._bundles = list(current.bundle_specs[1:])
        else:
            nodes = placement.live_nodes()
            cpus, gpus = self._scaling.cpus_per_member, self._scaling.gpus_per_member
            self._bundles = [placement.member_share(self._n_e, nodes, cpus, gpus)] * self._n_e
            wait = self._scaling.wait_for_nodes
            if not wait:
                placement.check_fit(self._bundles, nodes)
            self._group = self._shared_group = placement.reserve(self._bundles, wait or self._scaling.placement_timeout)
            self._first_bundle = 0
        self.device = devices.ACCELERATOR if self._bundles[0].get("GPU", 0) else "cpu"
        deterministic = self._scaling.deterministic and self.device != "cpu"
        self._seats = Seats(
            self._shared_group, self._bundles, self._first_bundle, self._name, self.heard, deterministic
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not placement.own:  # an own Ray ends as a whole, and may be what failed
            self.vacate()
        self._connected.__exit__(kind, error, trace)

    def vacate(self) -> None:
        """End the members and give their placement group back; whoever streams afterwards gets new ones."""
        if self._seats:
            self._seats.close()
        placement.release(self._group)
        self._group = self._seats = None

    def stream(self, function: Callable[..., Iterator[Any]], *args: Any) -> Iterator[Any]:
        """Run it in the first member's process; where that is lost, in a new one, as often as a member is restarted."""
        if not self._seats:
            self._seat()
        assert self._seats
        patience = Patience(self._scaling.epoch_timeout)
        for left in reversed(range(self._scaling.max_restarts + 1)):
            actor = self._seats.actor(0)
            watched = Watched(actor, f"the process of {function.__name__}")
            refs = actor.stream.options(num_returns="streaming").remote(self._scaling.threads, function, *args)
            try:
                watched.ready(max(LOADING, self._scaling.placement_timeout))
                yield from _as_they_come(refs, watched, patience)
                return self._seats.listen()
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, (InputError, RunFailed, OSError)):
                    raise error.cause from None
                raise RunFailed(f"{function.__name__} raised: {error}") from error
            except (ray.exceptions.RayError, TimeoutError) as error:
                self._seats.dismiss(0)
                if not left:
                    what = f"the process of {function.__name__} was lost too often{if_no_token_is_taken()}"
                    raise RunFailed(f"{what}: {error}") from error
                log.warning("the process of %s was lost and starts again (%s)", function.__name__, first_line(error))

    def ensemble(
        self, config: Config, store: ImageStore, models: list[Classifier], checkpoints: Checkpoints
    ) -> Ensemble:
        """Members as actors."""
        assert self._seats, "the engine is entered"
        plans = _plans(config, store, self.device, self._scaling, share=self._bundles[0].get("GPU", 1.0))
        return RayEnsemble(plans, _deal(models, config.n_e), checkpoints, self._scaling, self._seats)


def _as_they_come(refs: Any, watched: Watched, patience: Patience) -> Iterator[Any]:
    """What a stream yields, each item within the patience of a step."""
    while True:
        started = time.monotonic()
        _, overdue = wait_for({refs: watched}, patience)
        if overdue:
            raise overdue[refs]
        try:
            ref = next(refs)
        except StopIteration:
            return
        item = ray.get(ref)
        patience.measured(time.monotonic() - started)
        yield item


def make_engine(scaling: ScalingConfig, n_e: int, name: str) -> Engine:
    """The engine that `scaling` names."""
    return LocalEngine(scaling) if scaling.engine == "local" else RayEngine(scaling, n_e, name)


def _plans(
    config: Config, store: ImageStore, device: str, scaling: ScalingConfig, share: float = 1.0
) -> list[MemberPlan]:
    paths, threads, cache = tuple(store.paths), scaling.threads, scaling.device_cache
    return [MemberPlan(k, config, paths, device, threads, cache, share) for k in range(config.n_e)]


def _deal(models: list[Classifier], n_e: int) -> list[Classifier]:
    return [models[k % len(models)] for k in range(n_e)]
