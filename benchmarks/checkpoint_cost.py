"""What checkpoints cost, a row of `python -m benchmarks speed`: the median epoch on Ray with one every epoch ÷ without.

Both kinds run in turn, several times, on the same Ray and the same digits: 5,000 of 32 px, epochs of a few seconds, and
members on both cores, so that whatever a checkpoint computes is taken from an epoch. The first epoch is left out.
"""

import statistics
import tempfile

import ray

from benchmarks.measure import Measurement
from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import ModelSpec, build
from ray_adaplr.data.digits import demo_domain
from ray_adaplr.stages.adapt import RunPlan, adapt

REPEATS, EPOCHS, WARM = 5, 5, 1


def measure() -> Measurement:
    """The row, with the seconds of both kinds in its details."""
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    config = Config(epochs=EPOCHS, n_e=2, warm_start="off", on_harm="off")
    seconds: dict[int, list[float]] = {0: [], 1: []}
    with tempfile.TemporaryDirectory() as made:
        store = demo_domain("mnist", f"{made}/store", size=32, channels=3)
        model = build(ModelSpec(num_classes=10))
        for repeat in range(REPEATS):
            for every in (0, 1):
                scaling = ScalingConfig(checkpoint_every=every)
                run = adapt(RunPlan([model], store, f"{made}/{repeat}-{every}", config, scaling), until="refine")
                seconds[every].append(statistics.median(line["seconds"] for line in run.metrics[WARM:]))
    ray.shutdown()
    ratios = [with_one / without for without, with_one in zip(seconds[0], seconds[1])]
    name = "epoch on Ray with a checkpoint every epoch ÷ without (N_e 2, 5,000 digits of 32 px)"
    return Measurement.of(name, ratios, 1.05, higher_is_better=False, details={"epoch_seconds": seconds})
