"""Three nodes with a (pretended) GPU each: spread, and a node lost in mid-run, with the bits of a single process."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier
from ray_adaplr.data.store import ImageStore
from ray_adaplr.stages.adapt import adapt

pytestmark = [pytest.mark.multinode, pytest.mark.slow]
CONFIG = Config(epochs=30, distill_epochs=1, warmup=1, alpha=0.5, distill_on="all", warm_start="off")


@pytest.fixture
def three_nodes() -> Iterator[Cluster]:
    """A head without GPU and three nodes with one each; the session's own Ray is let go of and comes back after."""
    if ray.is_initialized():
        pytest.skip("needs a process without a Ray session; run this file by itself")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(3):
        cluster.add_node(num_cpus=1, num_gpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_a_lost_node_is_replaced_and_the_bits_stay_the_same(
    three_nodes: Cluster, source_model: Classifier, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    target = digit_stores["optdigits"]
    local = adapt(
        [source_model], target, str(tmp_path / "local"), CONFIG, ScalingConfig(engine="local"), until="refine"
    )
    lost: list[str] = []

    def lose_a_node() -> None:
        while not (tmp_path / "nodes/metrics.jsonl").exists():
            time.sleep(0.02)
        victim = sorted(three_nodes.worker_nodes, key=lambda node: node.unique_id)[0]
        three_nodes.remove_node(victim, allow_graceful=False)
        lost.append(victim.unique_id)
        three_nodes.add_node(num_cpus=1, num_gpus=1)

    thread = threading.Thread(target=lose_a_node, daemon=True)
    thread.start()
    scaling = ScalingConfig(gpus_per_member=1)
    spread = adapt([source_model], target, str(tmp_path / "nodes"), CONFIG, scaling, until="refine")
    thread.join(30)
    assert lost
    assert spread.labels.equals(local.labels)
    assert [line["members"] for line in spread.metrics] == [3] * CONFIG.epochs
