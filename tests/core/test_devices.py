"""A device that cannot be used, and errors of devices: each ends with its way out."""

import os
from pathlib import Path

import pytest
import torch

from ray_adaplr.config import ScalingConfig
from ray_adaplr.core import devices
from ray_adaplr.engine.engine import LocalEngine
from ray_adaplr.errors import RunFailed


def raises(error: Exception) -> None:
    with devices.explained():
        raise error


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_an_accelerator_that_torch_cannot_use_is_no_cpu() -> None:
    assert devices.usable_device("cpu") == "cpu"
    with pytest.raises(RunFailed, match=r"torch cannot use it: .*torch \d.*driver.*--gpus-per-member 0"):
        devices.usable_device(devices.ACCELERATOR)


@pytest.mark.parametrize(
    ("file", "visible", "warns"), [("nvidia0", None, 1), ("nvidiactl", None, 0), ("nvidia0", "", 0)]
)
def test_a_gpu_that_torch_cannot_use_is_not_passed_over_in_silence(
    file: str,
    visible: str | None,
    warns: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / file).touch()
    monkeypatch.setattr(devices, "_DEV", tmp_path)
    monkeypatch.setattr(devices, "accelerator", lambda: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert devices.accelerator_or_cpu() == "cpu"
    assert caplog.text.count("there is a GPU but torch cannot use it") == warns
    assert LocalEngine(ScalingConfig(engine="local")).device == "cpu"
    assert caplog.text.count("there is a GPU but torch cannot use it") == 2 * warns


@pytest.mark.parametrize("before", [False, True])
def test_deterministic_kernels_are_asked_for_meanwhile_and_all_is_put_back(
    before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    torch.use_deterministic_algorithms(before)
    try:
        with devices.deterministic():
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.is_deterministic_algorithms_warn_only_enabled()
            assert not torch.backends.cudnn.benchmark
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert torch.are_deterministic_algorithms_enabled() is before
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_drivers_version_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan  9\nGCC version: 12.3")
    monkeypatch.setattr(devices, "_DRIVER", version)
    assert devices.software().endswith("NVIDIA driver 570.86.15")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"), "2.00 GiB; .*batch_size"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"), "--gpus-per-member"),
        (RuntimeError("CUDA error: no kernel image is available for execution on the device"), "install a build"),
        (RuntimeError("CUDA error: device-side assert triggered\nmore"), "CUDA_LAUNCH_BLOCKING=1"),
    ],
)
def test_an_error_of_a_device_that_would_come_again_gets_its_way_out(error: Exception, words: str) -> None:
    with pytest.raises(RunFailed, match=words):
        raises(error)


@pytest.mark.parametrize("error", [RuntimeError("CUDA error: unknown error"), RunFailed("out of memory"), KeyError(1)])
def test_any_other_error_stays_what_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        raises(error)
    assert caught.value is error
