"""What networks compute in, where the user leaves it open: what the device is made for, or the faster one by a clock.

It is decided once, before anything trains, since members, resumes and trials that disagree would not be one result.
"""

import copy
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np
import torch

from ray_adaplr.config import Config
from ray_adaplr.core import devices
from ray_adaplr.core.learner import Learner, Workplace
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.objectives import information_maximisation
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.engine import Engine
from ray_adaplr.engine.training import member_training

STEPS = 3  # of a network in each precision at a time
ROUNDS = 5
LONGEST = 20.0  # seconds, after which no round begins
LEAST_GAIN = 1.1  # of speed; less is not worth 8 bits instead of 24


def settled(config: Config, model: Classifier, store: ImageStore, engine: Engine) -> tuple[Config, str]:
    """Settings with one of `devices.PRECISIONS`, and a sentence on it where it was measured.

    A network and images as they will train are tried by the engine, since the process that plans may sit on another
    kind of machine.
    """
    if config.precision is None:
        found = "fp32"
        if engine.device != "cpu":
            found = engine.ask(_usual, engine.device, does="chooses the precision")
        return config.model_copy(update={"precision": found}), ""
    if config.precision != "auto":
        return config, ""
    place = (tuple(store.paths), engine.device)
    found, why = engine.ask(measured, config, model, *place, does="measures the precision")
    return config.model_copy(update={"precision": found}), f"precision: {found} ({why})"


def _usual(device: str) -> str:
    return devices.usual_precision(devices.usable_device(device))


def candidates(device: str) -> list[str]:
    """What may be faster than fp32 on a device: bf16 where it is made for it, fp16 on accelerators that are older."""
    if devices.has_fast_bf16(device):
        return ["bf16"]
    return [] if device == "cpu" else ["fp16"]


def measured(config: Config, model: Classifier, store_paths: Sequence[str], device: str) -> tuple[str, str]:
    """The precision in which a member's steps are fastest here, and why."""
    device = devices.usable_device(device)
    others = candidates(device)
    if not others:
        return "fp32", "this CPU has no instructions for bfloat16"
    store = ImageStore.open(*store_paths)
    learners = {
        precision: Learner(
            copy.deepcopy(model),
            store.read,
            np.arange(min(len(store), STEPS * config.batch_size)),
            replace(member_training(config), precision=precision),
            place=Workplace(device, torch.get_num_threads()),
        )
        for precision in ["fp32", *others]
    }
    taken: dict[str, list[float]] = {precision: [] for precision in learners}
    began = time.monotonic()
    for turn in range(ROUNDS + 1):  # a few steps of each in turn, so that a change in the machine's load meets all
        if turn > 1 and time.monotonic() - began > LONGEST:
            break
        for precision, learner in learners.items():
            started = time.monotonic()
            learner.train_epoch(0, information_maximisation)
            if turn:  # the first makes caches and allocators warm
                taken[precision].append(time.monotonic() - started)
    return fastest({precision: median(seconds) for precision, seconds in taken.items()})


def fastest(seconds: dict[str, float]) -> tuple[str, str]:
    """The precision to take, and why: fp32, unless another is faster by more than the noise."""
    best = min(seconds, key=lambda precision: seconds[precision])
    if seconds["fp32"] < LEAST_GAIN * seconds[best]:
        best = "fp32"
    gains = [
        f"{seconds['fp32'] / took:.2f} times as fast in {name}" for name, took in seconds.items() if name != "fp32"
    ]
    return best, f"measured: {', '.join(gains)} as in fp32"
