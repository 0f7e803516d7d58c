"""What a process on Ray finds wrong with its device, or warns of, reaches the driver."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ray_adaplr.config import ScalingConfig
from ray_adaplr.core import devices
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.engine import RayEngine
from ray_adaplr.errors import RunFailed

pytestmark = pytest.mark.ray


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
@pytest.mark.usefixtures("ray_cluster")
def test_a_reserved_gpu_that_torch_cannot_use_ends_the_run_at_its_start_with_one_sentence() -> None:
    with RayEngine(ScalingConfig(cpus_per_member=1), n_e=1, name="blind") as engine:
        engine.device = "cuda"  # as where the seats have a GPU
        with pytest.raises(RunFailed, match="torch cannot use it") as failed:
            engine.ask(devices.conditions, engine.device, does="checks its device")
    [line] = str(failed.value).splitlines()
    assert "--gpus-per-member 0" in line


@pytest.mark.slow
@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_a_command_whose_gpu_torch_cannot_use_ends_with_exit_code_1_and_one_sentence(
    source_folder: Path, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "ray_adaplr", "adapt", "--source", source_folder]
    command += ["--target", *digit_stores["optdigits"].paths, "--out", tmp_path / "run", "--set", "n_e=1"]
    counted = {"RAY_OVERRIDE_RESOURCES": '{"GPU": 1}'}  # what its own Ray takes the machine to have
    kept = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(command, env=kept | counted, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1
    assert len([line for line in done.stderr.splitlines() if "torch cannot use it" in line]) == 1, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("ray_cluster")
def test_what_a_member_warns_of_reaches_the_drivers_terminal_and_record_once(caplog: pytest.LogCaptureFixture) -> None:
    def warn_twice() -> Iterator[int]:  # nested, so that Ray sends it whole
        for _ in range(2):
            logging.getLogger("ray_adaplr.somewhere").warning("the disk is slow")
        yield 1

    with RayEngine(ScalingConfig(cpus_per_member=1), n_e=1, name="warns") as engine:
        assert list(engine.stream(warn_twice, does="warns")) == [1]
        assert engine.heard == ["the disk is slow"]
    assert caplog.text.count("member 0: the disk is slow") == 1
