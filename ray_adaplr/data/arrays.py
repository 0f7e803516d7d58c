"""Pictures that are arrays: npz, MNIST's idx, USPS in libsvm's format, SVHN and Synthetic-Digits (.mat)."""

import gzip
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ray_adaplr.data.labels import labelled
from ray_adaplr.data.options import DIGITS, PrepareOptions
from ray_adaplr.data.pictures import Pictures, domain_and_split, reading, row_ids
from ray_adaplr.errors import InputError, need

ROUNDING = 1e-3  # how far floats from 0 to 1 may lie beyond: white that was resized is 1.0000001


def from_npz(path: Path, options: PrepareOptions, split: str) -> Pictures:
    """`images` and, if there, `labels`; or the same for a split: `train_images`, `x_train`."""
    with reading(path, "npz"), np.load(path, allow_pickle=False) as arrays:
        pairs = [("images", "labels"), (f"{split}_images", f"{split}_labels"), (f"x_{split}", f"y_{split}")]
        names = next((pair for pair in pairs if pair[0] in arrays), None)
        if names is None:
            raise InputError(f"{path} has no array `images` (it has {', '.join(arrays)}); name it so")
        images = as_uint8_nhwc(arrays[names[0]], str(path))
        labels = arrays[names[1]].reshape(-1) if names[1] in arrays else None
    domain, named = domain_and_split(path.stem)
    return from_array(images, labels, domain, named or (split if names[0] != "images" else None), options)


def as_uint8_nhwc(images: np.ndarray, where: str) -> np.ndarray:
    """Arrays of any usual layout as uint8 [n, h, w] or [n, h, w, 1 or 3]; `where` is their name in a sentence."""
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[3] not in (1, 3):
        images = images.transpose(0, 2, 3, 1)
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] not in (1, 3)) or not images.size:
        raise InputError(f"{where} has images of shape {images.shape}; [n, h, w] or [n, h, w, 1 or 3] is needed")
    if images.dtype.kind not in "iuf":
        raise InputError(f"{where} has images of the type {images.dtype}; give uint8, or floats from 0 to 1")
    slack = ROUNDING if images.dtype.kind == "f" else 0
    if not (images.min() >= -slack and images.max() <= 255):  # NaN is not either
        raise InputError(
            f"{where} has {images.dtype} images beyond 0..255; give uint8, or floats from 0 to 1, not normalised"
        )
    if images.dtype.kind == "f":
        images = np.rint(images.clip(0, 1) * 255 if ends_at_one(images, where) else images.clip(0))
    return images.astype(np.uint8)


def ends_at_one(images: np.ndarray, where: str) -> bool:
    """Whether floats run from 0 to 1, and not to 255; InputError where that cannot be told."""
    highest = images.max()
    if 1 + ROUNDING < highest <= 2:
        raise InputError(
            f"{where} has floats up to {highest:.4g}, which may be of 0..1 or of 0..255; clip them to 0..1, or give "
            "uint8"
        )
    return bool(highest <= 1 + ROUNDING)


def from_array(
    images: np.ndarray,
    labels: Sequence[Any] | np.ndarray | None,
    domain: str,
    split: str | None,
    options: PrepareOptions,
) -> Pictures:
    """Pixels with labels of any kind, or none."""
    pictures = Pictures(row_ids(len(images)), images, None, list(options.classes or []), domain, split)
    return pictures if labels is None else labelled(pictures, labels, domain, options)


def of_digits(options: PrepareOptions) -> PrepareOptions:
    """The options, with the digits as classes unless others are given: Fashion-MNIST has the names of MNIST's files."""
    return options.model_copy(update={"classes": options.classes or DIGITS})


def from_idx(path: Path, options: PrepareOptions) -> Pictures:
    """MNIST as published: `train-images-idx3-ubyte(.gz)` with `train-labels-idx1-ubyte(.gz)`; t10k is test."""
    from torchvision.datasets.mnist import read_image_file, read_label_file

    labels = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    if not labels.is_file():
        raise InputError(f"{labels} is missing; it holds the labels")
    split = "test" if path.name.startswith("t10k") else "train"
    images = _unzipped(path, read_image_file)
    return from_array(images, _unzipped(labels, read_label_file), "mnist", split, of_digits(options))


def _unzipped(path: Path, read: Callable[[str], Any]) -> np.ndarray:
    """What torchvision's reader makes of a file; it does not take the published, compressed one."""
    with reading(path, "an idx file"):
        if path.suffix != ".gz":
            return read(str(path)).numpy()
        with tempfile.NamedTemporaryFile() as plain, gzip.open(path) as packed:
            plain.write(packed.read())
            plain.flush()
            return read(plain.name).numpy()


def from_usps(path: Path, options: PrepareOptions) -> Pictures:
    """USPS as torchvision reads it: `usps.bz2` (train) or `usps.t.bz2` (test), libsvm's text."""
    from torchvision.datasets import USPS

    if path.name not in ("usps.bz2", "usps.t.bz2"):
        raise InputError(f"{path} is of no known kind; of .bz2 files usps.bz2 and usps.t.bz2 are read")
    with reading(path, "USPS in libsvm's format"):
        usps = USPS(str(path.parent), train=path.name == "usps.bz2", download=False)
    split = "train" if path.name == "usps.bz2" else "test"
    return from_array(usps.data, usps.targets, "usps", split, of_digits(options))


def from_mat(path: Path, options: PrepareOptions, split: str) -> Pictures:
    """SVHN (`train_32x32.mat`) and Synthetic-Digits (`synth_train_32x32.mat`, `syn_number.mat`).

    An own reader: torchvision's takes no file but the published one of SVHN, and knows no Synthetic-Digits.
    """
    scipy_io = need(str(path), "demo", "scipy.io")
    with reading(path, "a .mat file"):
        content: dict[str, Any] = scipy_io.loadmat(str(path))
    domain = "synth" if path.name.startswith("syn") else "svhn"
    with reading(path, "SVHN or Synthetic-Digits"):
        if "X" in content:
            pixels, labels = np.moveaxis(content["X"], -1, 0), content["y"]  # published as [h, w, c, n]
            named = re.search("train|test|extra", path.stem)
            split = named[0] if named else split
        else:
            pixels, labels = content[f"{split}_data"], content[f"{split}_label"]
        numbers = labels.reshape(-1).astype(np.int64) % 10  # SVHN writes the digit 0 as class 10
    images = as_uint8_nhwc(pixels, str(path))
    return from_array(images, numbers, domain, split, of_digits(options))
