"""What a cluster's nodes are like, seen from each of them; the facts that the doctor judges."""

import contextlib
import math
import os
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from ray_adaplr.errors import InputError, RunFailed, last_line
from ray_adaplr.storage.machine import free_bytes

ANSWER_TIMEOUT = 120.0  # seconds a node has to import torch and look round
GIVEN_BACK = 2.0  # seconds until Ray counts GPUs as free again that were tried


@dataclass(frozen=True)
class Node:
    """A node as Ray counts it, with what the task on it saw; `error` when no task could run there."""

    name: str
    id: str = ""
    cpus: float = 0
    gpus: float = 0
    memory: float = 0
    object_store: float = 0
    versions: dict[str, str] = field(default_factory=dict)
    auth: str = "token"
    software: str = ""  # torch, what it was built for, the driver
    seen: int = 0  # accelerators that torch sees and Ray could count
    tried: list[str] = field(default_factory=list)  # words about each that was reserved and works
    unusable: str | None = None  # why one does not work
    free_disk: dict[str, float] = field(default_factory=dict)  # bytes, at `out` and in the `cache` of stores
    storage: str | None = None  # what went wrong with `out` there
    store: dict[str, Any] = field(default_factory=dict)  # fingerprint, images, classes, bytes; or error
    error: str | None = None


def gather(out: str | None, store: str | None) -> list[Node]:
    """Look at every live node by a task that runs there; the driver's node comes first."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from ray_adaplr.engine.private_ray import private
    from ray_adaplr.storage.folder import Folder, absolute

    here = ray.get_runtime_context().get_node_id()
    alive = sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: node["NodeID"] != here)
    marks = (Folder(out) / f".doctor-{uuid.uuid4().hex[:8]}").uri if out else None
    new = out and Folder(out).is_local and not os.path.lexists(out)
    store = absolute(store) if store else None  # a task starts in another folder

    def task(name: str, gpus: int) -> dict[str, Any]:  # nested: Ray sends it whole, and no package there is a finding
        from ray_adaplr.engine.survey import look

        return look(name, marks, store, gpus)

    remote = ray.remote(num_cpus=0, max_retries=0)(task)
    free = private("ray._private.state", "available_resources_per_node")()
    answers = {}
    for node in alive:
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        gpus = int(free.get(node["NodeID"], {}).get("GPU", 0))  # a task sees the GPUs that it has reserved
        options = {"scheduling_strategy": there, "num_gpus": gpus}
        answers[node["NodeID"]] = remote.options(**options).remote(node["NodeID"], gpus)
    nodes = []
    for node in alive:
        name, has = node["NodeID"], node["Resources"]
        try:
            facts = ray.get(answers[name], timeout=ANSWER_TIMEOUT)
        except Exception as error:  # whatever goes wrong over there is a finding
            facts = {"error": last_line(error)}
        if marks and not facts.get("storage") and not facts.get("error") and not Folder(marks).exists(name):
            facts["storage"] = "what was written there is not seen here"
        alone = sum(other["NodeManagerAddress"] == node["NodeManagerAddress"] for other in alive) == 1
        label = node["NodeManagerAddress"] if alone else f"{node['NodeManagerAddress']}/{name[:6]}"
        counts = (has.get(kind, 0.0) for kind in ("CPU", "GPU", "memory", "object_store_memory"))
        nodes.append(Node(label, name, *counts, **facts))
    if marks:
        Folder(marks).delete("")
    if out and new:
        with contextlib.suppress(OSError):  # somebody may have begun to use it
            os.rmdir(out)
    return nodes


def look(name: str, marks: str | None, store: str | None, gpus: int = 0) -> dict[str, Any]:
    """The facts of the node this runs on: a file `name` is left in the folder `marks`, reserved `gpus` are tried."""
    import torch

    from ray_adaplr.core import devices
    from ray_adaplr.data.store import ImageStore
    from ray_adaplr.storage.folder import Folder
    from ray_adaplr.storage.machine import versions

    facts: dict[str, Any] = {
        "versions": versions(),
        "auth": os.environ.get("RAY_AUTH_MODE", "disabled"),
        "software": devices.software(),
        "seen": torch.accelerator.device_count() if devices.accelerator() in devices.RAY_RESOURCE else 0,
        "free_disk": {"cache": free_bytes(os.environ.get("ADAPLR_CACHE", "~/.cache"))},
    }
    if gpus:
        try:
            facts["tried"] = devices.inspected()
        except RunFailed as error:
            facts["unusable"] = str(error)
    if marks:
        try:
            Folder(marks).write(name, "")
            if Folder(marks).is_local:
                facts["free_disk"]["out"] = free_bytes(marks)
        except Exception as error:
            facts["storage"] = str(error)
    if store:
        try:
            images = ImageStore.open(store)
            images.verify()
            facts["store"] = {
                "fingerprint": images.fingerprint,
                "images": len(images),
                "classes": len(images.classes),
                "bytes": float(len(images) * math.prod(images.image_shape)),
            }
        except Exception as error:
            facts["store"] = {"error": str(error)}
    return facts


def try_seats(bundles: list[dict[str, float]], nodes: list[Node]) -> list[str] | None:
    """Let Ray seat the members for a moment; the names of the bundles' nodes, or None when they are not free.

    What is free is looked at before: asking a full cluster would make its autoscaler start machines.
    """
    from ray_adaplr.engine import placement
    from ray_adaplr.engine.private_ray import private
    from ray_adaplr.engine.seating import check_fit

    deadline = time.monotonic() + GIVEN_BACK
    while True:
        free = private("ray._private.state", "available_resources_per_node")()
        try:
            check_fit(bundles, [{"CPU": 0.0, "GPU": 0.0, **free.get(node.id, {})} for node in nodes])
            group = placement.reserve(bundles, timeout=20)
            break
        except RunFailed:
            return None
        except InputError:
            if time.monotonic() > deadline:
                return None
        time.sleep(0.2)
    seats = placement.nodes_of(group)
    placement.release(group)
    names = {node.id: node.name for node in nodes}
    return [names[seat] for seat in seats]
