"""The loop of refinement: what waits for what."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from ray_adaplr.config import Config
from ray_adaplr.engine.checkpoint import Checkpoints, FileRecord
from ray_adaplr.engine.ensemble import Receipts
from ray_adaplr.stages.refine import EpochOutcome, Rules, new_state, refine
from ray_adaplr.storage.folder import Folder


class Noted:
    """An ensemble of one member that notes what is asked of it, and always votes the same."""

    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    def start(self, epoch: int, labels: np.ndarray, snapshot: bool) -> None:
        self.seen.append(f"start {epoch}")

    def collect(self) -> dict[int, np.ndarray]:
        self.seen.append("collect")
        return {0: np.eye(4, dtype=np.float32)}

    def save(self, epoch: int) -> Receipts:
        def receipts() -> list[FileRecord | None]:
            self.seen.append(f"checkpoint {epoch}")
            return [None]

        return receipts

    def models(self) -> dict[int, Any]:
        return {}

    def close(self) -> None: ...


FIGURES_FIRST = "start 0,collect,figures 0,start 1,checkpoint 0,collect,figures 1,checkpoint 1"
FIGURES_BESIDE = "start 0,collect,start 1,figures 0,checkpoint 0,collect,figures 1,checkpoint 1"


@pytest.mark.parametrize(("stop", "order"), [("epochs", FIGURES_BESIDE), ("auto", FIGURES_FIRST)])
def test_the_next_epoch_starts_before_the_figures_of_the_last_unless_they_decide_about_it(
    stop: Literal["epochs", "auto"], order: str, tmp_path: Path
) -> None:
    seen: list[str] = []

    def figures(outcome: EpochOutcome) -> dict[str, Any]:
        seen.append(f"figures {outcome.epoch}")
        return {"epoch": outcome.epoch, "infomax": 0.0, "reassigned": 0.5}

    config = Config(epochs=2, n_e=1, warmup=0, stop=stop).resolve(4)
    even = torch.full((4,), 0.25)
    state = new_state(np.arange(4), 4, config)
    refine(Noted(seen), state, Rules(config, even, even), Checkpoints(Folder(tmp_path)), figures)
    assert ",".join(seen) == order
