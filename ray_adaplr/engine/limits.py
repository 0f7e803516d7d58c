"""What a run will take, worked out before it starts: a run that cannot fit is refused and not found out hours later."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_adaplr.config import ScalingConfig
from ray_adaplr.errors import InputError
from ray_adaplr.storage.machine import free_bytes, size_in_words

ASSUMED_MODEL = 180e6  # bytes of a ResNet-101 in float32, the largest of the paper
GB = 1e9
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # version 2, version 1


@dataclass(frozen=True)
class Need:
    """What a run takes, in bytes."""

    images: float  # the store
    run: float  # in the run's folder: models, and in checkpoints the logit history and members
    coordinator: float  # memory of the driver
    member: float  # memory of a member, without activations

    @classmethod
    def of(
        cls, store: dict[str, Any], n_e: int, n_a: int, scaling: ScalingConfig, model: float = ASSUMED_MODEL
    ) -> "Need":
        """From the store's facts, the settings and the model's bytes."""
        logits = 4.0 * store["images"] * max(2, store["classes"])  # float32, an epoch of one member
        history = n_a * logits / 2  # float16
        state = 3 * model  # weights and Adam's two moments
        checkpoints = history + ((scaling.keep_checkpoints or 2) + 1) * n_e * state
        return cls(
            images=store["bytes"],
            run=checkpoints if scaling.checkpoint_every else (n_e + 2) * model,
            coordinator=history + (n_e + 4) * logits,
            member=state + model + logits,
        )


def check_memory_and_disk(need: Need, folder: str | None) -> None:
    """InputError for a run that this machine's memory, or the disk of its local folder, cannot hold."""
    memory = _memory()
    if need.coordinator > memory:
        raise InputError(
            f"the logits of all images, classes and n_a epochs take {size_in_words(need.coordinator)} of memory but "
            f"this machine has {size_in_words(memory)}; use a smaller n_a, or fewer images"
        )
    if folder and need.run > (free := free_bytes(folder)):
        raise InputError(
            f"the run's files take up to {size_in_words(need.run)} but the disk of {folder} has {size_in_words(free)} "
            "free; free some, choose another --out, or use a smaller n_a"
        )


def _memory() -> float:
    """Bytes of this machine, or of the container that it is."""
    there = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for file in CGROUP_LIMITS:
        if os.path.isfile(file) and (limit := Path(file).read_text().strip()).isdigit():
            there = min(there, float(limit))
    return there
