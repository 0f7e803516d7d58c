"""TensorBoard over tensorboardX: a few milliseconds per epoch, and a resumed run goes on in the same curves."""

import time
from pathlib import Path
from typing import Any

import numpy as np
from tensorboardX import SummaryWriter
from tensorboardX.summary import hparams

from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.layout import TENSORBOARD
from ray_adaplr.storage.ownership import clear
from ray_adaplr.storage.run_reader import is_number

GRID, SIDE = 8, 64  # changed images per side, and the pixels kept of each
SHARE_OF_TIME = 0.01  # that pictures may take: encoding one costs 10 to 100 ms, all else of an epoch 2 ms


class BoardWriter:
    """Writes a run's `tensorboard/` folder.

    Args:
        folder: where the event files go.
        first_epoch: the epoch this writer begins with; what a lost attempt wrote from there on is hidden.
    """

    def __init__(self, folder: str | Path, first_epoch: int = 0) -> None:
        # Event files are named by the second: without a suffix a second writer would overwrite the first one's.
        suffix = f".{time.time_ns()}"
        self._writer = SummaryWriter(str(folder), purge_step=first_epoch or None, flush_secs=30, filename_suffix=suffix)
        self._began, self._spent = time.monotonic(), 0.0

    def epoch(
        self, record: dict[str, Any], confidence: np.ndarray | None = None, changed: np.ndarray | None = None
    ) -> None:
        """Writes an epoch.

        Args:
            record: its line of metrics.jsonl; every number becomes a scalar.
            confidence: of all labels, [n].
            changed: some of the images that were relabelled, uint8 [k, h, w, c]; left out where time is short.
        """
        stage, step = record.get("stage", "refine"), record["epoch"]
        for name, value in record.items():
            if name != "epoch" and is_number(value):
                self._writer.add_scalar(f"{stage}/{name}", value, step)
        if confidence is not None:
            self._writer.add_histogram(f"{stage}/confidence", confidence, step, bins=np.linspace(0, 1, 31))
        start = time.monotonic()
        if changed is not None and len(changed) and self._spent <= SHARE_OF_TIME * (start - self._began):
            self._writer.add_image(f"{stage}/changed", image_grid(changed), step, dataformats="HWC")
            self._spent += time.monotonic() - start

    def close(self) -> None:
        """Writes what is still in the queue."""
        self._writer.close()


def write_outcome(run: Folder, settings: dict[str, Any], summary: dict[str, Any]) -> None:
    """Writes a local run's hyper-parameters beside its outcome, for the HPARAMS tab; in place of an earlier one's."""
    clear(run, (f"{TENSORBOARD}/outcome/events.out.tfevents.*",))
    chosen = {key: value if isinstance(value, bool | int | float) else str(value) for key, value in settings.items()}
    outcome = {f"outcome/{key}": value for key, value in summary.items() if is_number(value)}
    with SummaryWriter(run.path(f"{TENSORBOARD}/outcome")) as writer:
        for part in hparams(chosen, outcome):
            writer.file_writer.add_summary(part)
        for name, value in outcome.items():
            writer.add_scalar(name, value)


def image_grid(images: np.ndarray) -> np.ndarray:
    """The first images [k, h, w, c] as one picture, row by row, [rows·(h+1), columns·(w+1), c]."""
    step = -(-max(images.shape[1:3]) // SIDE)
    images = np.pad(images[: GRID * GRID, ::step, ::step], ((0, 0), (0, 1), (0, 1), (0, 0)))
    count, height, width, channels = images.shape
    columns = min(GRID, count)
    rows = -(-count // columns)
    canvas = np.zeros((rows * columns, height, width, channels), images.dtype)
    canvas[:count] = images
    grid = canvas.reshape(rows, columns, height, width, channels).swapaxes(1, 2)
    return grid.reshape(rows * height, columns * width, channels)
