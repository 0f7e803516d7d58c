"""TensorBoard event files, read back record by record."""

import struct
from pathlib import Path

import numpy as np
from tensorboardX.proto.event_pb2 import Event, SessionLog

from ray_adaplr.report.tensorboard import BoardWriter, write_outcome
from ray_adaplr.storage.folder import Folder


def events(folder: Path) -> list[Event]:
    found = []
    for path in sorted(folder.rglob("events.*")):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            found.append(Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    return found


def write(folder: Path, first_epoch: int = 0) -> None:
    board = BoardWriter(folder, first_epoch)
    images = np.zeros((36, 28, 28, 1), np.uint8)
    record = {"stage": "refine", "epoch": first_epoch, "gamma": 0.5, "confidence_histogram": [1, 2], "members": 3}
    board.epoch(record, np.linspace(0, 1, 100), images)
    board.epoch({"stage": "distill", "epoch": 0, "loss": 0.25})
    board.close()
    write_outcome(
        Folder(folder.parent), {"alpha": 0.9, "preset": "robust", "widths": [1, 2]}, {"target": 0.9, "inferred": None}
    )


def test_scalars_histogram_pictures_and_settings_are_written(tmp_path: Path) -> None:
    write(tmp_path / "tensorboard")
    values = {value.tag: value for event in events(tmp_path) for value in event.summary.value}
    assert values["refine/gamma"].simple_value == 0.5
    assert values["distill/loss"].simple_value == 0.25
    assert values["refine/confidence"].histo.num == 100
    assert values["refine/changed"].image.width == 8 * 28
    assert values["outcome/target"].simple_value == np.float32(0.9)
    assert any("hparams" in tag for tag in values)
    assert "outcome/inferred" not in values


def test_a_resumed_run_hides_what_was_written_beyond_its_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / "tensorboard")
    write(tmp_path / "tensorboard", first_epoch=7)
    assert sum(value.tag == "refine/gamma" for event in events(tmp_path) for value in event.summary.value) == 2
    starts = [event for event in events(tmp_path) if event.session_log.status == SessionLog.START]
    assert [event.step for event in starts] == [7]


def test_pictures_give_way_when_epochs_are_short(tmp_path: Path) -> None:
    board = BoardWriter(tmp_path)
    images = np.random.default_rng(0).integers(0, 256, (64, 28, 28, 3), np.uint8)
    for epoch in range(20):
        board.epoch({"epoch": epoch}, None, images)
    board.close()
    tags = [value.tag for event in events(tmp_path) for value in event.summary.value]
    assert tags.count("refine/changed") < 5


def test_large_images_are_shown_small(tmp_path: Path) -> None:
    board = BoardWriter(tmp_path)
    board.epoch({"epoch": 0}, None, np.zeros((9, 224, 224, 3), np.uint8))
    board.close()
    [picture] = [value.image for event in events(tmp_path) for value in event.summary.value]
    assert (picture.height, picture.width) == (2 * 56, 8 * 56)
