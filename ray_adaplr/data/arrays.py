"""Sources made of arrays: npz, MNIST's idx, USPS (libsvm, HDF5), SVHN and Synthetic-Digits (.mat), Parquet."""

import bz2
import gzip
import json
import re
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ray_adaplr.data.decode import Picture
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.pictures import Pictures, domain_and_split, name_labels, need_file, row_ids
from ray_adaplr.errors import InputError

DIGITS = [str(digit) for digit in range(10)]


def from_npz(path: Path, options: PrepareOptions, split: str) -> Pictures:
    """`images` and, if there, `labels`; or the same for a split: `train_images`, `x_train`."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            pairs = [("images", "labels"), (f"{split}_images", f"{split}_labels"), (f"x_{split}", f"y_{split}")]
            names = next((pair for pair in pairs if pair[0] in arrays), None)
            if names is None:
                raise InputError(f"{path} has no array `images` (it has {', '.join(arrays)}); name it so")
            images = _as_uint8_nhwc(arrays[names[0]], path)
            labels = arrays[names[1]].reshape(-1) if names[1] in arrays else None
    except (zipfile.BadZipFile, ValueError, EOFError, OSError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read as npz ({error})") from error
    domain, written = domain_and_split(path.stem)
    return _labelled(images, labels, options.classes, domain, written or (split if names[0] != "images" else None))


def _as_uint8_nhwc(images: np.ndarray, path: Path) -> np.ndarray:
    """Arrays of any usual layout as uint8 [n, h, w] or [n, h, w, 1 or 3]."""
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[3] not in (1, 3):
        images = images.transpose(0, 2, 3, 1)
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] not in (1, 3)) or not len(images):
        raise InputError(f"{path} has images of shape {images.shape}; [n, h, w] or [n, h, w, 1 or 3] is needed")
    if images.dtype.kind not in "iuf" or not (images.min() >= 0 and images.max() <= 255):  # NaN is not either
        raise InputError(f"{path} has {images.dtype} images beyond 0..255; give uint8, or floats from 0 to 1")
    if images.dtype.kind == "f":
        images = np.rint(images * (255 if images.max() <= 1 else 1))
    return images.astype(np.uint8)


def _labelled(
    images: np.ndarray, labels: np.ndarray | None, classes: Sequence[str] | None, domain: str, split: str | None
) -> Pictures:
    if labels is None:
        return Pictures(row_ids(len(images)), images, None, list(classes or []), domain, split)
    if len(labels) != len(images):
        raise InputError(f"{domain} has {len(images)} images but {len(labels)} labels; one for each is needed")
    if labels.min() < 0:
        raise InputError(f"{domain} has a label {labels.min()}; labels are numbers from 0")
    names = list(classes or [str(number) for number in range(int(labels.max()) + 1)])
    if labels.max() >= len(names):
        raise InputError(f"{domain} has a label {labels.max()} but {len(names)} classes are given; numbers start at 0")
    return Pictures(row_ids(len(images)), images, labels.astype(np.int64), names, domain, split)


def from_idx(path: Path) -> Pictures:
    """MNIST as published: `train-images-idx3-ubyte(.gz)` with `train-labels-idx1-ubyte(.gz)`; t10k is test."""
    labels = need_file(path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1")), "the labels")
    split = "test" if path.name.startswith("t10k") else "train"
    return _labelled(_read_idx(path, 3), _read_idx(labels, 1), DIGITS, "mnist", split)


def _read_idx(path: Path, dimensions: int) -> np.ndarray:
    try:
        content = (gzip.open if path.suffix == ".gz" else open)(path, "rb").read()
        if content[:4] != bytes([0, 0, 8, dimensions]):
            raise InputError(f"{path} does not start like an idx file of bytes with {dimensions} dimensions")
        shape = np.frombuffer(content, ">i4", dimensions, 4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    except InputError:
        raise
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{path} is damaged ({error}); fetch it again") from error


def from_usps_libsvm(path: Path) -> Pictures:
    """USPS as libsvm text: `usps.bz2` (train) and `usps.t.bz2` (test); labels 1..10, pixels −1..1."""
    try:
        lines = bz2.decompress(path.read_bytes()).decode().replace(":", " ").splitlines()
        rows = [np.array(line.split(), float) for line in lines]  # label, index, value, index, value, …
        labels = np.array([row[0] - 1 for row in rows])
        pixels = np.zeros((len(rows), 256))
        for image, row in zip(pixels, rows):
            image[row[1::2].astype(int) - 1] = row[2::2]
    except (OSError, ValueError, IndexError) as error:
        raise InputError(f"{path} is no USPS file in libsvm format ({error})") from error
    images = ((pixels + 1) / 2 * 255).round().clip(0, 255).astype(np.uint8).reshape(-1, 16, 16)
    return _labelled(images, labels, DIGITS, "usps", "test" if path.name.endswith(".t.bz2") else "train")


def from_usps_h5(path: Path, split: str) -> Pictures:
    """USPS as HDF5: `train/data`, `train/target` and the same for test; pixels 0..1."""
    try:
        import h5py
    except ImportError as error:
        raise InputError(f"{path} needs h5py to be read; `pip install h5py`") from error
    try:
        with h5py.File(path) as file:
            pixels, labels = np.asarray(file[split]["data"]), np.asarray(file[split]["target"])
    except (OSError, KeyError) as error:
        raise InputError(f"{path} has no {split}/data and {split}/target as USPS has ({error})") from error
    images = np.rint(pixels.reshape(-1, 16, 16) * 255).clip(0, 255).astype(np.uint8)
    return _labelled(images, labels, DIGITS, "usps", split)


def from_mat(path: Path, split: str) -> Pictures:
    """SVHN (`train_32x32.mat`) and Synthetic-Digits (`synth_train_32x32.mat`, `syn_number.mat`).

    SVHN writes the digit 0 as class 10.
    """
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise InputError(f"{path} needs scipy to be read; `pip install scipy`") from error
    try:
        content: dict[str, Any] = loadmat(str(path))
    except Exception as error:  # scipy has a dozen ways to fail on a foreign file
        raise InputError(f"{path} is no .mat file that scipy can read ({str(error).splitlines()[0]})") from error
    domain = "synth" if path.name.startswith("syn") else "svhn"
    if "X" in content and "y" in content:
        pixels, labels = np.moveaxis(content["X"], -1, 0), content["y"]  # published as [h, w, c, n]
        named = re.search("train|test|extra", path.stem)
        split = named[0] if named else split
    elif f"{split}_data" in content:
        pixels, labels = content[f"{split}_data"], content[f"{split}_label"]
    else:
        raise InputError(f"{path} has neither X and y nor {split}_data; is it SVHN or Synthetic-Digits?")
    labels = labels.reshape(-1).astype(np.int64)
    return _labelled(_as_uint8_nhwc(pixels, path), np.where(labels == 10, 0, labels), DIGITS, domain, split)


class ParquetImages(Sequence[Picture]):
    """The image column of Parquet files, read a row group at a time, so that memory stays bounded."""

    def __init__(self, files: list[Path], column: str, root: Path):
        self.files, self.column, self.root = files, column, root
        footers = [(file, pq.read_metadata(file)) for file in files]
        self.groups = [(file, group) for file, footer in footers for group in range(footer.num_row_groups)]
        counts = [footer.row_group(group).num_rows for _, footer in footers for group in range(footer.num_row_groups)]
        self.ends = np.cumsum([0, *counts])[1:]

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        group = int(np.searchsorted(self.ends, index, "right"))
        rows = _row_group(*self.groups[group], self.column)
        value = rows[int(index - self.ends[group]) + len(rows)].as_py()
        if isinstance(value, dict):  # Hugging Face: {"bytes": …, "path": …}
            value = value["bytes"] if value.get("bytes") is not None else value["path"]
        if value is None:
            raise ValueError("empty cell")
        return str(self.root / value) if isinstance(value, str) else value


@lru_cache(maxsize=4)
def _row_group(file: Path, group: int, column: str) -> pa.ChunkedArray:
    return pq.ParquetFile(file).read_row_group(group, columns=[column]).column(column)


def from_parquet(path: Path, options: PrepareOptions, split: str) -> Pictures:
    """Parquet with a column of image bytes, of paths, or Hugging Face's {bytes, path}, and perhaps `label` and `id`.

    Of a folder those files that a split's name begins, or all, where none is named so.
    """
    files = sorted(path.glob(f"{split}*.parquet")) or sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    try:
        schema = pq.read_schema(files[0])
        column = next((name for name in ("image", "img", "bytes", "path", "file_name") if name in schema.names), None)
        if column is None:
            raise InputError(f"{files[0]} has no column `image` (it has {', '.join(schema.names)}); name it so")
        label = next((name for name in ("label", "labels", "class") if name in schema.names), None)
        images = ParquetImages(files, column, Path(options.root) if options.root else files[0].parent)
        wanted = [name for name in ("id", label) if name in schema.names]
        table = pa.concat_tables([pq.read_table(file, columns=wanted) for file in files]) if wanted else None
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet ({str(error).splitlines()[0]})") from error
    if not len(images):
        raise InputError(f"{path} holds no row; a store needs at least one image")
    ids = [str(value) for value in table["id"].to_pylist()] if table and "id" in wanted else row_ids(len(images))
    written = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    names = written.get("info", {}).get("features", {}).get(label, {}).get("names")
    classes = list(options.classes or names or [])
    source = Pictures(ids, images, None, classes, *domain_and_split(path.stem))
    values: list[Any] = table[label].to_pylist() if table and label else [None]
    if any(value is None or value == -1 for value in values):  # Hugging Face writes -1 where the label is unknown
        return source
    if names and all(isinstance(value, int) for value in values):
        values = [names[value] for value in values]
    labels, known, kept = name_labels(values, [""] * len(values), classes, options.subset)
    source = source if len(kept) == len(ids) else source.subset(kept)
    return replace(source, labels=labels, classes=known)
