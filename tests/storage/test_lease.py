"""One writer per folder, on a disk and in a bucket."""

import contextlib
import logging
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from s3_server import BUCKET, S3Place

from ray_adaplr.errors import InputError, RunFailed
from ray_adaplr.storage import lease
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.lease import hold
from ray_adaplr.storage.ownership import claim


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases that end after four seconds: one of a process that a busy machine holds up is not to end at once."""
    monkeypatch.setattr(lease, "SECONDS", 4.0)


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "new/run") if request.param == "local" else request.getfixturevalue("s3").uri()


@pytest.mark.parametrize("there", [(), ("folder",), ("folder", "run/inferred.parquet")])
def test_what_is_refused_before_any_work_leaves_a_folder_as_it_was(place: str, there: tuple[str, ...]) -> None:
    """Claimed, and then refused: no cluster at the address, too few GPUs. What holds work stays."""
    folder = Folder(place)
    if there and folder.is_local:
        Path(place).mkdir(parents=True)
    for name in there[1:]:
        folder.write(name, "work")
    with contextlib.suppress(InputError), hold(folder) as held:
        claim(held, "run")
        held.write("config.toml", "epochs = 3")
        raise InputError("no cluster")
    left = {".ray-adaplr.json", "config.toml", *there[1:]} if there[1:] else set()
    assert set(Folder(place).files()) - {".lock"} == left
    if folder.is_local:
        assert Path(place).parent.exists() == Path(place).exists() == bool(there)
        assert Path(place, ".lock").exists() == bool(there[1:])


def test_a_lock_that_was_removed_meanwhile_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, tries = tmp_path / ".lock", list[int]()

    def removed_before(*file: Any) -> None:
        tries.append(1)
        if len(tries) == 1:
            lock.unlink()

    monkeypatch.setattr("fcntl.flock", removed_before)
    with hold(Folder(tmp_path)):
        assert lock.read_text().startswith("pid ")
    assert len(tries) == 2


def test_a_second_writer_is_refused_while_the_first_lives_and_let_in_afterwards(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SECONDS", 8.0)  # renewed every two, which is the sign of life
    with hold(Folder(place)) as folder:
        folder.write("a.txt", "first")
        with pytest.raises(InputError, match=r"in use by a live run .*pid"), hold(Folder(place)):
            pytest.fail("two hold one folder")
        folder.write("a.txt", "first again")
    with hold(Folder(place)) as folder:
        folder.write("a.txt", "second")
    assert Folder(place).read("a.txt") == b"second"


@pytest.mark.usefixtures("short")
def test_a_lease_of_a_killed_process_is_taken_over_after_its_end(
    s3: S3Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    uri = s3.uri()
    with monkeypatch.context() as killed:
        killed.setattr(lease._Lease, "_renew", lambda self: None)
        killed.setattr(lease._Lease, "release", lambda self: None)
        with hold(Folder(uri)) as dead:
            dead.write("a.txt", "of the dead")
    started = time.monotonic()
    with caplog.at_level(logging.WARNING), hold(Folder(uri)) as folder:
        assert time.monotonic() - started < 60
        assert "taken over" in caplog.text
        folder.write("a.txt", "of the living")
        with pytest.raises(RunFailed, match=r"the lease on .* is lost"):
            dead.write("a.txt", "of a ghost")
    assert Folder(uri).read("a.txt") == b"of the living"


@pytest.mark.usefixtures("short")
def test_a_holder_whose_lease_was_taken_writes_no_more(s3: S3Place) -> None:
    uri = s3.uri()
    with hold(Folder(uri)) as folder:
        key = f"{folder.base.partition('/')[2]}/.lease"
        s3.client().put_object(Bucket=BUCKET, Key=key, Body=b"another")  # type: ignore[attr-defined]
        with contextlib.suppress(RunFailed):
            while folder.guard:  # until it has noticed
                folder.guard()
                time.sleep(0.05)
        with pytest.raises(RunFailed, match=r"the lease on .* is lost"):
            folder.write("a.txt", "too late")
    assert not Folder(uri).exists("a.txt")
    assert s3.client().get_object(Bucket=BUCKET, Key=key)["Body"].read() == b"another"  # type: ignore[attr-defined]


def test_a_renewal_whose_answer_was_lost_is_still_ones_own(s3: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "SECONDS", 8.0)
    with hold(Folder(s3.uri())) as folder:
        before, holder = s3.requests["PUT"], folder.guard.__self__  # type: ignore[union-attr]
        s3.fault = "lost"
        while s3.requests["PUT"] == before:
            time.sleep(0.05)
        s3.fault, mended = None, time.monotonic()
        while holder._renewed < mended:  # until the next renewal; another's lease would not be renewed
            folder.guard()  # type: ignore[misc]
            time.sleep(0.05)
        folder.write("a.txt", "still mine")


def test_renewals_whose_connection_is_cut_are_told_in_words_once_in_an_outage(
    s3: S3Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lease, "SECONDS", 1.0)
    with hold(Folder(s3.uri())) as folder:
        holder = folder.guard.__self__  # type: ignore[union-attr]
        for outages in (1, 2):
            s3.fault = "cut"
            before = s3.requests["PUT"]
            while s3.requests["PUT"] < before + 7:  # boto3 asks three times for each renewal
                time.sleep(0.05)
            s3.fault, mended = None, time.monotonic()
            while holder._renewed < mended:
                time.sleep(0.05)
            assert caplog.text.count("could not be renewed: cannot write to s3://") == outages


def test_without_boto3_a_run_goes_on_and_says_what_is_missing(
    s3: S3Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with caplog.at_level(logging.WARNING), hold(Folder(s3.uri())) as folder:
        folder.write("a.txt", "written")
    assert caplog.text.count("a second run in this folder would not be noticed") == 1
    assert "ray-adaplr[s3]" in caplog.text
