"""The seats of a run on Ray: an actor in each bundle of its placement group, kept from the first stage to the last.

A process that has loaded torch is worth keeping: loading takes seconds, on a small box more than many an epoch. So
all seats are taken at the start and load side by side, and what is no member's work (inferring, the target model)
runs in the first ones. A member's ranks sit side by side, on one node where its bundles allow it.
"""

import contextlib
import logging
from typing import Any

import ray

from ray_adaplr.engine.actor import Member
from ray_adaplr.engine.placement import member_options
from ray_adaplr.engine.seating import Seating

log = logging.getLogger(__name__)
_ANSWER = 5.0  # seconds that a process has to say what it has warned of


class Seats:
    """Actors by seat, named after the run; a seat that is empty gets a new one when it is asked for.

    Seat k is in bundle `bundles[k]` of the placement group. The list `heard` gets what the actors warn of.
    """

    def __init__(
        self, group: Any, bundles: list[int], seated: Seating, name: str, heard: list[str], deterministic: bool
    ) -> None:
        self._group, self._bundles, self._share, self._name = group, bundles, seated.share, name
        self._heard, self._deterministic = heard, deterministic
        self.ranks, self.count = seated.ranks, len(bundles)
        self._actors: dict[int, Any] = {}
        self._taken = [0] * self.count  # how often each seat was taken: a name may not come twice
        for seat in range(self.count):
            self.actor(seat)

    def actor(self, seat: int) -> Any:
        """The actor in a seat."""
        if seat not in self._actors:
            options = member_options(self._share, self._group, self._bundles[seat])
            actor_class = ray.remote(concurrency_groups={"io": 1, "pulse": 1})(Member)  # type: ignore[call-overload]
            again = f"-restart-{self._taken[seat]}" if self._taken[seat] else ""
            made = actor_class.options(name=f"adaplr-{self._name}-{self._of(seat)}{again}", max_restarts=0, **options)
            self._actors[seat] = made.remote(overheard=True, deterministic=self._deterministic)
            self._taken[seat] += 1
        return self._actors[seat]

    def _of(self, seat: int) -> str:
        member, rank = divmod(seat, self.ranks)
        return f"member-{member}" + (f"-rank-{rank}" if rank else "")

    def has_node(self, seat: int) -> bool:
        """Whether a seat is on a live node, so that whoever does not answer there is only slow to load."""
        table = ray.util.placement_group_table(self._group)
        node = table["bundles_to_node_id"].get(self._bundles[seat])
        return any(each["Alive"] and each["NodeID"] == node for each in ray.nodes())

    def listen(self) -> None:
        """Warn of what the actors have warned of since the last time; an actor that is gone says nothing any more."""
        told = {seat: a.warnings.options(concurrency_group="pulse").remote() for seat, a in list(self._actors.items())}
        for seat, ref in told.items():
            with contextlib.suppress(ray.exceptions.RayError):
                self.heard(seat, ray.get(ref, timeout=_ANSWER))

    def heard(self, seat: int, warnings: list[str]) -> None:
        """Warn of what the actor in a seat has warned of, unless another has said the same."""
        for warning in warnings:
            if warning not in self._heard:
                log.warning("%s: %s", self._of(seat).replace("-", " "), warning)
                self._heard.append(warning)

    def dismiss(self, seat: int) -> None:
        """End the actor in a seat, if there is one."""
        if actor := self._actors.pop(seat, None):
            ray.kill(actor)

    def close(self) -> None:
        """End all actors."""
        for seat in range(self.count):
            self.dismiss(seat)
