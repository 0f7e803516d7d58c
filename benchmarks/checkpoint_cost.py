"""What checkpoints cost: `python benchmarks/checkpoint_cost.py`. Median epoch on Ray with one every epoch ÷ without.

Both kinds run in turn, several times, on the same Ray and the same 1,797 real digits; the first epochs are left out.
Writes results/checkpoint_cost.json.
"""

import json
import statistics
import tempfile
from pathlib import Path

import ray
from harness import provenance  # the script's own folder is on the path

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import ModelSpec, build
from ray_adaplr.data.digits import demo_domain
from ray_adaplr.stages.adapt import adapt

RESULTS = Path(__file__).parent / "results/checkpoint_cost.json"
REPEATS, EPOCHS, WARM = 5, 14, 3


def main() -> None:
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    config = Config(epochs=EPOCHS, n_e=2, warm_start="off")
    seconds: dict[int, list[float]] = {0: [], 1: []}
    with tempfile.TemporaryDirectory() as made:
        store = demo_domain("optdigits", f"{made}/store")
        model = build(ModelSpec(num_classes=10, channels=1))
        for repeat in range(REPEATS):
            for every in (0, 1):
                scaling = ScalingConfig(checkpoint_every=every)
                run = adapt([model], store, f"{made}/{repeat}-{every}", config, scaling, until="refine")
                seconds[every].append(statistics.median(line["seconds"] for line in run.metrics[WARM:]))
    ratios = [with_one / without for without, with_one in zip(seconds[0], seconds[1])]
    row = {
        "name": "epoch on Ray with a checkpoint every epoch ÷ without",
        "value": statistics.median(ratios),
        "spread": [min(ratios), max(ratios)],
        "goal": 1.05,
        "higher_is_better": False,
        "epoch_seconds": seconds,
    }
    RESULTS.write_text(json.dumps({"provenance": provenance(), "rows": [row]}, indent=1) + "\n")
    print(f"{row['name']}: {row['value']:.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
