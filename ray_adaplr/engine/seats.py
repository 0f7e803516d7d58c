"""The seats of a run on Ray: an actor in each bundle of its placement group, kept from the first stage to the last.

A process that has loaded torch is worth keeping: loading takes seconds, on a small box more than many an epoch. So
all seats are taken at the start and load side by side, and what is no member's work (inferring, the target model)
runs in the first one.
"""

from typing import Any

import ray

from ray_adaplr.engine.member import Member
from ray_adaplr.engine.placement import Resources, member_options


class Seats:
    """Actors by seat; a seat that is empty gets a new one when it is asked for.

    Args:
        group: the placement group.
        bundles: what each seat has.
        first_bundle: number of the first seat's bundle in the group.
        name: the run's, for the names of its actors.
    """

    def __init__(self, group: Any, bundles: list[Resources], first_bundle: int, name: str) -> None:
        self._group, self._bundles, self._first_bundle, self._name = group, bundles, first_bundle, name
        self._actors: dict[int, Any] = {}
        self._taken = [0] * len(bundles)  # how often each seat was taken: a name may not come twice
        for k in range(len(bundles)):
            self.actor(k)

    def actor(self, k: int) -> Any:
        """The actor in seat k."""
        if k not in self._actors:
            options = member_options(self._bundles[k], self._group, self._first_bundle + k)
            actor_class = ray.remote(concurrency_groups={"io": 1, "pulse": 1})(Member)  # type: ignore[call-overload]
            name = f"adaplr-{self._name}-member-{k}" + (f"-restart-{self._taken[k]}" if self._taken[k] else "")
            self._actors[k] = actor_class.options(name=name, max_restarts=0, **options).remote()
            self._taken[k] += 1
        return self._actors[k]

    def dismiss(self, k: int) -> None:
        """End the actor in seat k, if there is one."""
        if k in self._actors:
            ray.kill(self._actors.pop(k))

    def close(self) -> None:
        """End all actors."""
        for k in range(len(self._bundles)):
            self.dismiss(k)
