"""A run in a bucket: the same bits as on a disk, through kills, outages and lost credentials, with few requests."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from local_runs import LOCAL, bits
from s3_server import S3Place

from ray_adaplr.config import Config
from ray_adaplr.core.models import Classifier
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError
from ray_adaplr.stages import supervised
from ray_adaplr.stages.adapt import Result, RunPlan, adapt
from ray_adaplr.storage import lease
from ray_adaplr.storage.folder import PATIENCE, Folder
from ray_adaplr.storage.layout import METRICS
from ray_adaplr.storage.metrics import parse_lines
from ray_adaplr.storage.run_reader import read_run

Run = Callable[..., Result]


@pytest.fixture
def run(
    source_model: Classifier,
    digit_stores: dict[str, ImageStore],
    small_config: Config,
    unrendered: None,
) -> Run:
    """Adapts as `straight_run` did, into a folder of the bucket."""

    def adapt_there(uri: str, config: Config = small_config, **options: Any) -> Result:
        return adapt(RunPlan([source_model], digit_stores["optdigits"], uri, config, LOCAL), **options)

    return adapt_there


def test_a_run_in_a_bucket_gives_the_bits_of_one_on_a_disk_and_is_done_when_called_again(
    run: Run, s3: S3Place, straight_run: Result
) -> None:
    uri = s3.uri()
    result = run(uri)
    assert bits(result) == bits(straight_run)
    assert [line["epoch"] for line in result.metrics] == [line["epoch"] for line in straight_run.metrics]
    assert read_run(uri).finished
    assert ".lease" not in s3.keys(uri), "the lease was given back"
    before = s3.keys(uri)
    s3.forget()
    assert bits(run(uri)) == bits(straight_run)
    assert s3.keys(uri) == before
    assert s3.requests.total() < 60


def test_a_run_that_was_cut_off_in_a_bucket_resumes_to_the_same_bits(
    run: Run, s3: S3Place, straight_run: Result
) -> None:
    uri, seen = s3.uri(), list[int]()

    def kill(line: dict[str, Any]) -> None:
        seen.append(line["epoch"])
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(uri, watch=kill)
    result = run(uri, watch=kill)
    assert seen[:3] == [0, 1, 2]
    assert seen[3] > 0, "it began with a checkpoint"
    assert bits(result) == bits(straight_run)
    assert [line["epoch"] for line in result.metrics if line["stage"] == "refine"] == [0, 1, 2, 3]


def test_every_epoch_of_a_target_model_whose_training_was_cut_off_is_in_the_bucket(
    run: Run, s3: S3Place, small_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, config, train = s3.uri(), small_config.model_copy(update={"distill_epochs": 7}), supervised.train

    def cut_off(*what: Any) -> Iterator[tuple[int, float]]:
        for epoch, loss in train(*what):
            yield epoch, loss
            if epoch == 5:
                raise KeyboardInterrupt

    def epochs() -> list[int]:
        lines = parse_lines(Folder(uri).read(METRICS))
        return [line["epoch"] for line in lines if line["stage"] == "distill"]

    with monkeypatch.context() as patch:
        patch.setattr(supervised, "train", cut_off)
        with pytest.raises(KeyboardInterrupt):
            run(uri, config)
    assert epochs() == [0, 1, 2, 3, 4, 5]
    run(uri, config)
    assert epochs() == [0, 1, 2, 3, 4, 5, 6]


def test_two_runs_at_once_in_one_folder_of_a_bucket_are_one(
    run: Run, s3: S3Place, straight_run: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SECONDS", 12.0)  # renewed every three: the sign of life that the second waits for
    uri, refused = s3.uri(), list[str]()

    def start_second(line: dict[str, Any]) -> None:
        if line["epoch"] == 1:
            with pytest.raises(InputError, match="in use by a live run"):
                run(uri)
            refused.append("yes")

    assert bits(run(uri, watch=start_second)) == bits(straight_run)
    assert refused == ["yes"]


@pytest.mark.parametrize("fault", ["503", "cut"])
def test_an_outage_of_some_seconds_is_waited_for(fault: Any, run: Run, s3: S3Place, straight_run: Result) -> None:
    def outage(line: dict[str, Any]) -> None:
        if line["epoch"] == 1:
            s3.fault = fault
            threading.Timer(2.0, lambda: setattr(s3, "fault", None)).start()

    assert bits(run(s3.uri(), watch=outage)) == bits(straight_run)


@pytest.mark.slow
def test_lost_credentials_end_the_run_and_it_goes_on_when_they_are_back(
    run: Run, s3: S3Place, straight_run: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SECONDS", 8.0)  # without credentials the lease cannot be given back, and has to end
    uri = s3.uri()

    def lose(line: dict[str, Any]) -> None:
        if line["epoch"] == 2:
            s3.fault = "denied"

    started = time.monotonic()
    with pytest.raises(OSError, match=r"(?i)access.?denied|403"):
        run(uri, watch=lose)
    assert time.monotonic() - started < PATIENCE, "a refusal is not waited for"
    s3.fault = None
    assert bits(run(uri)) == bits(straight_run)


def test_an_epoch_in_a_bucket_takes_few_requests(
    run: Run, s3: S3Place, small_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SECONDS", 3600.0)  # how often it is renewed depends on how long an epoch takes
    counts = {}
    for epochs in (2, 4):
        s3.forget()
        run(s3.uri(), small_config.model_copy(update={"epochs": epochs}), until="refine")
        counts[epochs] = s3.requests.total()
    assert (counts[4] - counts[2]) / 2 <= 32, s3.requests  # 79 when every write made its folders again, in three parts
