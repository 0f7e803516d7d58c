"""The processes of one network: one, or several ranks that train it together. One lost rank is a lost team."""

from typing import Any

from ray_adaplr.core.ranks import Ranks
from ray_adaplr.engine import waiting
from ray_adaplr.engine.seats import Seats
from ray_adaplr.engine.waiting import LOADING, Patience, Watched


class Team:
    """Actors in neighbouring seats, rank by rank; several join a process group of their own at once.

    The `name` is what the team is called in messages; the device says which kind of group it is.
    """

    def __init__(self, seats: Seats, first: int, size: int, name: str, device: str) -> None:
        self._seats, self._numbers = seats, range(first, first + size)
        self.ranks = [Ranks(rank, size) for rank in range(size)]
        self.actors = [seats.actor(number) for number in self._numbers]
        names = [name] if size == 1 else [f"{name}, rank {rank}" for rank in range(size)]
        self.watched = [Watched(actor, each) for actor, each in zip(self.actors, names)]
        self._joining: dict[Any, Watched] = {}
        if size > 1:
            meeting = self.first.meet.remote(size)
            joining = [actor.join.remote(meeting, ranks, device) for actor, ranks in zip(self.actors, self.ranks)]
            self._joining = dict(zip(joining, self.watched))

    @property
    def first(self) -> Any:
        """The actor that speaks for all: it writes, and hands the network over."""
        return self.actors[0]

    def call(self, method: str, *args: Any) -> dict[Any, Watched]:
        """Let every rank do the same; what to wait for, the first rank's first."""
        return {getattr(actor, method).remote(*args): watched for actor, watched in zip(self.actors, self.watched)}

    def ready(self, timeout: float, patience: Patience) -> None:
        """Wait until all processes have started, and have met; errors are those of `Watched.ready`.

        One that has a node has time to load from a slow disk; one that has none, or loses it, has this long to get one.
        """
        for number, watched in zip(self._numbers, self.watched):
            seated = self._seats.has_node(number)
            try:
                watched.ready(LOADING if seated else timeout)
            except TimeoutError:
                if self._seats.has_node(number) == seated:
                    raise
                watched.ready(timeout if seated else LOADING)
        waiting.get_all(self._joining, patience)

    def dismiss(self) -> None:
        """End all processes."""
        for number in self._numbers:
            self._seats.dismiss(number)
