"""Shared by all tests: one torch thread (two on a small box make small operations far slower), one local Ray, and
small tasks of real digits."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

# The same examples each time, however long the machine takes for one.
settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
# Raylets put sockets below their temporary folder, and a socket's path may have 107 characters only.
for variable, place in (("RAY_TMPDIR", "/tmp"), ("ADAPLR_CACHE", None)):
    if variable not in os.environ or "PYTEST_XDIST_WORKER" in os.environ:  # each process of the suite has its own
        os.environ[variable] = tempfile.mkdtemp(prefix="ra-", dir=place)
# Ray gives its workers the lowest priorities, so that beside any busy process they would stand still for seconds.
os.environ.setdefault("RAY_worker_niceness", "0")
if "ADAPLR_TEST_S3" not in os.environ:  # before a Ray starts, whose workers talk to the S3 server too
    os.environ.update(AWS_ACCESS_KEY_ID="tests", AWS_SECRET_ACCESS_KEY="tests", AWS_EC2_METADATA_DISABLED="true")
torch.set_num_threads(1)

from local_runs import LOCAL  # noqa: E402

from ray_adaplr.config import Config  # noqa: E402
from ray_adaplr.core.models import Classifier, ModelSpec  # noqa: E402
from ray_adaplr.data.digits import demo_domain  # noqa: E402
from ray_adaplr.data.store import ImageStore  # noqa: E402
from ray_adaplr.data.store_writer import write_store  # noqa: E402
from ray_adaplr.stages.adapt import Result, RunPlan, adapt  # noqa: E402
from ray_adaplr.stages.pretrain import SourcePlan, pretrain  # noqa: E402
from ray_adaplr.storage.models import load_model  # noqa: E402

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster
    from s3_server import S3Place


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that of several processes none is left with them at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator["Cluster"]:
    """A Ray for the whole session: 2 CPUs, no dashboard. Tests may add nodes, and remove them again."""
    import ray
    from ray.cluster_utils import Cluster

    # Ray looks after its nodes more often than by default. A dead node is missed after 2.5 s instead of 15;
    # a slow one still has its 10 s to answer.
    often = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500}
    head = {"num_cpus": 2, "include_dashboard": False, "_system_config": often}
    head |= {"no_monitor": True, "include_log_monitor": False}  # two processes that nobody asks
    cluster = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="session")
def s3_server() -> Iterator["S3Place"]:
    """An S3 server on loopback for the whole session; see s3_server.py."""
    from s3_server import start_s3

    place = start_s3()
    yield place
    place.close()


@pytest.fixture
def s3(s3_server: "S3Place") -> Iterator["S3Place"]:
    """The session's S3 server, with its counts at zero and without faults; `s3.uri()` is a new folder in it."""
    s3_server.forget()
    yield s3_server
    s3_server.forget()


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
    pretrain(SourcePlan(digit_stores["mnist"], str(out), spec, Config(pretrain_epochs=3), LOCAL))
    return out


@pytest.fixture
def source_model(source_folder: Path) -> Classifier:
    """A fresh copy of the source model."""
    return load_model(source_folder)


@pytest.fixture(scope="session")
def small_config() -> Config:
    """Settings for runs of a second."""
    return Config(epochs=4, distill_epochs=2, warmup=1, alpha=0.5, distill_on="all", warm_start_epochs=1)


@pytest.fixture(scope="session")
def straight_run(
    source_folder: Path,
    digit_stores: dict[str, ImageStore],
    small_config: Config,
    tmp_path_factory: pytest.TempPathFactory,
) -> Result:
    """An undisturbed run of `small_config` in process, from the first stage to the last; not to be changed."""
    out = tmp_path_factory.mktemp("straight") / "run"
    return adapt(RunPlan([load_model(source_folder)], digit_stores["optdigits"], str(out), small_config, LOCAL))


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts are drawn but not rendered, nine tenths of a page's time: for tests of all else."""
    monkeypatch.setattr("ray_adaplr.report.chart.Chart.svg", property(lambda chart: chart.name))
