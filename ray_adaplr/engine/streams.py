"""Generator functions in the seats of a run: what they yield comes as it is made, and a lost process starts again."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import ray

from ray_adaplr.config import ScalingConfig
from ray_adaplr.core.ranks import PeerLost
from ray_adaplr.engine.auth import if_no_token_is_taken
from ray_adaplr.engine.seats import Seats
from ray_adaplr.engine.team import Team
from ray_adaplr.engine.waiting import Patience, Watched, arrivals
from ray_adaplr.errors import InputError, RunFailed, first_line

log = logging.getLogger(__name__)
Function = Callable[..., Iterator[Any]]
Calls = Sequence[tuple[Any, ...]]  # the arguments of each


class Streams:
    """Runs generator functions in seats, as often again as a member is restarted."""

    def __init__(self, seats: Seats, scaling: ScalingConfig, device: str) -> None:
        self._seats, self._scaling, self._device = seats, scaling, device
        self._ended = threading.Event()  # nobody waits for what runs side by side any more

    def run(self, function: Function, args: tuple[Any, ...], does: str, seat: int = 0, ranks: int = 1) -> Iterator[Any]:
        """Run a function on so many ranks from a seat on, until it has ended or nobody waits for it any more.

        What it `does` is for the messages about its process, "labels the images" for one.
        """
        name = f"the process that {does}"
        patience = Patience(self._scaling.epoch_timeout)
        for left in reversed(range(self._scaling.max_restarts + 1)):
            team = Team(self._seats, seat, ranks, name, self._device)
            streams: dict[Any, Watched] = {}
            for actor, watched, own in zip(team.actors, team.watched, team.ranks):
                extra = [own] if own.world > 1 else []  # one alone is not told that it is one
                called = actor.stream.options(num_returns="streaming")
                streams[called.remote(self._scaling.threads, function, *args, *extra)] = watched
            try:
                team.ready(self._scaling.wait_for_nodes or self._scaling.placement_timeout, patience)
                yield from _as_they_come(streams, patience)
                return self._seats.listen()
            except ray.exceptions.RayTaskError as error:
                if not isinstance(error.cause, PeerLost):
                    if isinstance(error.cause, (InputError, RunFailed, OSError)):
                        raise error.cause from None
                    if isinstance(error.cause, FloatingPointError):
                        raise RunFailed(f"{name} diverged: {error.cause}") from None
                    raise RunFailed(f"{name} raised: {error}") from error
                lost: Exception = error
            except (ray.exceptions.RayError, TimeoutError) as error:
                lost = error
            team.dismiss()
            if self._ended.is_set():
                return
            if not left:
                raise RunFailed(f"{name} was lost too often{if_no_token_is_taken()}: {lost}") from lost
            log.warning("%s was lost and starts again (%s)", name, first_line(lost))

    def side_by_side(self, function: Function, calls: Calls, does: str) -> Iterator[tuple[int, Any]]:
        """Run each call in the next seat that is free; a thread of this process waits for each."""
        seats = range(min(len(calls), self._seats.count))
        free, made = queue.SimpleQueue[int](), queue.SimpleQueue[tuple[int, Any] | Future[None]]()
        for seat in seats:
            free.put(seat)

        def serve(number: int) -> None:
            seat = free.get()
            try:
                for item in self.run(function, calls[number], does, seat) if not self._ended.is_set() else ():
                    made.put((number, item))
            finally:
                free.put(seat)

        with ThreadPoolExecutor(len(seats)) as pool:
            serving = [pool.submit(serve, number) for number in range(len(calls))]
            try:
                for future in serving:
                    future.add_done_callback(made.put)
                left = len(calls)
                while left:
                    found = made.get()
                    if isinstance(found, Future):
                        found.result()  # raises what ended it
                        left -= 1
                    else:
                        yield found
            except BaseException:
                self._ended.set()
                pool.shutdown(wait=False, cancel_futures=True)
                while not all(future.done() for future in serving):  # one may just have taken a seat that was free
                    for seat in seats:  # whoever waits for them is told that they are gone
                        self._seats.dismiss(seat)
                    wait(serving, timeout=1)
                raise


def _as_they_come(streams: dict[Any, Watched], patience: Patience) -> Iterator[Any]:
    """What the first of some streams yields, each item once all have yielded theirs, within the patience of a step."""
    first = next(iter(streams))
    while True:
        started, item = time.monotonic(), None
        for stream in arrivals(streams, patience):
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
