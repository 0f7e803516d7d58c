"""Members on nodes of their own, of which one is lost in mid-run, give the bits of a single process."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier
from ray_adaplr.data.store import ImageStore
from ray_adaplr.stages.adapt import RunPlan, adapt

pytestmark = [pytest.mark.multinode, pytest.mark.slow]
CONFIG = Config(epochs=4, distill_epochs=1, warmup=1, alpha=0.5, distill_on="all", warm_start="off", n_e=2)


@pytest.fixture
def two_nodes(ray_cluster: Cluster) -> Iterator[Cluster]:
    """The session's Ray, whose head has two CPUs, and two more nodes with three each."""
    for _ in range(2):
        ray_cluster.add_node(num_cpus=3, wait=False)
    ray_cluster.wait_for_nodes()
    yield ray_cluster
    for node in list(ray_cluster.worker_nodes):
        ray_cluster.remove_node(node)
    ray_cluster.wait_for_nodes()


def test_a_lost_node_is_replaced_and_the_bits_stay_the_same(
    two_nodes: Cluster,
    source_model: Classifier,
    digit_stores: dict[str, ImageStore],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    target, here, there = digit_stores["optdigits"], tmp_path / "local", tmp_path / "nodes"
    local = adapt(RunPlan([source_model], target, str(here), CONFIG, ScalingConfig(engine="local")), until="refine")
    in_use, replaced = threading.Event(), threading.Event()

    def wait_for_the_loss(line: dict) -> None:
        in_use.set()
        assert replaced.wait(600)

    with ThreadPoolExecutor(1) as thread:  # nodes must be started from the main thread
        scaling = ScalingConfig(cpus_per_member=3)  # so that no member sits on the head
        plan = RunPlan([source_model], target, str(there), CONFIG, scaling)
        run = thread.submit(adapt, plan, until="refine", watch=wait_for_the_loss)
        while not in_use.wait(0.1):
            assert not run.done(), run.result()
        two_nodes.remove_node(next(iter(two_nodes.worker_nodes)), allow_graceful=False)
        two_nodes.add_node(num_cpus=3)
        replaced.set()
        spread = run.result(timeout=600)
    assert "lost" in caplog.text  # it was in use
    assert spread.labels.equals(local.labels)
    assert [line["members"] for line in spread.metrics] == [2] * CONFIG.epochs
