"""What Ray's dashboard shows of a run: members by name, progress as metrics."""

import re
import threading
import time
import urllib.request
from pathlib import Path

import pytest
import ray

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.gauges import ProgressGauges
from ray_adaplr.stages.adapt import RunPlan, adapt

CONFIG = Config(epochs=3, warm_start="off", n_e=2)


def exported(pattern: str, seconds: float = 40) -> None:
    """Wait for a match in what the node exports to Prometheus, which Ray renews from time to time."""
    node = next(node for node in ray.nodes() if node["Alive"])
    place = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if re.search(pattern, urllib.request.urlopen(place, timeout=10).read().decode()):
            return
        time.sleep(0.1)
    raise AssertionError(f"{pattern} is not at {place}")


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_members_have_readable_names_and_the_progress_is_a_metric(
    source_model: Classifier, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    seen: set[str] = set()
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.05):
            seen.update(ray.util.list_named_actors())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        adapt(
            RunPlan(
                [source_model],
                digit_stores["optdigits"],
                str(tmp_path / "night-7"),
                CONFIG,
                ScalingConfig(cpus_per_member=0.5),
            ),
            until="refine",
        )
    finally:
        done.set()
        watcher.join()
    assert seen >= {"adaplr-night-7-member-0", "adaplr-night-7-member-1"}
    exported(r'ray_adaplr_epoch\{[^}]*run="night-7"[^}]*\} 3(\.0)?\s')  # the last of the three
    for name in ("gamma", "reassigned", "images_per_s"):
        exported(rf'ray_adaplr_{name}\{{[^}}]*run="night-7"')


def test_without_ray_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray_adaplr.engine.gauges.Gauge", None)  # calling it would fail
    ProgressGauges("run").epoch({"epoch": 0})
