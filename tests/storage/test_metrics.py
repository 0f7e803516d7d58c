"""metrics.jsonl grows by what is new, and holds no line twice."""

import json
from pathlib import Path

import pytest
from s3_server import S3Place

from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.layout import METRICS
from ray_adaplr.storage.metrics import Line, MetricsLog, parse_lines


def line(epoch: int, stage: str = "refine", **more: int) -> Line:
    return {"stage": stage, "epoch": epoch, **more}


@pytest.fixture(params=["local", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return Folder(tmp_path if request.param == "local" else request.getfixturevalue("s3").uri())


def written(folder: Folder) -> list[Line]:
    return parse_lines(folder.read(METRICS))


def test_lines_come_back_and_a_repeated_epoch_takes_the_place_of_what_followed_it(folder: Folder) -> None:
    log = MetricsLog(folder)
    for epoch in range(5):
        log.append(line(epoch))
    log.close()
    resumed = MetricsLog(folder)
    for epoch in (3, 4):
        resumed.append(line(epoch, again=1))
    resumed.append(line(0, "distill"))
    resumed.close()
    epochs = [line(0), line(1), line(2), line(3, again=1), line(4, again=1)]
    assert written(folder) == [*epochs, line(0, "distill")]


def test_what_a_bucket_does_not_hold_yet_is_in_the_list_that_checkpoints_carry(s3: S3Place) -> None:
    folder, unwritten = Folder(s3.uri()), list[Line]()
    log = MetricsLog(folder, unwritten)
    for epoch in range(31):
        log.append(line(epoch))
        assert [*written(folder), *unwritten] == [line(e) for e in range(epoch + 1)]
    kept = list(unwritten)  # a checkpoint's; then the process is killed
    assert kept, "31 lines are not all worth a write"
    resumed = MetricsLog(folder, kept)
    resumed.append(line(31))
    assert written(folder) == [line(e) for e in range(32)]


def test_a_bucket_is_written_to_seldom_and_a_disk_by_the_line(s3: S3Place, tmp_path: Path) -> None:
    log = MetricsLog(Folder(s3.uri()))
    s3.forget()
    for epoch in range(100):
        log.append(line(epoch))
    assert s3.requests["PUT"] < 35
    local = MetricsLog(Folder(tmp_path))
    local.append(line(0))
    inode = (tmp_path / METRICS).stat().st_ino
    for epoch in range(1, 100):
        local.append(line(epoch))
    assert (tmp_path / METRICS).stat().st_ino == inode, "rewriting would have replaced the file"


def test_a_line_that_was_cut_off_is_dropped_and_the_next_one_starts_on_its_own(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text(json.dumps(line(0)) + '\n{"stage": "refi')
    log = MetricsLog(Folder(tmp_path))
    log.append(line(1))
    log.append(line(2))
    assert (tmp_path / METRICS).read_text().splitlines() == [json.dumps(line(e)) for e in range(3)]
