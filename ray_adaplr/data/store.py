"""`ImageStore`: fixed-size uint8 images in Arrow IPC shards, memory-mapped: opening takes milliseconds and no memory.

A store is a folder: `store.json` (the manifest, written last, so a store without it is not finished), shards
`images-00000.arrow` … with the columns `id` and `image`, and, where known, the ground truth in `truth.arrow`, which
nothing but `ground_truth()` and `verify()` open. Files are checked against their checksums once per machine, and what
they hold is validated before it is used.
"""

import csv
import ctypes
import hashlib
import itertools
import json
import math
import mmap
from collections.abc import Iterable
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_adaplr.data.manifest import Manifest, check_contents, check_sizes, local_folder, parse_manifest
from ray_adaplr.data.options import MOST_CLASSES
from ray_adaplr.errors import InputError, counted, first_line
from ray_adaplr.storage.folder import absolute, joined
from ray_adaplr.storage.layout import STORE_MANIFEST

_ASKED_FOR = 16 << 10  # bytes of an image; a million smaller ones fit into memory, where asking would cost for nothing
_advise = ctypes.CDLL(None).madvise


def _map_batch(path: Path, columns: dict[str, pa.DataType], count: int) -> pa.RecordBatch:
    """The only record batch of a file, as views into a memory-map, once everything in it is known to fit.

    A file may be damaged or made with intent: without the full check an offset that leads out of the file would end the
    process.
    """
    try:
        # Closing the file frees its descriptor; the mapping lives on with the batch. A large union has > 1024 shards.
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source)
            found = [(field.name, field.type) for field in reader.schema]
            if found != list(columns.items()) or reader.num_record_batches != 1:
                raise InputError(f"{path} is not a file of this image store (its columns differ); prepare it again")
            batch = reader.get_batch(0)
        batch.validate(full=True)
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise InputError(f"{path} cannot be read as Arrow IPC ({first_line(error)}); prepare it again") from error
    if len(batch) != count:
        raise InputError(f"{path} has {len(batch)} rows where {STORE_MANIFEST} says {count}; prepare it again")
    if any(column.null_count or column.offset for column in batch.columns):
        raise InputError(f"{path} has empty cells; prepare it again")
    return batch


def _ask_for(images: np.ndarray, rows: Iterable[int]) -> None:
    """Let the system read these images of a mapped shard side by side; copying alone reads one after another.

    Only advice: if the kernel ignores it, the copy is slower, no more.
    """
    size, start = math.prod(images.shape[1:]), images.ctypes.data
    for row in rows if size >= _ASKED_FOR else ():
        first = (start + row * size) // mmap.PAGESIZE * mmap.PAGESIZE
        length = start + (row + 1) * size - first
        _advise(ctypes.c_void_p(first), ctypes.c_size_t(length), mmap.MADV_WILLNEED)


class _Part:
    """One store folder: its manifest, and its shards as numpy views that are mapped when first touched."""

    def __init__(self, folder: Path):
        self.folder = folder
        path = folder / STORE_MANIFEST
        if not path.is_file():
            raise InputError(f"{folder} holds no image store (no {STORE_MANIFEST}); make one with `ray-adaplr prepare`")
        self.manifest: Manifest = parse_manifest(path.read_bytes(), str(path))
        self.shape = self.manifest.shape
        check_sizes(folder, self.manifest.files)
        check_contents(folder, self.manifest.shards)
        self._batches: list[pa.RecordBatch | None] = [None] * len(self.manifest.shards)
        self.batch(0)  # a foreign file is refused here; the other shards are mapped when first read (0.3 ms each)

    def batch(self, shard: int) -> pa.RecordBatch:
        """The record batch of a shard (id, image)."""
        batch = self._batches[shard]
        if batch is None:
            record = self.manifest.shards[shard]
            columns = {"id": pa.string(), "image": pa.binary(math.prod(self.shape))}
            batch = self._batches[shard] = _map_batch(self.folder / record.file, columns, record.count)
        return batch

    def images(self, shard: int) -> np.ndarray:
        """The images of a shard as a view, [count, h, w, c]."""
        batch = self.batch(shard)
        pixels = np.frombuffer(batch.column("image").buffers()[1], np.uint8, len(batch) * math.prod(self.shape))
        return pixels.reshape(len(batch), *self.shape)

    def truth(self) -> np.ndarray | None:
        """The ground truth of this part; opens the truth file."""
        record = self.manifest.truth
        if record is None:
            return None
        check_contents(self.folder, [record])
        path = self.folder / record.file
        labels = _map_batch(path, {"label": pa.int64()}, self.manifest.count).column("label").to_numpy()
        if labels.min() < 0 or labels.max() >= (len(self.manifest.classes) or MOST_CLASSES):
            raise InputError(f"{path} has labels from {labels.min()} to {labels.max()}, which are not classes here")
        return labels


