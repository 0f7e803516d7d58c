"""What a process on Ray finds wrong with its device, or warns of, reaches the driver."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
import torch
from ray.cluster_utils import Cluster

from ray_adaplr.cli.main import main
from ray_adaplr.config import ScalingConfig
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.engine import RayEngine

pytestmark = pytest.mark.ray


@pytest.fixture
def made_up_gpu(ray_cluster: Cluster) -> Iterator[None]:
    """A node of the session's Ray with a GPU that nobody has; now and then Ray never hears of a new node's."""
    for _ in range(4):
        node = ray_cluster.add_node(num_cpus=1, num_gpus=1)
        deadline = time.monotonic() + 30
        while ray.available_resources().get("GPU", 0) < 1 and time.monotonic() < deadline:
            time.sleep(0.1)
        if ray.available_resources().get("GPU", 0) >= 1:
            break
        ray_cluster.remove_node(node)
    yield
    ray_cluster.remove_node(node)
    ray_cluster.wait_for_nodes()


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
@pytest.mark.usefixtures("made_up_gpu")
def test_a_reserved_gpu_that_torch_cannot_use_ends_the_run_at_its_start_with_one_sentence(
    source_folder: Path, digit_stores: dict[str, ImageStore], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = digit_stores["optdigits"].paths[0]
    command = ["adapt", "--source", source_folder, "--target", target, "--out", tmp_path / "run", "--set", "n_e=1"]
    assert main([*map(str, command), "--quiet"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "torch cannot use it" in line
    assert "--gpus-per-member 0" in line
    assert not (tmp_path / "run" / "inferred.parquet").exists()


@pytest.mark.usefixtures("ray_cluster")
def test_what_a_member_warns_of_reaches_the_drivers_terminal_and_record_once(caplog: pytest.LogCaptureFixture) -> None:
    def warn_twice() -> Iterator[int]:  # nested, so that Ray sends it whole
        for _ in range(2):
            logging.getLogger("ray_adaplr.somewhere").warning("the disk is slow")
        yield 1

    with RayEngine(ScalingConfig(cpus_per_member=1), n_e=1, name="warns") as engine:
        assert list(engine.stream(warn_twice)) == [1]
        assert engine.heard == ["the disk is slow"]
    assert caplog.text.count("member 0: the disk is slow") == 1
