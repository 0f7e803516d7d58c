"""Images are gathered beside the steps: the same bits, a slow reader is hidden, and its errors are not."""

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from test_device_ready import IMAGES, NEL, SETTINGS, N
from torch import Tensor, nn

from ray_adaplr.core.feed import batches
from ray_adaplr.core.learner import Learner, TrainSettings, Workplace, predict_logits
from ray_adaplr.core.models import Classifier, ModelSpec, build
from ray_adaplr.core.objectives import information_maximisation

CPU = torch.device("cpu")
SPEC = ModelSpec(num_classes=7, width=4)


class SlowNetwork(nn.Module):
    """A network whose step takes 60 ms of somebody else's time, as a device's does."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 7)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.06)
        return self.head(x.mean((2, 3)))


def read(index: np.ndarray) -> np.ndarray:
    return IMAGES[index % N]


def slowly(index: np.ndarray) -> np.ndarray:
    time.sleep(0.003 * len(index))
    return read(index)


def learner(reader: Any, **changes: Any) -> Learner:
    settings = TrainSettings(**{**vars(SETTINGS), "batch_size": 10, **changes})
    return Learner(Classifier(SlowNetwork(), SPEC.model_copy(update={"head": "head"})), reader, np.arange(N), settings)


def seconds(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def test_parts_come_in_order_and_as_they_were_read() -> None:
    parts = [np.arange(i, i + 4) for i in range(0, N, 4)]
    for images in (read, torch.from_numpy(IMAGES)):
        found = list(batches(images, iter(parts), CPU))
        assert [np.array_equal(seen, IMAGES[part]) for seen, part in zip(found, parts, strict=True)] == [True] * 10


def test_at_most_three_parts_are_gathered_ahead() -> None:
    asked: list[int] = []
    feed = batches(lambda index: (asked.append(int(index[0])), read(index))[1], iter(np.arange(N).reshape(N, 1)), CPU)
    next(feed)
    time.sleep(0.1)
    assert asked == [0, 1, 2]
    feed.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("gather")]


def test_a_slow_reader_is_hidden_behind_a_slower_step() -> None:
    """The benchmark has the exact figure; here other processes may take the core meanwhile."""

    def epoch(reader: Any) -> float:
        one = learner(reader, augment=None)
        one.samples = np.arange(5 * N)
        return seconds(lambda: one.train_epoch(0, information_maximisation))

    steps = min(epoch(read) for _ in range(2))  # 20 of 60 ms; a batch takes 30 ms to read, so one by one it were 1.5
    assert min(epoch(slowly) for _ in range(2)) / steps < 1.25


def test_an_error_of_the_reader_ends_the_epoch_as_it_is() -> None:
    def broken(index: np.ndarray) -> np.ndarray:
        if len(index) > 1:
            raise OSError("the disk is gone")
        return read(index)

    with pytest.raises(OSError, match="the disk is gone"):
        learner(broken).train_epoch(0, NEL)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("gather")]


def test_a_clean_vote_looks_at_the_images_on_the_device() -> None:
    kept, network = torch.from_numpy(IMAGES), build(SPEC)

    def unread(index: np.ndarray) -> np.ndarray:
        assert len(index) == 1, "only the shape is asked for"
        return read(index)

    one = Learner(network, unread, np.arange(N), SETTINGS, place=Workplace(cache=kept))
    assert np.array_equal(one.predict(), predict_logits(network, read, np.arange(N)))
