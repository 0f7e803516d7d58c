"""Where work runs: in this process, or on Ray. Stages ask an engine to call a function or to seat the members."""

import copy
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import ray
from ray.util.placement_group import PlacementGroup

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core import devices
from ray_adaplr.core.devices import torch_threads
from ray_adaplr.core.feed import DeviceCache
from ray_adaplr.core.models import Classifier
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine import placement
from ray_adaplr.engine.checkpoint import Checkpoints
from ray_adaplr.engine.ensemble import Ensemble, LocalEnsemble, RayEnsemble
from ray_adaplr.engine.member import MemberPlan
from ray_adaplr.engine.seating import Seating, check_batch, check_fit, for_one_model, seating, together
from ray_adaplr.engine.seats import Seats
from ray_adaplr.engine.streams import Calls, Function, Streams
from ray_adaplr.errors import RunFailed

Answer = TypeVar("Answer")


class Engine(Protocol):
    """What the stages need of the place they run in."""

    device: str  # "cpu", or devices.ACCELERATOR
    heard: list[str]  # what the members' processes have warned of
    ranks: int  # processes that train one member together
    cache: DeviceCache  # of the images that one process looks at again and again

    def stream(self, function: Function, *args: Any, does: str, ranks: int = 1) -> Iterator[Any]:
        """Run a generator function where a member would run; what it yields comes as it is made.

        What it `does` is for messages about its process: "the process that labels the images was lost". Where its
        process is lost it is run again, and yields again. Where `ranks` are several, each of so many processes runs it
        with its `Ranks` as last argument; all have to yield as often, and what the first yields is passed on.
        """

    def ask(self, function: Callable[..., Answer], *args: Any, does: str) -> Answer:
        """What a function returns that is called where a member would run; again, where its process is lost."""
        *_, answer = self.stream(_once, function, *args, does=does)
        return answer

    def side_by_side(self, function: Function, calls: Calls, does: str) -> Iterator[tuple[int, Any]]:
        """Run a generator function with each of several arguments, on as many seats as there are.

        Yields the number of a call with each item that it yields, as they are made.
        """

    def ensemble(
        self, config: Config, store: ImageStore, models: list[Classifier], checkpoints: Checkpoints
    ) -> Ensemble:
        """Members that start from `models` (member k from models[k mod len]) or from the newest checkpoint."""

    def __enter__(self) -> "Engine": ...

    def __exit__(self, *error: Any) -> None: ...


class LocalEngine(Engine):
    """Everything in this process."""

    ranks = 1

    def __init__(self, scaling: ScalingConfig) -> None:
        self._scaling = scaling
        gpus = scaling.gpus_per_member
        wanted = gpus if gpus is not None else devices.accelerator_or_cpu() != "cpu"
        self.device = devices.ACCELERATOR if wanted else "cpu"
        self.heard: list[str] = []  # a warning in this process reaches the terminal by itself
        self.cache = DeviceCache(scaling.device_cache)

    def __enter__(self) -> "LocalEngine":
        self._mode = devices.deterministic(self._scaling.deterministic and self.device != "cpu")
        self._mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(None, None, None)

    def stream(self, function: Function, *args: Any, does: str, ranks: int = 1) -> Iterator[Any]:
        """Run it here, on copies of all it knows as if they had been sent, with the threads a member has."""
        assert ranks == 1, "the settings refuse several in one process"
        function, args = copy.deepcopy((function, args))
        with torch_threads(self._scaling.threads), devices.explained():
            try:
                yield from function(*args)
            except FloatingPointError as error:
                raise RunFailed(f"the process that {does} diverged: {error}") from error

    def side_by_side(self, function: Function, calls: Calls, does: str) -> Iterator[tuple[int, Any]]:
        """Run them here, one after another."""
        for number, args in enumerate(calls):
            yield from ((number, item) for item in self.stream(function, *args, does=does))

    def ensemble(
        self, config: Config, store: ImageStore, models: list[Classifier], checkpoints: Checkpoints
    ) -> Ensemble:
        """Members in this process."""
        cache = DeviceCache(self._scaling.device_cache, share=1 / config.n_e)
        plans = _plans(config, store, self.device, self._scaling.threads, cache)
        return LocalEnsemble(plans, models, checkpoints)


