"""metrics.jsonl grows by what is new, and holds no epoch twice."""

import json
from pathlib import Path

import pytest

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
    resumed = MetricsLog(folder)
    for epoch in (3, 4):
        resumed.append(line(epoch, again=1))
    resumed.append(line(0, "distill"))
    epochs = [line(0), line(1), line(2), line(3, again=1), line(4, again=1)]
    assert written(folder) == [*epochs, line(0, "distill")]


def test_a_disk_is_written_to_by_the_line(tmp_path: Path) -> None:
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
