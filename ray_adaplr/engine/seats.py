"""The seats of a run on Ray: an actor in each bundle of its placement group, kept from the first stage to the last.

A process that has loaded torch is worth keeping: loading takes seconds, on a small box more than many an epoch. So
all seats are taken at the start and load side by side, and what is no member's work (inferring, the target model)
runs in the first one.
"""

import contextlib
import logging
from typing import Any

import ray

from ray_adaplr.engine.member import Member
from ray_adaplr.engine.placement import Resources, member_options

log = logging.getLogger(__name__)
_ANSWER = 5.0  # seconds that a process has to say what it has warned of


class Seats:
    """Actors by seat; a seat that is empty gets a new one when it is asked for.

    Args:
        group: the placement group.
        bundles: what each seat has.
        first_bundle: number of the first seat's bundle in the group.
        name: the run's, for the names of its actors.
        heard: gets what the actors warn of.
        deterministic: what the actors' kernels are.
    """

    def __init__(
        self,
        group: Any,
        bundles: list[Resources],
        first_bundle: int,
        name: str,
        heard: list[str],
        deterministic: bool,
    ) -> None:
        self._heard, self._deterministic = heard, deterministic
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
            made = actor_class.options(name=name, max_restarts=0, **options)
            self._actors[k] = made.remote(overheard=True, deterministic=self._deterministic)
            self._taken[k] += 1
        return self._actors[k]

    def has_node(self, k: int) -> bool:
        """Whether seat k is on a live node, so that whoever does not answer there is only slow to load."""
        node = ray.util.placement_group_table(self._group)["bundles_to_node_id"].get(self._first_bundle + k)
        return any(each["Alive"] and each["NodeID"] == node for each in ray.nodes())

    def listen(self) -> None:
        """Warn of what the actors have warned of since the last time; an actor that is gone says nothing any more."""
        told = {k: a.warnings.options(concurrency_group="pulse").remote() for k, a in self._actors.items()}
        for k, ref in told.items():
            with contextlib.suppress(ray.exceptions.RayError):
                for warning in ray.get(ref, timeout=_ANSWER):
                    if warning not in self._heard:  # all members tend to say the same
                        log.warning("member %d: %s", k, warning)
                        self._heard.append(warning)

    def dismiss(self, k: int) -> None:
        """End the actor in seat k, if there is one."""
        if k in self._actors:
            ray.kill(self._actors.pop(k))

    def close(self) -> None:
        """End all actors."""
        for k in range(len(self._bundles)):
            self.dismiss(k)
