"""Shared by all tests: one torch thread (two on a small box make small operations far slower), one local Ray, and
small tasks of real digits."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

# Raylets put sockets below their temporary folder, and a socket's path may have 107 characters only.
os.environ.setdefault("RAY_TMPDIR", tempfile.mkdtemp(prefix="ra-", dir="/tmp"))
torch.set_num_threads(1)

from ray_adaplr.config import Config, ScalingConfig  # noqa: E402
from ray_adaplr.core.models import Classifier, ModelSpec  # noqa: E402
from ray_adaplr.data.digits import demo_domain  # noqa: E402
from ray_adaplr.data.store import ImageStore, write_store  # noqa: E402
from ray_adaplr.stages.pretrain import pretrain  # noqa: E402

LOCAL = ScalingConfig(engine="local")


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A local Ray for the whole session: 2 CPUs, no dashboard."""
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def digit_stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ImageStore]:
    """Real digits, small: 1,500 of MNIST (the source) and 300 optical digits (the target)."""
    folder = tmp_path_factory.mktemp("stores")
    stores = {}
    for name, count in (("mnist", 1500), ("optdigits", 300)):
        whole = demo_domain(name, folder / f"{name}-whole")
        rows = np.arange(count)
        truth = whole.ground_truth()
        assert truth is not None
        ids = whole.ids.to_pylist()[:count]
        stores[name] = write_store(
            folder / name, [(ids, whole.read(rows))], classes=whole.classes, domain=name, truth=truth[:count]
        )
    return stores


@pytest.fixture(scope="session")
def source_folder(digit_stores: dict[str, ImageStore], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source model's folder, trained for a few seconds."""
    out = tmp_path_factory.mktemp("models") / "mnist"
    spec = ModelSpec(num_classes=10, channels=1, width=8, image_size=(16, 16), classes=tuple("0123456789"))
    pretrain(digit_stores["mnist"], str(out), spec, Config(pretrain_epochs=3), LOCAL)
    return out


@pytest.fixture
def source_model(source_folder: Path) -> Classifier:
    """A fresh copy of the source model."""
    from ray_adaplr.modelfile import load_model

    return load_model(source_folder)


@pytest.fixture
def small_config() -> Config:
    """Settings for runs of a second."""
    return Config(epochs=4, distill_epochs=2, warmup=1, alpha=0.5, distill_on="all", warm_start_epochs=1)
