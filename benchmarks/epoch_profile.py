"""What an epoch of one member consists of, ours and the plain script's: `python -m benchmarks epoch_profile`.

CPU seconds by part, one torch thread, the network and the images of the speed benchmark's plain-script row, with a
clean pass for the vote on both sides. Both are the real code in this process (the script without loader processes),
whose parts are timed where they begin and end; CPU time hardly depends on what else the machine does. Writes
results/epoch_profile.json.
"""

import contextlib
import io
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.utils.data import dataloader

from benchmarks import RESULTS, command_line, plain_pytorch
from benchmarks.provenance import provenance
from benchmarks.speed_runs import digits_task
from ray_adaplr.config import Config
from ray_adaplr.core import adam, learner
from ray_adaplr.core.models import Classifier
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.member import Member, MemberPlan
from ray_adaplr.storage.models import load_model

OUT, EPOCHS = RESULTS / "epoch_profile.json", 3
Places = list[tuple[Any, str, str]]  # who owns a function, its name there, and the part that it is


class Parts:
    """CPU seconds by part; what a part calls counts as its own, the network's forward in a clean pass too."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._of_thread = threading.local()

    def timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """The function, with its time counted."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._of_thread, "within", False):
                return function(*args, **kwargs)
            self._of_thread.within, started = True, time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self._of_thread.within = False
                self.seconds[part] += time.thread_time() - started

        return call

    @contextlib.contextmanager
    def of(self, places: Places) -> Iterator[None]:
        """Meanwhile these functions are timed, and what is left of the process's time is the rest."""
        with contextlib.ExitStack() as stack:
            for owner, name, part in places:
                stack.enter_context(patch.object(owner, name, self.timed(getattr(owner, name), part)))
            self.seconds.clear()
            started = time.process_time()
            yield
            self.seconds["rest"] = time.process_time() - started - sum(self.seconds.values())


NETWORK: Places = [(Classifier, "forward", "forward"), (torch.Tensor, "backward", "backward")]
OURS: Places = [
    (learner, "apply_plan", "images and augmentation"),
    (learner.Learner, "_plan_augmentation", "images and augmentation"),
    (ImageStore, "read", "images and augmentation"),
    (adam.Adam, "step", "optimiser"),
    (learner, "predict_logits", "clean pass"),
]
THEIRS: Places = [
    (dataloader._BaseDataLoaderIter, "__next__", "images and augmentation"),
    (torch.optim.Adam, "step", "optimiser"),
    (plain_pytorch, "predict", "clean pass"),
]


def ours(store: ImageStore, source: str) -> dict[str, float]:
    """Seconds of a member's epoch by part."""
    config, member, labels = Config(logits_from="clean").resolve(10), Member(), np.arange(len(store)) % 10
    member.setup(MemberPlan(0, config, tuple(store.paths), "cpu", threads=1), load_model(source))
    member.train_epoch(0, labels)  # what happens once
    parts = Parts()
    with parts.of([*NETWORK, *OURS]):
        for epoch in range(1, EPOCHS + 1):
            member.train_epoch(epoch, labels)
    return {part: seconds / EPOCHS for part, seconds in parts.seconds.items()}


def theirs(store: ImageStore, source: str) -> dict[str, float]:
    """The same of one member of the script, whose start is outside its first epoch by little."""
    words, parts = [store.paths[0], source, "--epochs", str(EPOCHS), "--workers", "0"], Parts()
    with contextlib.redirect_stdout(io.StringIO()), parts.of([*NETWORK, *THEIRS]):
        plain_pytorch.main(words)
    return {part: seconds / EPOCHS / Config().n_e for part, seconds in parts.seconds.items()}


def main(arguments: list[str] | None = None) -> None:
    command_line("epoch_profile", __doc__).parse_args(arguments)
    torch.set_num_threads(1)
    store, source = digits_task()
    found = {"ours": ours(store, source), "script": theirs(store, source)}
    OUT.write_text(json.dumps({"provenance": provenance(), "seconds": found}, indent=1) + "\n")
    for name, parts in found.items():
        print(f"{name}: {sum(parts.values()):.3f} s;", ", ".join(f"{k} {v:.3f}" for k, v in sorted(parts.items())))
