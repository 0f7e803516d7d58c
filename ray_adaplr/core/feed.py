"""How images get to a network: in which slices, gathered by whom, and whether they stay on the device."""

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ray_adaplr.core import devices

Read = Callable[[np.ndarray], np.ndarray]  # sample numbers -> uint8 images [b, h, w, c]
Images = Read | Tensor  # who gives them, or all of them by sample number on the device, uint8 [N, h, w, c]
_PIECE = 32 << 20  # bytes of images that go to a device's cache at once, and are pinned meanwhile
_AHEAD = 2  # batches that wait; a third would only help a reader whose pauses are longer than two steps


def batches(images: Images, parts: Iterable[np.ndarray], device: torch.device) -> Iterator[Tensor]:
    """The images of each part on the device, uint8 [b, h, w, c]; a thread gathers the next ones beside the steps.

    On a device with its own memory they go there from pinned memory. Torch keeps what it has pinned for the next
    batch, and does not hand it out before the copy from it has ended.
    """
    if isinstance(images, Tensor):
        yield from (images[torch.from_numpy(part).to(device)] for part in parts)
        return
    read = images

    def gather(part: np.ndarray) -> Tensor:
        return devices.pinned(torch.from_numpy(read(part)), device)

    waiting: deque[Future[Tensor]] = deque()
    with ThreadPoolExecutor(1, "gather") as thread:
        try:
            for part in parts:
                waiting.append(thread.submit(gather, part))
                if len(waiting) > _AHEAD:
                    yield waiting.popleft().result().to(device, non_blocking=True)
            while waiting:
                yield waiting.popleft().result().to(device, non_blocking=True)
        finally:  # also where a step failed
            for future in waiting:
                future.cancel()


@dataclass(frozen=True)
class DeviceCache:
    """Whether images are kept on the device, as the process that trains finds out where it is.

    `auto` is on where a fifth of this process's `share` of a GPU's free memory holds them. A store is memory-mapped,
    so a CPU gains nothing.
    """

    wanted: Literal["auto", "on", "off"] = "auto"
    share: float = 1.0  # of the accelerator that is this process's

    def of(self, read: Read, count: int, device: str) -> Tensor | None:
        """All images on the device, uint8 [count, h, w, c], or None."""
        if self.wanted == "off" or (self.wanted == "auto" and device == "cpu"):
            return None
        shape = read(np.arange(1)).shape[1:]
        if self.wanted == "auto" and 5 * count * math.prod(shape) > self.share * devices.free_memory(device):
            return None
        images = torch.empty((count, *shape), dtype=torch.uint8, device=device)
        for rows in even_slices(count, max(1, _PIECE // math.prod(shape))):
            piece = torch.from_numpy(read(np.arange(rows.start, rows.stop)))
            images[rows] = devices.pinned(piece, images.device).to(images.device, non_blocking=True)
        return images


USUAL_CACHE = DeviceCache()


def even_slices(n: int, batch_size: int) -> Iterator[slice]:
    """ceil(n / batch_size) slices whose sizes differ by one at most: no tiny last batch, on which BatchNorm fails.

    Where batches of two would leave one image alone, one of them has three.
    """
    batches = -(-n // batch_size)
    if batch_size > 1:
        batches = min(batches, n // 2)
    batches = max(1, batches)
    bounds = [n * i // batches for i in range(batches + 1)]
    return (slice(a, b) for a, b in itertools.pairwise(bounds))
