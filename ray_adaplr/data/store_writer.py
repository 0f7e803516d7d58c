"""Writing image stores: every file under a temporary name first, the manifest last."""

import io
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ray_adaplr.data.manifest import MANIFEST, FileRecord, Manifest
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError
from ray_adaplr.storage.folder import is_uri

SHARD_BYTES = 64 << 20
TRUTH = "truth.arrow"


@dataclass(frozen=True)
class About:
    """What a store says of itself beside its images.

    Attributes:
        classes: class names, [] when unknown.
        domain: name of the domain.
        split: name of the published split, where there is one.
        recipe: how the store was made; the same recipe is not run twice.
    """

    classes: list[str]
    domain: str
    split: str | None = None
    recipe: dict[str, Any] = field(default_factory=dict)


def write_store(
    path: str | os.PathLike[str],
    batches: Iterable[tuple[list[str], np.ndarray]],
    *,
    classes: list[str],
    domain: str,
    truth: np.ndarray | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> ImageStore:
    """Writes a store from batches of (ids, images) and opens it.

    Args:
        path: the folder to make; it must not hold a store yet.
        batches: ids and uint8 images [b, h, w, c] (or [b, h, w]), in order, all of one shape.
        classes: class names, [] when unknown.
        domain: name of the domain.
        truth: true classes, [n], kept in a file of their own.
        shard_bytes: a shard is closed before it grows beyond this.
    """
    folder = new_store_folder(path)
    shards: list[FileRecord] = []
    seen: set[str] = set()
    shape: tuple[int, ...] = ()
    for ids, images in _regroup(batches, shard_bytes):
        shape = images.shape[1:]
        seen.update(ids)
        shards.append(write_shard(folder, len(shards), ids, images))
    count = sum(shard["count"] for shard in shards)
    if len(seen) != count:
        raise InputError(f"{count - len(seen)} of {count} image ids are repeated; ids must be unique in a store")
    return finish_store(folder, shards, shape, About(list(classes), domain), truth)


def new_store_folder(path: str | os.PathLike[str]) -> Path:
    """Makes the folder of a new store; refuses one that holds a finished store."""
    if is_uri(path):
        raise InputError(f"a store is made in a local folder, and {path} is none; make it there, then copy it")
    folder = Path(path)
    if (folder / MANIFEST).exists():
        raise InputError(f"{folder} already holds an image store; remove it or choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made ({error.strerror}); choose another --out") from error
    return folder


def write_shard(folder: Path, number: int, ids: list[str], images: np.ndarray) -> FileRecord:
    """Writes shard `number`: ids and uint8 images [b, h, w, c]. Same input, same bytes."""
    size = int(np.prod(images.shape[1:]))
    flat = pa.py_buffer(np.ascontiguousarray(images))
    column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), len(images), [None, flat])
    batch = pa.record_batch([pa.array(ids, pa.string()), column], names=["id", "image"])
    return {**_write_batch(folder, f"images-{number:05d}.arrow", batch), "count": len(ids)}


def finish_store(
    folder: Path, shards: list[FileRecord], shape: tuple[int, ...], about: About, truth: np.ndarray | None
) -> ImageStore:
    """Writes the ground truth and the manifest, which makes the folder a store, and opens it."""
    count = sum(shard["count"] for shard in shards)
    if count == 0:
        raise InputError(f"no image to put into {folder}; a store needs at least one")
    truth_record = None
    if truth is not None:
        labels = np.asarray(truth, np.int64)
        if len(labels) != count:
            raise InputError(f"{len(labels)} labels for {count} images; give one label for each image")
        known = len(about.classes)
        if known and (labels.min() < 0 or labels.max() >= known):
            raise InputError(f"labels run from {labels.min()} to {labels.max()} but there are {known} classes")
        truth_record = _write_batch(folder, TRUTH, pa.record_batch([pa.array(labels)], names=["label"]))
    height, width, channels = shape
    manifest = Manifest(height, width, channels, count, **vars(about), shards=shards, truth=truth_record)
    write_text_atomically(folder / MANIFEST, manifest.to_json())
    return ImageStore.open(str(folder))


def write_text_atomically(path: Path, text: str) -> None:
    """A reader sees the old file or the new one, never a half."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


class _CheckedFile(io.FileIO):
    """A new file that knows its checksum once written, so that it need not be read again.

    CRC-32 guards against accidents at 3.5 GB/s; SHA-256 with 1.5 GB/s would cost a fifth of the time of decoding.
    """

    def __init__(self, path: Path):
        super().__init__(path, "wb")
        self.crc32 = 0

    def write(self, data: Any) -> int:
        self.crc32 = zlib.crc32(data, self.crc32)
        return super().write(data)


def _write_batch(folder: Path, name: str, batch: pa.RecordBatch) -> FileRecord:
    temporary = folder / f".{name}.{os.getpid()}.tmp"
    with _CheckedFile(temporary) as file:
        with pa.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)
        record = {"file": name, "bytes": file.tell(), "crc32": f"{file.crc32:08x}"}
    os.replace(temporary, folder / name)
    return record


def _regroup(
    batches: Iterable[tuple[list[str], np.ndarray]], shard_bytes: int
) -> Iterator[tuple[list[str], np.ndarray]]:
    """Cuts and joins batches so that each is as large as a shard may be."""
    ids: list[str] = []
    pieces: list[np.ndarray] = []
    shape: tuple[int, ...] | None = None
    for batch_ids, images in batches:
        images = images[..., None] if images.ndim == 3 else images
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
            raise InputError(f"images are {images.dtype} {images.shape}; a store takes uint8 [n, h, w, 1 or 3]")
        shape = shape or images.shape[1:]
        if images.shape[1:] != shape or len(batch_ids) != len(images):
            raise InputError(f"a batch of {len(batch_ids)} ids has images {images.shape}; the first were {shape}")
        limit = max(1, shard_bytes // int(np.prod(shape)))
        while len(batch_ids):
            room = limit - len(ids)
            ids += batch_ids[:room]
            pieces.append(images[:room])
            batch_ids, images = batch_ids[room:], images[room:]
            if len(ids) == limit:
                yield ids, np.concatenate(pieces)
                ids, pieces = [], []
    if ids:
        yield ids, np.concatenate(pieces)