REJECTED = "rejected.csv"  # in a store's folder: what was left out, and why


def _first_rejected(folder: Path) -> list[list[str]]:
    """The first three names and reasons in the list of what was left out; none for the copy of a remote store."""
    try:
        with (folder / REJECTED).open(encoding="utf-8", errors="replace", newline="") as file:
            return [row for row in itertools.islice(csv.reader(file), 1, 4) if len(row) == 2]
    except (OSError, csv.Error):
        return []


class ImageStore:
    """Read-only view of one store, or of the union of several (multi-target), in the order they are named.

    Example:
        >>> store = ImageStore.open("stores/photo", "stores/sketch")  # doctest: +SKIP
        >>> store.read(np.array([0, 7, 4000])).shape  # doctest: +SKIP
        (3, 128, 128, 3)
    """

    def __init__(self, parts: list[_Part], paths: list[str], unlabelled: bool = False):
        self._parts, self.paths, self.unlabelled = parts, paths, unlabelled
        manifests = [part.manifest for part in parts]
        self.image_shape: tuple[int, int, int] = parts[0].shape
        self.classes: list[str] = next((m.classes for m in manifests if m.classes and not unlabelled), [])
        self.domains: list[str] = [m.domain for m in manifests]
        self._shards = [(part, shard) for part in parts for shard in range(len(part.manifest.shards))]
        counts = [part.manifest.shards[shard].count for part, shard in self._shards]
        self._ends = np.cumsum(counts)
        self._starts = self._ends - counts

    @classmethod
    def open(cls, *paths: str, unlabelled: bool = False) -> "ImageStore":
        """Opens a store, or several as one. All must have the same image size and, where known, the same classes.

        URIs of a pyarrow filesystem (s3://, gs://, file://) are cached on this machine. `unlabelled` leaves class names
        and ground truth out.
        """
        if not paths:
            raise InputError("no store was named; give the folder of at least one image store")
        paths = tuple(absolute(path) for path in paths)
        parts = [_Part(local_folder(path)) for path in paths]
        first, known = parts[0], next((p for p in parts if p.manifest.classes), parts[0])
        for path, part in zip(paths, parts):
            if part.shape != first.shape:
                raise InputError(f"{path} has images of {part.shape} and {paths[0]} of {first.shape}; prepare alike")
            if part.manifest.classes and part.manifest.classes != known.manifest.classes:
                raise InputError(f"{path} has other class names than {known.folder}; prepare both with equal ones")
        domains = [part.manifest.domain for part in parts]
        twice = [name for name in domains if domains.count(name) > 1]
        if twice:
            raise InputError(f"two stores are of domain {twice[0]!r}; prepare one with another --domain")
        return cls(parts, list(paths), unlabelled)

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def aspect(self) -> Literal["resize", "crop"] | None:
        """How its pictures became squares; None where that is not known, or its parts differ."""
        [aspect, *others] = {part.manifest.recipe.get("aspect") for part in self._parts}
        return aspect if aspect in ("resize", "crop") and not others else None

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(ImageStore.open, unlabelled=self.unlabelled), tuple(self.paths)

    def __repr__(self) -> str:
        return f"ImageStore({', '.join(self.paths)}: {counted(len(self), 'image')} of {self.image_shape})"

    def describe(self) -> str:
        """One line: how many images of which size, classes, and what was left out, with the list of it."""
        size = "x".join(map(str, self.image_shape))
        known = (
            f"{len(self.classes)} class{'es' if len(self.classes) > 1 else ''}" if self.classes else "no class names"
        )
        lists = [
            f"{part.manifest.left_out:,} left out, listed in {joined(path, REJECTED)}"
            for part, path in zip(self._parts, self.paths)
            if part.manifest.left_out
        ]
        return ", ".join([f"{counted(len(self), 'image')} of {size}", known, *lists])

    def left_out_words(self) -> str:
        """How many images were left out, and the first three of them with the reason; empty where there are none."""
        count = sum(part.manifest.left_out for part in self._parts)
        if not count:
            return ""
        rows = [row for part in self._parts if part.manifest.left_out for row in _first_rejected(part.folder)]
        few = [f"{name!r} ({reason})" for name, reason in rows[:3]]
        more = ["…"] if count > len(few) > 0 else []
        are = "image is" if count == 1 else "images are"
        return f"{count:,} {are} left out{': ' if few else ''}{', '.join(few + more)}"

    def verify(self) -> None:
        """Reads every file once more; InputError when one differs from its checksum."""
        for part in self._parts:
            check_contents(part.folder, part.manifest.files, again=True)

    @cached_property
    def domain_index(self) -> np.ndarray:
        """Which of `domains` each image is of, int16 [n]."""
        counts = [part.manifest.count for part in self._parts]
        return np.repeat(np.arange(len(counts), dtype=np.int16), counts)

    @cached_property
    def ids(self) -> pa.ChunkedArray:
        """The unique id of each image; in a union prefixed with `domain/`."""
        chunks = [part.batch(shard).column("id") for part, shard in self._shards]
        if len(self._parts) > 1:
            prefixes = [f"{part.manifest.domain}/" for part, _ in self._shards]
            chunks = [pc.binary_join_element_wise(p, chunk, "") for p, chunk in zip(prefixes, chunks)]
        return pa.chunked_array(chunks, pa.string())

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that stand for ids, images, classes and domains; ground truth has no part in it."""
        parts = [part.manifest for part in self._parts]
        seen = [[*each.shape, each.domain, each.classes, [shard.crc32 for shard in each.shards]] for each in parts]
        return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]

    @property
    def splits(self) -> list[str | None]:
        """The published split each store holds (train, test, …), where one is known."""
        return [part.manifest.split for part in self._parts]

    def _view(self, shard: int) -> np.ndarray:
        part, number = self._shards[shard]
        return part.images(number)

    def read(self, index: np.ndarray) -> np.ndarray:
        """Copies of the images at `index`, uint8 [b, h, w, c]."""
        index = np.asarray(index, np.int64)
        if index.size == 0:
            return np.empty((0, *self.image_shape), np.uint8)
        low, high = int(index.min()), int(index.max())
        if low < 0 or high >= len(self):
            raise IndexError(f"image {low if low < 0 else high} of a store of {len(self)}")
        first = int(np.searchsorted(self._ends, low, "right"))
        if high < self._ends[first]:
            view, rows = self._view(first), index - self._starts[first]
            _ask_for(view, rows.tolist())
            return view[rows]
        shards = np.searchsorted(self._ends, index, "right")
        rows = index - self._starts[shards]
        views = {shard: self._view(shard) for shard in set(shards.tolist())}
        places = [(views[shard], row) for shard, row in zip(shards.tolist(), rows.tolist())]
        for view, row in places:
            _ask_for(view, [row])
        images = np.empty((len(index), *self.image_shape), np.uint8)
        for i, (view, row) in enumerate(places):
            images[i] = view[row]
        return images

    def ground_truth(self) -> np.ndarray | None:
        """True classes, int64 [n], for reported figures only; None unless every part has them."""
        truths = [None if self.unlabelled else part.truth() for part in self._parts]
        known = [truth for truth in truths if truth is not None]
        return np.concatenate(known) if len(known) == len(truths) else None
