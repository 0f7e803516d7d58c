"""Fail the n-th file operation, for n = 1, 2, 3 … until a run completes: on a disk, and the n-th request to a bucket.

After each failure the same call continues to the bits of an undisturbed run. The suite looks at every so many n; `make
schedules` looks at all.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from s3_server import S3Place
from test_schedules import CLASSES, NoBoard, quiet, write_down

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import ModelSpec, build
from ray_adaplr.data.store_writer import write_store
from ray_adaplr.stages import record
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.storage import folder as folders
from ray_adaplr.storage import lease
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.layout import LABELS, METRICS

EVERY = 1 if os.environ.get("ADAPLR_SCHEDULES") else 13
CONFIG = Config(epochs=2, n_e=1, n_a=2, warm_start="off", warmup=0, alpha=0.3, batch_size=4)
CHANGING = ("makedirs", "fsync", "replace", "rmdir")  # of os, as storage/folder.py calls them


class Operations:
    """Counts file operations, and fails the one of a certain number with an error of the disk."""

    def __init__(self, fail_at: int) -> None:
        self.count, self.fail_at = 0, fail_at

    def counted(self, function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self.count += 1
            if self.count == self.fail_at:
                raise OSError(errno.EIO, "Input/output error")
            return function(*args, **options)

        return call


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> RunPlan:
    images = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 1), dtype=np.uint8)
    place = tmp_path_factory.mktemp("toy")
    store = write_store(place / "store", [([str(i) for i in range(12)], images)], classes=[], domain="toy")
    model = build(ModelSpec(num_classes=CLASSES, channels=1, width=2))
    return RunPlan([model], store, str(place / "undisturbed"), CONFIG, ScalingConfig(engine="local"))


@pytest.fixture
def undisturbed(plan: RunPlan, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    monkeypatch.setattr(record, "BoardWriter", NoBoard)
    monkeypatch.setattr(lease, "SECONDS", 10.0)
    adapt(plan, until="refine")
    with quiet():
        yield outcome(plan.out)


def outcome(out: str) -> list[bytes]:
    folder = Folder(out)
    epochs = b"".join(line.split(b'"gamma"')[0] for line in folder.read(METRICS).splitlines())
    return [folder.read(LABELS), folder.read("ensemble/0/model.safetensors"), epochs]


def at(plan: RunPlan, out: str) -> RunPlan:
    return RunPlan(plan.sources, plan.store, out, plan.config, plan.scaling)


def test_whichever_file_operation_fails_the_same_call_goes_on_to_the_same_bits(
    plan: RunPlan, undisturbed: list[bytes], tmp_path: Path
) -> None:
    failed, n = 0, 1
    while True:
        operations, out = Operations(n), str(tmp_path / f"run-{n}")
        with pytest.MonkeyPatch.context() as patch:
            names = {name: operations.counted(getattr(os, name)) for name in CHANGING}
            patch.setattr(folders, "os", SimpleNamespace(**{**vars(os), **names}))
            patch.setattr(Folder, "_patiently", operations.counted(Folder._patiently))
            try:
                adapt(at(plan, out), until="refine")
            except OSError:
                failed += 1
        adapt(at(plan, out), until="refine")
        assert outcome(out) == undisturbed, f"operation {n}"
        if operations.count < n:
            break
        n += EVERY
    assert failed >= 100 // EVERY, "operations that fail end a run"
    write_down("operations_on_a_disk", operations=n - 1, ended_a_run=failed, different_bits=0)


def test_whichever_request_to_a_bucket_fails_the_same_call_goes_on_to_the_same_bits(
    plan: RunPlan, undisturbed: list[bytes], s3: S3Place
) -> None:
    failed, n = 0, 1
    while True:
        out = s3.uri()
        s3.forget()
        s3.fail_at = n
        try:
            adapt(at(plan, out), until="refine")
        except OSError:
            failed += 1
        requests = s3.requests.total()
        s3.forget()
        adapt(at(plan, out), until="refine")
        assert outcome(out) == undisturbed, f"request {n}"
        if requests < n:
            break
        n += EVERY
    assert failed >= 40 // EVERY, "requests that are denied end a run"
    write_down("requests_to_a_bucket", requests=n - 1, ended_a_run=failed, different_bits=0)
