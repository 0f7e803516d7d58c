"""How speed is measured: works in turn, medians with their spread, and the memory of this process."""

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ray_adaplr.data.store import ImageStore
from ray_adaplr.data.store_writer import write_store

REPEATS = 7


@dataclass(frozen=True)
class Measurement:
    """One ratio, or seconds; `value` is None where it could not be measured here, and `note` says why."""

    name: str
    value: float | None
    spread: tuple[float, float] | None
    goal: float
    higher_is_better: bool
    note: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, values: list[float], goal: float, *, higher_is_better: bool, **more: Any) -> "Measurement":
        """The median of several measurements."""
        return cls(name, statistics.median(values), (min(values), max(values)), goal, higher_is_better, **more)

    @property
    def met(self) -> bool:
        """Whether the goal is reached."""
        return self._reaches(self.value)

    @property
    def regressed(self) -> bool:
        """Whether even the best repeat misses the goal: worse by more than the noise."""
        return self.spread is not None and not self._reaches(self.spread[1 if self.higher_is_better else 0])

    def _reaches(self, value: float | None) -> bool:
        return value is not None and (value >= self.goal if self.higher_is_better else value <= self.goal)

    def __str__(self) -> str:
        if self.value is None or self.spread is None:
            return f"{self.name:78} {self.note}"
        sign, state = (">=" if self.higher_is_better else "<="), ("met" if self.met else "NOT MET")
        low, high = self.spread
        return f"{self.name:78} {self.value:6.2f}  ({low:.2f} to {high:.2f})  goal {sign} {self.goal:g}: {state}"


def seconds_in_turn(*works: Callable[[], Any], repeats: int | None = None) -> list[list[float]]:
    """Seconds of each work, measured in turn so that a change in the machine's load meets all; [works][repeats]."""
    for work in works:
        work()  # caches and allocators get warm
    taken: list[list[float]] = [[] for _ in works]
    for _ in range(repeats or REPEATS):
        for work, times in zip(works, taken):
            started = time.perf_counter()
            work()
            times.append(time.perf_counter() - started)
    return taken


def ratios(top: list[float], bottom: list[float]) -> list[float]:
    """Quotients of what was measured in turn."""
    return [a / b for a, b in zip(top, bottom)]


@contextmanager
def noise_store(images: int, side: int) -> Iterator[ImageStore]:
    """A store of random RGB images."""
    pixels = np.random.default_rng(0).integers(0, 256, (images, side, side, 3), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        ids = [str(i) for i in range(images)]
        yield write_store(f"{folder}/store", [(ids, pixels)], classes=[], domain="noise", truth=None)


def resident_bytes() -> int:
    """Memory of this process that no file backs; the images of a store are pages of its file."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Watches this process from a thread; the list holds the largest `resident_bytes` seen."""
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            peak[0] = max(peak[0], resident_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()
