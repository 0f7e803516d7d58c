"""`ImageStore`: fixed-size uint8 images in Arrow IPC shards, memory-mapped: opening takes milliseconds and no memory.

A store is a folder: `store.json` (the manifest, written last, so a store without it is not finished), shards
`images-00000.arrow` … with the columns `id` and `image`, and, where known, the ground truth in `truth.arrow`, which
nothing but `ground_truth()` opens.
"""

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_adaplr.data.cache import local_folder
from ray_adaplr.data.manifest import MANIFEST, Manifest, read_manifest
from ray_adaplr.errors import InputError
from ray_adaplr.storage.folder import absolute


def _map_batch(path: Path, columns: dict[str, pa.DataType]) -> pa.RecordBatch:
    """The only record batch of a file, as views into a memory-map, after a check of its schema."""
    try:
        # Closing the file frees its descriptor; the mapping lives on with the batch. A large union has > 1024 shards.
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source)
            if {f.name: f.type for f in reader.schema} != columns or reader.num_record_batches != 1:
                raise InputError(f"{path} is not a file of this image store (its columns differ); prepare it again")
            return reader.get_batch(0)
    except (pa.ArrowInvalid, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path} cannot be read as Arrow IPC ({reason}); prepare the store again") from error


class _Part:
    """One store folder: its manifest, and its shards as numpy views that are mapped when first touched."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.manifest: Manifest = read_manifest(folder)
        for shard in self.manifest.files():
            self._check_size(shard["file"], shard["bytes"])
        self.shape = (self.manifest.height, self.manifest.width, self.manifest.channels)
        self._batches: list[pa.RecordBatch | None] = [None] * len(self.manifest.shards)
        self.batch(0)  # a foreign file is told now; the other shards are mapped when first read (0.3 ms each)

    def _check_size(self, name: str, expected: int) -> None:
        path = self.folder / name
        size = path.stat().st_size if path.exists() else -1
        if size != expected:
            state = "is missing" if size < 0 else f"has {size} bytes where {MANIFEST} says {expected}"
            raise InputError(f"{path} {state}: the store is damaged; prepare it again")

    def batch(self, shard: int) -> pa.RecordBatch:
        """The record batch of a shard (id, image)."""
        batch = self._batches[shard]
        if batch is None:
            record = self.manifest.shards[shard]
            path = self.folder / record["file"]
            batch = _map_batch(path, {"id": pa.string(), "image": pa.binary(int(np.prod(self.shape)))})
            if len(batch) != record["count"]:
                raise InputError(f"{path} has {len(batch)} images where {MANIFEST} says {record['count']}")
            self._batches[shard] = batch
        return batch

    def images(self, shard: int) -> np.ndarray:
        """The images of a shard as a view, [count, h, w, c]."""
        batch = self.batch(shard)
        return np.frombuffer(batch.column("image").buffers()[1], np.uint8).reshape(len(batch), *self.shape)

    def truth(self) -> np.ndarray | None:
        """The ground truth of this part; opens the truth file."""
        if self.manifest.truth is None:
            return None
        batch = _map_batch(self.folder / self.manifest.truth["file"], {"label": pa.int64()})
        if len(batch) != self.manifest.count:
            raise InputError(f"{self.folder}: ground truth for {len(batch)} of {self.manifest.count} images")
        return batch.column("label").to_numpy()


class ImageStore:
    """Read-only view of one store, or of the union of several (multi-target), in the order they are named.

    Example:
        >>> store = ImageStore.open("stores/photo", "stores/sketch")  # doctest: +SKIP
        >>> store.read(np.array([0, 7, 4000])).shape  # doctest: +SKIP
        (3, 128, 128, 3)
    """

    def __init__(self, parts: list[_Part], paths: list[str]):
        self._parts = parts
        self.paths = paths
        manifests = [part.manifest for part in parts]
        self.image_shape: tuple[int, int, int] = parts[0].shape
        self.classes: list[str] = next((m.classes for m in manifests if m.classes), [])
        self.domains: list[str] = [m.domain for m in manifests]
        self._shards = [(part, shard) for part in parts for shard in range(len(part.manifest.shards))]
        counts = [part.manifest.shards[shard]["count"] for part, shard in self._shards]
        self._ends = np.cumsum(counts)
        self._starts = self._ends - counts
        self._views: list[np.ndarray | None] = [None] * len(self._shards)

    @classmethod
    def open(cls, *paths: str) -> "ImageStore":
        """Opens a store, or several as one. All must have the same image size and, where known, the same classes.

        URIs of a pyarrow filesystem (s3://, gs://, file://) are cached on this machine.
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
                raise InputError(
                    f"{path} has other class names than {known.folder}; prepare both with the same classes"
                )
        domains = [part.manifest.domain for part in parts]
        twice = [name for name in domains if domains.count(name) > 1]
        if twice:
            raise InputError(
                f"two stores are of domain {twice[0]!r}; prepare one with another --domain to tell them apart"
            )
        return cls(parts, list(paths))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageStore.open, tuple(self.paths)

    def __repr__(self) -> str:
        return f"ImageStore({', '.join(self.paths)}: {len(self)} images of {self.image_shape})"

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
        text = json.dumps([part.manifest.identity() for part in self._parts])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def splits(self) -> list[str | None]:
        """The published split each store holds (train, test, …), where one is known."""
        return [part.manifest.split for part in self._parts]

    def _view(self, shard: int) -> np.ndarray:
        view = self._views[shard]
        if view is None:
            part, number = self._shards[shard]
            view = self._views[shard] = part.images(number)
        return view

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
            return self._view(first)[index - self._starts[first]]
        shards = np.searchsorted(self._ends, index, "right")
        rows = index - self._starts[shards]
        images = np.empty((len(index), *self.image_shape), np.uint8)
        for i, (shard, row) in enumerate(zip(shards.tolist(), rows.tolist())):
            images[i] = self._view(shard)[row]
        return images

    def ground_truth(self) -> np.ndarray | None:
        """True classes, int64 [n], for reported figures only; None unless every part has them."""
        truths = [part.truth() for part in self._parts]
        known = [truth for truth in truths if truth is not None]
        return np.concatenate(known) if len(known) == len(truths) else None
