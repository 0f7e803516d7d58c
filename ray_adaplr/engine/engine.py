"""Where work runs: in this process, or on Ray. Stages ask an engine to call a function or to seat the members."""

import copy
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol

import ray
import torch

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine import placement
from ray_adaplr.engine.checkpoint import Checkpoints
from ray_adaplr.engine.ensemble import Ensemble, LocalEnsemble, RayEnsemble
from ray_adaplr.engine.member import MemberPlan
from ray_adaplr.errors import InputError, RunFailed


class Engine(Protocol):
    """What the stages need of the place they run in."""

    device: str
    gpus: int  # whole GPUs that are free for training in parallel, the members' own among them

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
        wants_gpu = scaling.gpus_per_member is None or scaling.gpus_per_member > 0
        self.device = "cuda" if wants_gpu and torch.cuda.is_available() else "cpu"
        self.gpus = 0

    def vacate(self) -> None:
        """Nobody is seated."""

    def __enter__(self) -> "LocalEngine":
        return self

    def __exit__(self, *error: Any) -> None:
        return None

    def stream(self, function: Callable[..., Iterator[Any]], *args: Any) -> Iterator[Any]:
        """Run it here, on copies of its arguments as if they had been sent, with the threads a member has."""
        before = torch.get_num_threads()
        torch.set_num_threads(self._scaling.threads)
        try:
            yield from function(*copy.deepcopy(args))
        finally:
            torch.set_num_threads(before)

    def ensemble(
        self, config: Config, store: ImageStore, models: list[Classifier], checkpoints: Checkpoints
    ) -> Ensemble:
        """Members in this process."""
        return LocalEnsemble(_plans(config, store, self.device, self._scaling), _deal(models, config.n_e), checkpoints)


class RayEngine:
    """Members as actors in one placement group. Inside a Tune trial the trial's own group is used.

    Args:
        scaling: what each member gets.
        n_e: members to seat.
        name: the run's name, for the names of its actors.
    """

    def __init__(self, scaling: ScalingConfig, n_e: int, name: str) -> None:
        self._scaling, self._n_e, self._name = scaling, n_e, name
        self._ensembles: list[Ensemble] = []

    def __enter__(self) -> "RayEngine":
        self._connected = placement.connect(self._scaling)
        try:
            self._seat()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _seat(self) -> None:
        self._group = None
        free_gpus = 0
        current = ray.util.get_current_placement_group()
        if current:
            self._shared_group, self._first_bundle = current, 1
            self._bundles = list(current.bundle_specs[1:])
        else:
            nodes = placement.live_nodes()
            free_gpus = int(ray.available_resources().get("GPU", 0))
            cpus, gpus = self._scaling.cpus_per_member, self._scaling.gpus_per_member
            self._bundles = [placement.member_share(self._n_e, nodes, cpus, gpus)] * self._n_e
            wait = self._scaling.wait_for_nodes
            if not wait:
                placement.check_fit(self._bundles, nodes)
            self._group = self._shared_group = placement.reserve(self._bundles, wait or self._scaling.placement_timeout)
            self._first_bundle = 0
        self.device = "cuda" if self._bundles[0].get("GPU", 0) else "cpu"
        self.gpus = free_gpus if self.device == "cuda" else 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.vacate()
        if self._connected:
            ray.shutdown()

    def vacate(self) -> None:
        """End the members and give their placement group back."""
        for ensemble in self._ensembles:
            ensemble.close()
        placement.release(self._group)
        self._group = None

    def stream(self, function: Callable[..., Iterator[Any]], *args: Any) -> Iterator[Any]:
        """Run it as a streaming task in the first member's bundle."""
        options = placement.member_options(self._bundles[0], self._shared_group, self._first_bundle)
        task = ray.remote(_with_threads).options(
            num_returns="streaming", max_retries=self._scaling.max_restarts, **options
        )
        for ref in task.remote(self._scaling.threads, function, *args):
            try:
                yield ray.get(ref)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, (InputError, RunFailed, OSError)):
                    raise error.cause from None
                raise RunFailed(f"{function.__name__} raised: {error}") from error

    def ensemble(
        self, config: Config, store: ImageStore, models: list[Classifier], checkpoints: Checkpoints
    ) -> Ensemble:
        """Members as actors."""
        ensemble = RayEnsemble(
            _plans(config, store, self.device, self._scaling), _deal(models, config.n_e), checkpoints, self._scaling,
            self._shared_group, self._bundles, self._first_bundle, self._name,
        )  # fmt: skip
        self._ensembles.append(ensemble)
        return ensemble


def make_engine(scaling: ScalingConfig, n_e: int, name: str) -> Engine:
    """The engine that `scaling` names."""
    return LocalEngine(scaling) if scaling.engine == "local" else RayEngine(scaling, n_e, name)


def _with_threads(threads: int, function: Callable[..., Iterator[Any]], *args: Any) -> Iterator[Any]:
    torch.set_num_threads(threads)
    yield from function(*args)


def _plans(config: Config, store: ImageStore, device: str, scaling: ScalingConfig) -> list[MemberPlan]:
    return [MemberPlan(k, config, tuple(store.paths), device, scaling.threads) for k in range(config.n_e)]


def _deal(models: list[Classifier], n_e: int) -> list[Classifier]:
    return [models[k % len(models)] for k in range(n_e)]
