"""bfloat16 by rounding computes what torch's own autocast computes, and only where it is asked for."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import precision
from benchmarks.tasks import Start
from ray_adaplr.core import devices
from ray_adaplr.core.models import ModelSpec, build
from ray_adaplr.data.store_writer import write_store


@pytest.mark.parametrize("size", [16, 32])
def test_rounding_lies_five_times_nearer_to_autocast_than_float32_does(size: int, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (64, size, size, 1), dtype=np.uint8)
    ids = [str(i) for i in range(64)]
    store = write_store(tmp_path / "store", [(ids, images)], classes=list("0123456789"), domain="noise")
    torch.manual_seed(0)
    model = build(ModelSpec(num_classes=10, channels=1, image_size=(size, size)))

    apart = precision.distances(Start(model, store, store))

    assert 5 * apart["rounding_from_autocast"] < apart["autocast_from_fp32"]  # 0 on CPUs that have bfloat16


def test_only_bf16_is_rounded() -> None:
    cpu = torch.device("cpu")
    with precision.rounding_for_bf16():
        with devices.computing_in("fp32"):
            assert not isinstance(devices.autocast(cpu), precision.Rounded)
        with devices.computing_in("bf16"):
            assert isinstance(devices.autocast(cpu), precision.Rounded)
    with devices.computing_in("bf16"):
        assert not isinstance(devices.autocast(cpu), precision.Rounded)
