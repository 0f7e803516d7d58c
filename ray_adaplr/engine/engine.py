"""Where work runs: in this process, or on Ray. Stages ask an engine to call a function or to seat the members."""

import copy
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol

import ray
import torch
from ray.util.placement_group import PlacementGroup

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core import devices
from ray_adaplr.core.feed import USUAL_CACHE, DeviceCache
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.ranks import PeerLost
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine import placement
from ray_adaplr.engine.auth import if_no_token_is_taken
from ray_adaplr.engine.checkpoint import Checkpoints
from ray_adaplr.engine.ensemble import Ensemble, LocalEnsemble, RayEnsemble
from ray_adaplr.engine.member import MemberPlan
from ray_adaplr.engine.seating import Seating, check_batch, for_one_model, seating, together
from ray_adaplr.engine.seats import SeatPlan, Seats
from ray_adaplr.engine.team import Team
from ray_adaplr.engine.waiting import LOADING, Patience, Watched, wait_for
from ray_adaplr.errors import InputError, RunFailed, first_line

log = logging.getLogger(__name__)
_DONE = object()


class Engine(Protocol):
    """What the stages need of the place they run in."""

    device: str  # "cpu", or devices.ACCELERATOR
    heard: list[str]  # what the members' processes have warned of
    ranks: int  # processes that train one member together
    cache: DeviceCache  # of the images that one process looks at again and again

    def stream(self, function: Callable[..., Iterator[Any]], *args: Any, ranks: int = 1) -> Iterator[Any]:
        """Run a generator function where a member would run; what it yields comes as it is made.

        Where its process is lost it is run again, and yields again: who wants one answer takes the last.
        Where `ranks` are several, each of so many processes runs it with its `Ranks` as last argument; all have to
        yield as often, and what the first yields is passed on.
        """

    def side_by_side(
        self, function: Callable[..., Iterator[Any]], calls: Sequence[tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        """Run a generator function with each of several arguments, on as many seats as there are.

        Yields the number of a call with each item that it yields, as they are made.
        """

    def ensemble(
        self, config: Config, store: ImageStore, models: list[Classifier], checkpoints: Checkpoints
    ) -> Ensemble:
        """Members that start from `models` (member k from models[k mod len]) or from the newest checkpoint."""

    def __enter__(self) -> "Engine": ...

    def __exit__(self, *error: Any) -> None: ...


class LocalEngine:
    """Everything in this process."""

    ranks = 1

    def __init__(self, scaling: ScalingConfig) -> None:
        self._scaling = scaling
        wanted = devices.accelerator() if scaling.gpus_per_member is None else scaling.gpus_per_member
        self.device = devices.ACCELERATOR if wanted else "cpu"
        self.heard: list[str] = []  # a warning in this process reaches the terminal by itself
        self.cache = DeviceCache(scaling.device_cache)

    def __enter__(self) -> "LocalEngine":
        self._mode = devices.deterministic(self._scaling.deterministic and self.device != "cpu")
        self._mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(None, None, None)

    def stream(self, function: Callable[..., Iterator[Any]], *args: Any, ranks: int = 1) -> Iterator[Any]:
        """Run it here, on copies of all it knows as if they had been sent, with the threads a member has."""
        assert ranks == 1, "the settings refuse several in one process"
        before = torch.get_num_threads()
        torch.set_num_threads(self._scaling.threads)
        try:
            function, args = copy.deepcopy((function, args))
            with devices.explained():
                yield from function(*args)
        finally:
            torch.set_num_threads(before)

    def side_by_side(
        self, function: Callable[..., Iterator[Any]], calls: Sequence[tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        """Run them here, one after another."""
        for number, args in enumerate(calls):
            yield from ((number, item) for item in self.stream(function, *args))

    def ensemble(
        self, config: Config, store: ImageStore, models: list[Classifier], checkpoints: Checkpoints
    ) -> Ensemble:
        """Members in this process."""
        cache = DeviceCache(self._scaling.device_cache, share=1 / config.n_e)
        plans = _plans(config, store, self.device, self._scaling, cache)
        return LocalEnsemble(plans, _deal(models, config.n_e), checkpoints)


class RayEngine:
    """Members as actors in one placement group. Inside a Tune trial the trial's own group is used.

    Args:
        scaling: what each member gets.
        n_e: members to seat.
        name: the run's name, for the names of its actors.
        batch_size: of the training, which says how many ranks it can feed; 0 lets no member have several by itself.
    """

    def __init__(self, scaling: ScalingConfig, n_e: int, name: str, batch_size: int = 0) -> None:
        self._scaling, self._n_e, self._name, self._batch_size = scaling, n_e, name, batch_size
        self.ranks = 1
        self._seats: Seats | None = None
        self._group: PlacementGroup | None = None
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

    def _seat(self, one_model: int = 0) -> None:
        """Take seats for all members, or for so many ranks of one model."""
        current = ray.util.get_current_placement_group()
        if current and not one_model:
            shares = list(current.bundle_specs[1:])
            seated, group, first = Seating(self._n_e, len(shares) // self._n_e, shares[0]), current, 1
        else:
            nodes, first, wait = placement.live_nodes(), 0, self._scaling.wait_for_nodes
            scaling, members = self._scaling, self._n_e
            if one_model:
                scaling, members = for_one_model(scaling, one_model), 1
            seated = seating(members, nodes, scaling, self._batch_size)
            if not wait:
                placement.check_fit(seated.bundles, nodes, seated.ranks)
            group = self._group = placement.reserve(seated.bundles, wait or self._scaling.placement_timeout)
        if not one_model:
            self.ranks = seated.ranks
        self._seated, self.cache = seated, DeviceCache(self._scaling.device_cache, seated.share.get("GPU", 1.0))
        self.device = devices.ACCELERATOR if seated.share.get("GPU", 0) else "cpu"
        bundles = [first + bundle for bundle in together(placement.nodes_of(group)[first:], seated.ranks)]
        plan = SeatPlan(group, seated.share, bundles, seated.ranks)
        deterministic = self._scaling.deterministic and self.device != "cpu"
        self._seats = Seats(plan, self._name, self.heard, deterministic)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not placement.own:  # an own Ray ends as a whole, and may be what failed
            self._vacate()
        self._connected.__exit__(kind, error, trace)

    def _vacate(self) -> None:
        """End the members and give their placement group back."""
        if self._seats:
            self._seats.close()
        placement.release(self._group)
        self._group = self._seats = None

    def stream(self, function: Callable[..., Iterator[Any]], *args: Any, ranks: int = 1) -> Iterator[Any]:
        """Run it in the first processes; where one is lost, in new ones, as often as a member is restarted."""
        if ranks > 1 and not self._seated.can_train_together(ranks):
            self._vacate()
            self._seat(one_model=ranks)
        yield from self._stream(0, ranks, function, args)

    def side_by_side(
        self, function: Callable[..., Iterator[Any]], calls: Sequence[tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        """Run each call in the next seat that is free; a thread of this process waits for each."""
        assert self._seats, "the engine is entered"
        if len(calls) == 1:
            yield from ((0, item) for item in self.stream(function, *calls[0]))
            return
        made: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
        waiting, ended = queue.SimpleQueue[int](), threading.Event()
        for number in range(len(calls)):
            waiting.put(number)

        def serve(seat: int) -> None:
            number = -1
            try:
                while not ended.is_set():
                    number = waiting.get_nowait()
                    for item in self._stream(seat, 1, function, calls[number], ended):
                        made.put((number, item, None))
                    made.put((number, _DONE, None))
            except queue.Empty:
                return
            except BaseException as error:  # of whatever kind: it is raised where the items are taken
                made.put((number, None, error))

        seats = range(min(len(calls), self._seats.count))
        threads = [threading.Thread(target=serve, args=(seat,), daemon=True) for seat in seats]
        for thread in threads:
            thread.start()
        try:
            left = len(calls)
            while left:
                number, item, error = made.get()
                if error is not None:
                    raise error
                if item is _DONE:
                    left -= 1
                else:
                    yield number, item
        except BaseException:
            ended.set()
            for seat in seats:  # whoever waits for them is told that they are gone
                self._seats.dismiss(seat)
            raise
        finally:
            for thread in threads:
                thread.join()

    def _stream(
        self,
        seat: int,
        ranks: int,
        function: Callable[..., Iterator[Any]],
        args: tuple[Any, ...],
        ended: threading.Event | None = None,
    ) -> Iterator[Any]:
        """Run a generator function on the ranks from a seat on, until it has ended or nobody waits for it any more."""
        assert self._seats, "the engine is entered"
        patience = Patience(self._scaling.epoch_timeout)
        for left in reversed(range(self._scaling.max_restarts + 1)):
            team = Team(self._seats, seat, ranks, f"the process of {function.__name__}", self.device)
            streams = self._streams(team, function, args)
            try:
                team.ready(max(LOADING, self._scaling.placement_timeout), patience)
                yield from _as_they_come(streams, patience)
                return self._seats.listen()
            except ray.exceptions.RayTaskError as error:
                if not isinstance(error.cause, PeerLost):
                    if isinstance(error.cause, (InputError, RunFailed, OSError)):
                        raise error.cause from None
                    raise RunFailed(f"{function.__name__} raised: {error}") from error
                lost: Exception = error
            except (ray.exceptions.RayError, TimeoutError) as error:
                lost = error
            if ended and ended.is_set():
                return
            team.dismiss()
            if not left:
                what = f"the process of {function.__name__} was lost too often{if_no_token_is_taken()}"
                raise RunFailed(f"{what}: {lost}") from lost
            log.warning("the process of %s was lost and starts again (%s)", function.__name__, first_line(lost))

    def _streams(self, team: Team, function: Callable[..., Iterator[Any]], args: tuple[Any, ...]) -> dict[Any, Watched]:
        """What each rank of a team yields; one alone is not told that it is one."""
        streams = {}
        for actor, watched, own in zip(team.actors, team.watched, team.ranks):
            extra = [own] if own.world > 1 else []
            called = actor.stream.options(num_returns="streaming")
            streams[called.remote(self._scaling.threads, function, *args, *extra)] = watched
        return streams

    def ensemble(
        self, config: Config, store: ImageStore, models: list[Classifier], checkpoints: Checkpoints
    ) -> Ensemble:
        """Members as actors."""
        assert self._seats, "the engine is entered"
        plans = _plans(config, store, self.device, self._scaling, self.cache)
        return RayEnsemble(plans, _deal(models, config.n_e), checkpoints, self._scaling, self._seats)


def _as_they_come(streams: dict[Any, Watched], patience: Patience) -> Iterator[Any]:
    """What the first of some streams yields, each item once all have yielded theirs, within the patience of a step."""
    first = next(iter(streams))
    while True:
        started, missing = time.monotonic(), dict(streams)
        item: Any = None
        while missing:
            done, overdue = wait_for(missing, patience)
            for late in overdue.values():
                raise late
            for stream in done:
                del missing[stream]
                try:
                    found = ray.get(next(stream))
                except StopIteration:
                    del streams[stream]
                    continue
                item = found if stream is first else item
        if first not in streams:
            return
        patience.measured(time.monotonic() - started)
        yield item


def make_engine(scaling: ScalingConfig, n_e: int, name: str, batch_size: int = 0) -> Engine:
    """The engine that `scaling` names; InputError where a batch is too small for the ranks that it asks for."""
    if batch_size:
        check_batch(scaling, batch_size)
    return LocalEngine(scaling) if scaling.engine == "local" else RayEngine(scaling, n_e, name, batch_size)


def _plans(
    config: Config, store: ImageStore, device: str, scaling: ScalingConfig, cache: DeviceCache = USUAL_CACHE
) -> list[MemberPlan]:
    paths, threads = tuple(store.paths), scaling.threads
    return [MemberPlan(k, config, paths, device, threads, cache) for k in range(config.n_e)]


def _deal(models: list[Classifier], n_e: int) -> list[Classifier]:
    return [models[k % len(models)] for k in range(n_e)]
