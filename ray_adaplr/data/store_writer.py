"""Writing image stores, to a folder or a bucket: every file whole or not at all, the manifest last."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ray_adaplr.data.manifest import FileRecord, Manifest, ShardRecord, note_as_good
from ray_adaplr.data.options import MOST_CLASSES, checked_names
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError, first_line
from ray_adaplr.storage.digests import crc32
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.layout import STORE_MANIFEST
from ray_adaplr.storage.lease import hold
from ray_adaplr.storage.machine import free_bytes, size_in_words
from ray_adaplr.storage.ownership import check_ours, claim

SHARD_BYTES = 64 << 20
TRUTH = "truth.arrow"


@dataclass(frozen=True)
class About:
    """What a store says of itself beside its images; see `Manifest`."""

    shape: tuple[int, ...]  # of an image: height, width, channels
    classes: list[str]
    domain: str
    split: str | None = None
    recipe: dict[str, Any] = field(default_factory=dict)
    left_out: int = 0


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

    The folder or URI must not hold a store yet, nor other files, nor be written to by another. Images are uint8 [b,
    h, w, c] (or [b, h, w]), all of one shape; true classes, [n], go to a file of their own. A shard is closed
    before it grows beyond `shard_bytes`.
    """
    with hold(new_store_folder(path)) as folder:
        new_store_folder(path)  # once more: somebody may have been faster
        claim(folder, "store")
        shards: list[ShardRecord] = []
        seen: set[str] = set()
        shape: tuple[int, ...] = (1, 1, 1)
        for ids, images in _regroup(batches, shard_bytes):
            shape = images.shape[1:]
            seen.update(ids)
            shards.append(write_shard(folder, len(shards), ids, images))
        count = sum(shard.count for shard in shards)
        if len(seen) != count:
            raise InputError(f"{count - len(seen)} of {count} image ids are repeated; ids must be unique in a store")
        return finish_store(folder, shards, About(shape, list(classes), domain), truth)


class OtherStore(InputError):
    """A folder holds a store of other images or options; `wanted` is a short name for those that were asked for."""

    def __init__(self, place: str, wanted: str = "") -> None:
        super().__init__(
            f"{place} already holds an image store, of other images or options or of files that have changed since; "
            "remove it or choose another --out"
        )
        self.wanted = wanted


def new_store_folder(path: str | os.PathLike[str]) -> Folder:
    """The folder of a new store; refuses one that holds a finished store, or files of somebody else."""
    folder = Folder(os.fspath(path))
    if folder.exists(STORE_MANIFEST):
        raise OtherStore(os.fspath(path))
    try:
        check_ours(folder, "store")
    except OSError as error:
        raise InputError(f"{path} is not a folder ({first_line(error)}); choose another --out") from error
    return folder


def check_disk(folder: Folder, needed: int) -> None:
    """InputError when a local folder's disk has less than the bytes that a store will need."""
    if folder.is_local and needed > (free := free_bytes(folder.base)):
        raise InputError(
            f"the store needs {size_in_words(needed)} and the disk of {folder.base} has {size_in_words(free)} free; "
            "take a smaller --size or --limit, or another --out"
        )


def write_shard(folder: Folder, number: int, ids: list[str], images: np.ndarray) -> ShardRecord:
    """Writes shard `number`: ids and uint8 images [b, h, w, c]. Same input, same bytes."""
    size = int(np.prod(images.shape[1:]))
    flat = pa.py_buffer(np.ascontiguousarray(images))
    column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), len(images), [None, flat])
    batch = pa.record_batch([pa.array(ids, pa.string()), column], names=["id", "image"])
    record = _write_batch(folder, f"images-{number:05d}.arrow", batch)
    return ShardRecord(**record.model_dump(), count=len(ids))


def finish_store(folder: Folder, shards: list[ShardRecord], about: About, truth: np.ndarray | None) -> ImageStore:
    """Writes the ground truth and the manifest, which makes the folder a store, and opens it."""
    count = sum(shard.count for shard in shards)
    if count == 0:
        raise InputError(f"no image to put into {folder.uri}; a store needs at least one")
    checked_names(about.classes)
    truth_record = None
    if truth is not None:
        labels, known = np.asarray(truth, np.int64), len(about.classes) or MOST_CLASSES
        if len(labels) != count:
            raise InputError(f"{len(labels)} labels for {count} images; give one label for each image")
        if labels.min() < 0 or labels.max() >= known:
            raise InputError(f"labels run from {labels.min()} to {labels.max()} but there are {known} classes")
        truth_record = _write_batch(folder, TRUTH, pa.record_batch([pa.array(labels)], names=["label"]))
    fields = dict(zip(("height", "width", "channels"), about.shape)) | vars(about)
    del fields["shape"]
    manifest = Manifest(**fields, count=count, shards=shards, truth=truth_record)
    folder.write_json(STORE_MANIFEST, manifest.model_dump())
    if folder.is_local:  # what was written a moment ago need not be read again
        note_as_good(Path(folder.base), manifest.files)
    return open_written(folder)


def open_written(folder: Folder) -> ImageStore:
    """The store in a folder that was written to: from there, or, for a bucket, from a copy on this machine."""
    return ImageStore.open(folder.base if folder.is_local else folder.uri)


def _write_batch(folder: Folder, name: str, batch: pa.RecordBatch) -> FileRecord:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content = sink.getvalue()
    folder.write(name, content)
    return FileRecord(file=name, bytes=content.size, crc32=crc32(content))


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
