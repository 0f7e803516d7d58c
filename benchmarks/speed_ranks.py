"""The rows of the speed benchmark for work that is spread over seats: a member's ranks, and several sources."""

from collections.abc import Callable
from contextlib import ExitStack

from benchmarks.measure import Measurement, noise_store, ratios, seconds_in_turn
from benchmarks.speed_runs import digits_task, local_ray, refinement
from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import ModelSpec
from ray_adaplr.engine.engine import RayEngine
from ray_adaplr.stages.first_labels import Inference
from ray_adaplr.stages.infer import infer
from ray_adaplr.storage.models import load_model


def two_ranks() -> list[Measurement]:
    """An epoch of one member on two ranks ÷ on one, the same batches of 64 and the same loop of every run."""
    return [_two_ranks("digit_cnn", images=8192, side=32), _two_ranks("resnet18", images=512, side=64)]


def _two_ranks(network: str, images: int, side: int) -> Measurement:
    spec = ModelSpec(name=network, num_classes=10)
    with local_ray(), noise_store(images, side) as store, ExitStack() as stack:
        one, two = (
            stack.enter_context(
                refinement(store, 1, ScalingConfig(ranks_per_member=ranks, cpus_per_member=0.5), 64, spec)
            )
            for ranks in (1, 2)
        )
        alone, together = seconds_in_turn(one, two, repeats=9)
    name = f"epoch of a member on two ranks ÷ on one, two cores, wall ({network}, {side} px, batch 64)"
    details = {"images": images, "epoch_seconds": {"one": alone, "two": together}}
    return Measurement.of(name, ratios(together, alone), 0.60, higher_is_better=False, details=details)


def warm_starts() -> list[Measurement]:
    """First labels with the warm start of two sources on two seats, against those of one source."""
    target, source = digits_task()
    model, config = load_model(source), Config().resolve(10)
    with local_ray(), RayEngine(ScalingConfig(cpus_per_member=1), n_e=2, name="bench-warm") as engine:
        plan = Inference(target.paths, config, engine.device, engine.cache)
        works = [lambda sources=sources: infer(sources, plan, engine) for sources in ([model], [model, model])]
        one, two = seconds_in_turn(*works, repeats=5)
    name = f"warm start of two sources on two seats ÷ of one, wall (1,797 digits, {config.warm_start_epochs} epochs)"
    details = {"seconds": {"one": one, "two": two}}
    return [Measurement.of(name, ratios(two, one), 1.15, higher_is_better=False, details=details)]


MEASUREMENTS: list[Callable[[], list[Measurement]]] = [two_ranks, warm_starts]
