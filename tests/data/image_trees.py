"""Small trees of images with the names and layouts of the published datasets."""

import bz2
import gzip
from pathlib import Path

import numpy as np
from PIL import Image


def picture(seed: int, size=(20, 16), mode="RGB") -> Image.Image:
    """A smooth picture, so that JPEG and scaling keep its colours."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (2, 2, 3), dtype=np.uint8))
    return small.resize(size, Image.Resampling.BILINEAR).convert(mode)


def save(path: Path, image: Image.Image, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def class_folders(root: Path, classes=("cat", "dog"), each=3, suffix="jpg", **options) -> Path:
    for c, name in enumerate(classes):
        for i in range(each):
            save(root / name / f"{i:03d}.{suffix}", picture(100 * c + i, **options))
    return root


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wb") as file:
        file.write(header + array.tobytes())


def write_libsvm(path: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
    lines = [
        f"{label} " + " ".join(f"{i + 1}:{value:.6f}" for i, value in enumerate(row))
        for row, label in zip(pixels, labels)
    ]
    path.write_bytes(bz2.compress("\n".join(lines).encode()))
