"""Images are gathered beside the steps: the same bits, a reader is hidden behind a step, and its errors are not."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from test_device_ready import IMAGES, NEL, SETTINGS, N
from torch import Tensor, nn

from ray_adaplr.core.feed import batches
from ray_adaplr.core.learner import Learner, TrainSettings, Workplace
from ray_adaplr.core.models import Classifier, ModelSpec, build
from ray_adaplr.core.objectives import information_maximisation
from ray_adaplr.core.predict import predict_logits

CPU = torch.device("cpu")
SPEC = ModelSpec(num_classes=7, width=4)


class SmallNetwork(nn.Module):
    """A network that calls a function within each step."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self.head, self.meanwhile = nn.Linear(3, 7), meanwhile

    def forward(self, x: Tensor) -> Tensor:
        self.meanwhile()
        return self.head(x.mean((2, 3)))


def read(index: np.ndarray) -> np.ndarray:
    return IMAGES[index % N]


def learner(reader: Any, meanwhile: Callable[[], None] = lambda: None, **changes: Any) -> Learner:
    settings = TrainSettings(**{**vars(SETTINGS), "batch_size": 10, **changes})
    network = Classifier(SmallNetwork(meanwhile), SPEC.model_copy(update={"head": "head"}))
    return Learner(network, reader, np.arange(N), settings)


def test_parts_come_in_order_and_as_they_were_read() -> None:
    parts = [np.arange(i, i + 4) for i in range(0, N, 4)]
    for images in (read, torch.from_numpy(IMAGES)):
        found = list(batches(images, iter(parts), CPU))
        assert [np.array_equal(seen, IMAGES[part]) for seen, part in zip(found, parts, strict=True)] == [True] * 10


def test_at_most_three_parts_are_gathered_ahead() -> None:
    asked: list[int] = []
    feed = batches(lambda index: (asked.append(int(index[0])), read(index))[1], iter(np.arange(N).reshape(N, 1)), CPU)
    for taken in range(1, 5):
        next(feed)
        deadline = time.monotonic() + 60
        while len(asked) < taken + 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.01)  # a part too many would be gathered at once
        assert asked == list(range(taken + 2))
    feed.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("gather")]


def test_the_next_images_are_read_beside_a_step() -> None:
    """Each step waits for the reader to be at the next batch: one by one, the first step would wait in vain."""
    batch, steps = 10, N // 10
    gathered, taken = threading.Semaphore(0), list[bool]()

    def noted(index: np.ndarray) -> np.ndarray:
        if len(index) == batch:
            gathered.release()
        return read(index)

    def step() -> None:
        needed = 2 if not taken else 1  # its own batch and the next
        if len(taken) < steps - 1 and all(taken):
            taken.append(all(gathered.acquire(timeout=60) for _ in range(needed)))

    learner(noted, step, augment=None).train_epoch(0, information_maximisation)
    assert taken == [True] * (steps - 1)


def test_an_error_of_the_reader_ends_the_epoch_as_it_is() -> None:
    def broken(index: np.ndarray) -> np.ndarray:
        if len(index) > 1:
            raise OSError("the disk is gone")
        return read(index)

    with pytest.raises(OSError, match="the disk is gone"):
        learner(broken).train_epoch(0, NEL)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("gather")]


def test_a_stop_that_comes_as_the_last_images_are_gathered_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python clears an unfinished feed away by itself, and drops what is raised there."""

    def stopped(pool: ThreadPoolExecutor, wait: bool) -> None:
        raise KeyboardInterrupt

    usual = learner(read)
    with monkeypatch.context() as patch:
        patch.setattr(ThreadPoolExecutor, "shutdown", stopped)
        with pytest.raises(KeyboardInterrupt):
            usual.train_epoch(0, NEL)
        with pytest.raises(KeyboardInterrupt):
            predict_logits(build(SPEC), read, np.arange(N))


def test_a_clean_vote_looks_at_the_images_on_the_device() -> None:
    kept, network = torch.from_numpy(IMAGES), build(SPEC)

    def unread(index: np.ndarray) -> np.ndarray:
        assert len(index) == 1, "only the shape is asked for"
        return read(index)

    one = Learner(network, unread, np.arange(N), SETTINGS, place=Workplace(cache=kept))
    assert np.array_equal(one.predict(), predict_logits(network, read, np.arange(N)))