class RayEngine(Engine):
    """Members as actors in one placement group, which are named after the run. A Tune trial's own group is used.

    The batch size of the training says how many ranks it can feed; 0 lets no member have several by itself.
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
        shares = list(current.bundle_specs[1:]) if current else []  # the first bundle is this process's own
        if current and shares and len(shares) % self._n_e == 0 and not one_model:  # a trial's; no other has room for us
            seated, group, first = Seating(self._n_e, len(shares) // self._n_e, shares[0]), current, 1
        else:
            nodes, first, wait = placement.live_nodes(), 0, self._scaling.wait_for_nodes
            scaling, members = self._scaling, self._n_e
            if one_model:
                scaling, members = for_one_model(scaling, one_model), 1
            seated = seating(members, nodes, scaling, self._batch_size)
            if not wait:
                check_fit(seated.bundles, nodes, seated.ranks)
            group = self._group = placement.reserve(seated.bundles, wait or self._scaling.placement_timeout)
        if not one_model:
            self.ranks = seated.ranks
        self._seated, self.cache = seated, DeviceCache(self._scaling.device_cache, seated.share.get("GPU", 1.0))
        self.device = devices.ACCELERATOR if seated.share.get("GPU", 0) else "cpu"
        bundles = [first + bundle for bundle in together(placement.nodes_of(group)[first:], seated.ranks)]
        deterministic = self._scaling.deterministic and self.device != "cpu"
        self._seats = Seats(group, bundles, seated, self._name, self.heard, deterministic)
        self._streams = Streams(self._seats, self._scaling, self.device)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or not placement.own:  # an own Ray ends as a whole, and may be what failed
            self._vacate()
        self._connected.__exit__(kind, error, trace)

    def _vacate(self) -> None:
        if self._seats:
            self._seats.close()
        placement.release(self._group)
        self._group = self._seats = None

    def stream(self, function: Function, *args: Any, does: str, ranks: int = 1) -> Iterator[Any]:
        """Run it in the first processes; where one is lost, in new ones, as often as a member is restarted."""
        if ranks > 1 and not self._seated.can_train_together(ranks):
            self._vacate()
            self._seat(one_model=ranks)
        yield from self._streams.run(function, args, does, ranks=ranks)

    def side_by_side(self, function: Function, calls: Calls, does: str) -> Iterator[tuple[int, Any]]:
        """Run each call in the next seat that is free; one alone needs no thread that waits for it."""
        if len(calls) == 1:
            yield from ((0, item) for item in self.stream(function, *calls[0], does=does))
        else:
            yield from self._streams.side_by_side(function, calls, does)

    def ensemble(
        self, config: Config, store: ImageStore, models: list[Classifier], checkpoints: Checkpoints
    ) -> Ensemble:
        """Members as actors."""
        assert self._seats, "the engine is entered"
        plans = _plans(config, store, self.device, self._scaling.threads, self.cache)
        return RayEnsemble(plans, models, checkpoints, self._scaling, self._seats)


def make_engine(scaling: ScalingConfig, n_e: int, name: str, batch_size: int = 0) -> Engine:
    """The engine that `scaling` names; InputError where a batch is too small for the ranks that it asks for."""
    if batch_size:
        check_batch(scaling, batch_size)
    return LocalEngine(scaling) if scaling.engine == "local" else RayEngine(scaling, n_e, name, batch_size)


def _once(function: Callable[..., Answer], *args: Any) -> Iterator[Answer]:
    yield function(*args)


def _plans(config: Config, store: ImageStore, device: str, threads: int, cache: DeviceCache) -> list[MemberPlan]:
    return [MemberPlan(k, config, tuple(store.paths), device, threads, cache) for k in range(config.n_e)]
