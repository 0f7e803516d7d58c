"""Ray for a run: joining a cluster or starting a local one, and the placement group that holds the members."""

import contextlib
import logging
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from ray_adaplr.config import ScalingConfig
from ray_adaplr.engine.auth import connection, keep_token_private, loopback_only, with_token
from ray_adaplr.engine.own_ray import OwnRay, bare, mark_failed_start
from ray_adaplr.engine.seating import Resources, in_words
from ray_adaplr.errors import InputError, RunFailed, first_line

log = logging.getLogger(__name__)
_KNOCK = 15.0  # seconds a cluster's head has to take a connection
_PATIENCE = 10.0  # seconds between two words about a wait
own: OwnRay | None = None  # the local Ray that this process has started


@contextlib.contextmanager
def connected(scaling: ScalingConfig) -> Iterator[None]:
    """Ray meanwhile: the one there is, else the cluster, else a local one that is gone afterwards.

    RunFailed when the local Ray is lost, whatever else that led to.
    """
    global own
    with contextlib.nullcontext() if ray.is_initialized() else connection():
        started = connect(scaling)
        try:
            yield
        except BaseException:
            if own and own.lost:
                raise RunFailed(own.lost) from None
            raise
        finally:
            if started:
                own.close() if own else ray.shutdown()
                own = None


def connect(scaling: ScalingConfig) -> bool:
    """Join the cluster, or start a local Ray; True when it was started or joined here."""
    global own
    if ray.is_initialized():
        return False
    address = scaling.address or os.environ.get("RAY_ADDRESS") or "local"
    local: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    on_sigterm, started = signal.getsignal(signal.SIGTERM), time.time()
    try:
        _knock(address)
        with contextlib.ExitStack() as meanwhile:
            if address == "local":
                keep_token_private()
                meanwhile.enter_context(loopback_only())
                meanwhile.enter_context(bare())
            with_token(
                lambda: ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **local), address
            )
    except (ConnectionError, socket.gaierror, TimeoutError) as error:
        way_out = "leave --address out" if scaling.address else "unset RAY_ADDRESS, which names it"
        raise InputError(f"no Ray cluster answers at {address}; start one, or {way_out}") from error
    except ValueError as error:
        if isinstance(error, InputError) or address == "local":  # about the token; about this machine
            raise
        raise InputError(f"--address {address}: {first_line(error)}; name a cluster as HOST:PORT") from error
    except RuntimeError as error:
        if "version mismatch" not in str(error).lower():
            raise
        raise InputError(f"the cluster at {address} has another Ray or Python than this machine: {error}") from error
    except Exception as error:  # Ray has no kind of its own for it
        if "timed out during startup" not in str(error):
            raise
        mark_failed_start(started)
        again = "give the same command again (a sweep, which always needs Ray, with --resume), or use --engine local"
        raise RunFailed(f"a local Ray did not start in time; the machine may be too busy: {again}") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray puts its own handler there, which ends the process hard
    if address == "local":
        own = OwnRay()
        if ray.cluster_resources().get("GPU") and own.neighbours > 0:  # each Ray begins with the machine's first GPU
            way_out = "give each its own by CUDA_VISIBLE_DEVICES, or start one Ray (ray start --head) and use --address"
            log.warning("%d other runs on this machine share the same GPUs: %s", own.neighbours, way_out)
    return True


def _knock(address: str) -> None:
    """Raise OSError where nobody listens at host:port: Ray itself tries for minutes before it says so."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK).close()


def live_nodes() -> list[Resources]:
    """CPU and GPU of every live node."""
    there = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [{"CPU": resources.get("CPU", 0.0), "GPU": resources.get("GPU", 0.0)} for resources in there]


def reserve(bundles: list[Resources], timeout: float) -> PlacementGroup:
    """A placement group that holds the bundles, after a wait of at most `timeout` seconds, rounded up to whole ones.

    All bundles are asked for at once, so that an autoscaler brings all their nodes; a long wait says what it is for.
    RunFailed when the resources do not come, or stay taken.
    """
    group = placement_group(bundles, strategy="PACK")
    deadline = time.monotonic() + timeout
    # Ray cuts a fraction of a second off, and would answer at once, again and again, during the last second.
    while not group.wait(math.ceil(max(0.0, min(_PATIENCE, deadline - time.monotonic())))):
        if time.monotonic() < deadline:
            there = "; ".join(in_words(node) for node in live_nodes())
            log.warning("waiting for %d x (%s); the nodes have %s", len(bundles), in_words(bundles[0]), there)
            continue
        remove_placement_group(group)
        free = ray.available_resources()
        raise RunFailed(
            f"{len(bundles)} x ({in_words(bundles[0])}) were not free within {timeout:g} s (free now: "
            f"{in_words({k: free.get(k, 0.0) for k in ('CPU', 'GPU')})}); wait for other work to end, or raise "
            "--placement-timeout"
        )
    return group


def nodes_of(group: PlacementGroup) -> list[str]:
    """The node of each bundle of a group that has been placed."""
    placed = ray.util.placement_group_table(group)["bundles_to_node_id"]
    return [placed[bundle] for bundle in sorted(placed)]


def release(group: PlacementGroup | None) -> None:
    """Give the resources back."""
    if group is not None and ray.is_initialized():
        remove_placement_group(group)


def member_options(bundle: Resources, group: PlacementGroup, index: int) -> dict[str, Any]:
    """Actor or task options for the work that lives in bundle `index` of the group."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return {
        "num_cpus": bundle.get("CPU", 0),
        "num_gpus": bundle.get("GPU", 0),
        "scheduling_strategy": PlacementGroupSchedulingStrategy(group, index),
    }
