"""Every wait for a process has an end: it must answer when it is asked, and not take far longer than it did before.

A process that is stopped or swapped out answers nothing, so it is found within `SILENCE` however long its work takes.
One that answers but makes no progress is found by what was measured: `TIMES` the slowest step so far. A long wait says
whom it is for.
"""

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any

import ray
import ray.exceptions

log = logging.getLogger(__name__)

LOADING = 300.0  # seconds a process has to start and to load torch, which takes 3 s on a quiet box
SILENCE = 60.0  # seconds that a question may stay unanswered
FIRST_STEP = 6 * 3600.0  # seconds of a step before any was measured: an epoch of a large set on CPUs takes hours
AT_LEAST, TIMES = 600.0, 20.0  # later steps: this many seconds, or this many times the slowest so far
_SAY_AFTER = 60.0  # seconds of waiting before the first line about it
_TICK = 2.0  # seconds between two looks


class Patience:
    """How long a step may take: the user's own limit in seconds, else one that follows from what was measured."""

    def __init__(self, told: float | None = None) -> None:
        self._told = told
        self._slowest = 0.0

    def measured(self, seconds: float) -> None:
        """Note how long a whole step took."""
        self._slowest = max(self._slowest, seconds)

    @property
    def limit(self) -> float:
        """Seconds that the next step may take."""
        if self._told is not None:
            return self._told
        return max(AT_LEAST, TIMES * self._slowest) if self._slowest else FIRST_STEP

    @property
    def usual(self) -> float:
        """Seconds after which a wait is worth a word."""
        return max(_SAY_AFTER, 3 * self._slowest)


class Heartbeat:
    """A line about a wait that has become long, and others as it becomes twice as long."""

    def __init__(self, say_after: float) -> None:
        self._started, self._since, self._say_after = time.monotonic(), time.strftime("%H:%M:%S"), say_after

    @property
    def waited(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self._started

    def beat(self, whom: str, limit: float) -> None:
        """Say whom the wait is for and when it ends, if it is time to."""
        if self.waited > self._say_after:
            self._say_after *= 2
            log.warning("waiting for %s since %s; given up after %.0f s", whom, self._since, limit)


class Watched:
    """A `Member` as an actor that is waited for; it is asked now and then where it is, beside its work."""

    def __init__(self, actor: Any, name: str) -> None:
        self._actor, self.name = actor, name
        self.where = "not heard of yet"
        self._ask()

    def _ask(self) -> None:
        self._question = self._actor.whereabouts.options(concurrency_group="pulse").remote()
        self._asked = time.monotonic()

    def ready(self, timeout: float) -> None:
        """Wait until the process has started and loaded what it needs.

        TimeoutError when it does not answer in time, RayError when it could not start.
        """
        heartbeat = Heartbeat(_SAY_AFTER)
        while not ray.wait([self._question], timeout=max(0.0, min(_TICK, timeout - heartbeat.waited)))[0]:
            if heartbeat.waited >= timeout:
                raise TimeoutError(f"{self.name} did not start within {timeout:g} s")
            heartbeat.beat(f"{self.name} to start and load torch", timeout)
        self.where = ray.get(self._question)
        self._ask()

    def quiet_seconds(self) -> float:
        """How long the last question has been unanswered."""
        if ray.wait([self._question], timeout=0)[0]:
            with contextlib.suppress(ray.exceptions.RayError):  # dead, which whoever waits for its work is told
                self.where = ray.get(self._question)
            self._ask()
        return time.monotonic() - self._asked


def wait_for(awaited: dict[Any, Watched], patience: Patience) -> tuple[list[Any], dict[Any, TimeoutError]]:
    """Wait until something is there, or somebody is overdue: (what is there, who is overdue and why).

    What to wait for are references, or a stream of them, with whose work each is.
    """
    heartbeat = Heartbeat(patience.usual)
    while True:
        limit = patience.limit
        done, _ = ray.wait(list(awaited), timeout=max(0.0, min(_TICK, SILENCE / 4, limit - heartbeat.waited)))
        if done:
            return done, {}
        waited = heartbeat.waited
        overdue = {}
        for item, watched in awaited.items():
            if watched.quiet_seconds() > SILENCE:
                overdue[item] = TimeoutError(f"{watched.name} ({watched.where}) gave no answer for {SILENCE:g} s")
            elif waited >= limit:
                overdue[item] = TimeoutError(f"{watched.name} ({watched.where}) silent for {limit:g} s")
        if overdue:
            return [], overdue
        heartbeat.beat(", ".join(f"{watched.name} ({watched.where})" for watched in awaited.values()), limit)


def arrivals(awaited: dict[Any, Watched], patience: Patience) -> Iterator[Any]:
    """What is waited for, one after another as it is there; the first TimeoutError ends the wait."""
    missing = dict(awaited)
    while missing:
        done, overdue = wait_for(missing, patience)
        for late in overdue.values():
            raise late
        for item in done:
            del missing[item]
            yield item


def get_all(awaited: dict[Any, Watched], patience: Patience) -> list[Any]:
    """The values of references, in order; the first TimeoutError, or RayError of who makes one, ends the wait."""
    found = {item: ray.get(item) for item in arrivals(awaited, patience)}
    return [found[item] for item in awaited]
