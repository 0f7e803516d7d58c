"""TensorBoard over tensorboardX: a few milliseconds per epoch, and a resumed run continues in the same curves."""

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

SIDE = 64  # pixels kept of a side of each picture
SHARE_OF_TIME = 0.01  # that pictures may take: encoding one costs 10 to 100 ms, all else of an epoch 2 ms


class BoardWriter:
    """Writes a run's `tensorboard/` folder; what a lost attempt wrote from `first_epoch` on is hidden."""

    def __init__(self, folder: str | Path, first_epoch: int = 0) -> None:
        # Event files are named by the second: without a suffix a second writer would overwrite the first one's.
        suffix = f".{time.time_ns()}"
        self._writer = SummaryWriter(str(folder), purge_step=first_epoch or None, flush_secs=30, filename_suffix=suffix)
        self._began, self._spent = time.monotonic(), 0.0

    def epoch(
        self, record: dict[str, Any], confidence: np.ndarray | None = None, changed: np.ndarray | None = None
    ) -> None:
        """Writes an epoch: every number of its line of metrics.jsonl, the confidence of all labels [n], and pictures.

        Those are images that were relabelled, uint8 [k, h, w, c]; they are left out where time is short.
        """
        stage, step = record.get("stage", "refine"), record["epoch"]
        for name, value in record.items():
            if name != "epoch" and is_number(value):
                self._writer.add_scalar(f"{stage}/{name}", value, step)
        if confidence is not None:
            self._writer.add_histogram(f"{stage}/confidence", confidence, step, bins=np.linspace(0, 1, 31))
        start = time.monotonic()
        if changed is not None and len(changed) and self._spent <= SHARE_OF_TIME * (start - self._began):
            every = -(-max(changed.shape[1:3]) // SIDE)
            self._writer.add_images(f"{stage}/changed", changed[:, ::every, ::every], step, dataformats="NHWC")
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
