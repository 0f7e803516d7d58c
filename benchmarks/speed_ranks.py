"""The row of the speed benchmark for data-parallel members: one member on two ranks against one, on two cores."""

from collections.abc import Callable
from contextlib import ExitStack

from benchmarks.measure import Measurement, noise_store, ratios, seconds_in_turn
from benchmarks.speed_runs import local_ray, refinement
from ray_adaplr.config import ScalingConfig

IMAGES = 8192


def two_ranks() -> list[Measurement]:
    """An epoch of one member on two ranks ÷ on one, the same batches of 64 and the same loop of every run."""
    with local_ray(), noise_store(IMAGES, 32) as store, ExitStack() as stack:
        one, two = (
            stack.enter_context(
                refinement(store, 1, ScalingConfig(ranks_per_member=ranks, cpus_per_member=1), batch_size=64)
            )
            for ranks in (1, 2)
        )
        alone, together = seconds_in_turn(one, two, repeats=9)
    name = f"epoch of a member on two ranks ÷ on one, two cores, wall ({IMAGES:,} digits of 32 px, batch 64)"
    details = {"epoch_seconds": {"one": alone, "two": together}}
    return [Measurement.of(name, ratios(together, alone), 0.60, higher_is_better=False, details=details)]


MEASUREMENTS: list[Callable[[], list[Measurement]]] = [two_ranks]
