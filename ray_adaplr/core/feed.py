"""How images get to a network: in which slices, and from where."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ray_adaplr.core import devices

Read = Callable[[np.ndarray], np.ndarray]  # sample numbers -> uint8 images [b, h, w, c]
_PIECE = 32 << 20  # bytes of images that go to a device's cache at once, and are pinned meanwhile


def cached_images(
    read: Read, count: int, device: str, wanted: Literal["auto", "on", "off"], share: float = 1.0
) -> Tensor | None:
    """All images on the device, uint8 [count, h, w, c], or None.

    `auto` is on where a fifth of this process's `share` of a GPU's free memory holds them. A store is memory-mapped,
    so a CPU gains nothing.
    """
    shape = read(np.arange(1)).shape[1:]
    if wanted == "off" or (wanted == "auto" and device == "cpu"):
        return None
    if wanted == "auto" and 5 * count * math.prod(shape) > share * devices.free_memory(device):
        return None
    images = torch.empty((count, *shape), dtype=torch.uint8, device=device)
    for rows in even_slices(count, max(1, _PIECE // math.prod(shape))):
        images[rows] = devices.send(torch.from_numpy(read(np.arange(rows.start, rows.stop))), images.device)
    return images


def even_slices(n: int, batch_size: int) -> Iterator[slice]:
    """ceil(n / batch_size) slices whose sizes differ by one at most: no tiny last batch, on which BatchNorm fails."""
    batches = max(1, -(-n // batch_size))
    bounds = [n * i // batches for i in range(batches + 1)]
    return (slice(a, b) for a, b in itertools.pairwise(bounds))
