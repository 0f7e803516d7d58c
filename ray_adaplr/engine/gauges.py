"""A run's progress as Ray metrics, `ray_adaplr_*` in Ray's dashboard and Prometheus; without Ray, nothing."""

from typing import Any

import ray
from ray.util.metrics import Gauge

SHOWN = {
    "epoch": "epochs of refinement done",
    "gamma": "share of high-confidence labels",
    "reassigned": "share of labels changed in the last epoch",
    "images_per_s": "images per second, all members together",
}


class ProgressGauges:
    """Gauges of one run, set once per epoch by the coordinator.

    Args:
        run: the run's name, their tag.
    """

    def __init__(self, run: str) -> None:
        self._gauges: dict[str, Gauge] = {}
        if ray.is_initialized():
            for key, meaning in SHOWN.items():
                self._gauges[key] = Gauge(f"adaplr_{key}", meaning, ("run",)).set_default_tags({"run": run})

    def epoch(self, line: dict[str, Any]) -> None:
        """Show an epoch's line of metrics.jsonl."""
        for key, gauge in self._gauges.items():
            gauge.set(line[key] + (key == "epoch"))
