"""`Pictures`: the images of one domain before they are decoded, in a fixed order, with names and, if known, classes."""

import hashlib
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ray_adaplr.data.decode import UNDECODABLE, Picture, is_grey, open_picture
from ray_adaplr.errors import InputError, first_line

LeftOut = tuple[str, str]  # name of a file that is not read, and why


@dataclass(frozen=True)
class Pictures:
    """Where the images of a domain are.

    Attributes:
        ids: unique name of each image: its relative path, or its row number.
        images: the pictures: files, encoded bytes, or pixels.
        labels: true classes, int64 [n], or None.
        classes: class names, [] when unknown.
        domain: name of the domain.
        split: name of the published split, where there is one.
        left_out: files that were found and are not among the images.
    """

    ids: list[str]
    images: Sequence[Picture] | np.ndarray
    labels: np.ndarray | None
    classes: list[str]
    domain: str
    split: str | None = None
    left_out: tuple[LeftOut, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def subset(self, rows: np.ndarray) -> "Pictures":
        """The images at `rows` only, in that order."""
        if isinstance(self.images, np.ndarray):
            images: Sequence[Picture] | np.ndarray = self.images[rows]
        elif isinstance(self.images, list):
            images = [self.images[row] for row in rows]
        else:
            images = Rows(self.images, rows)
        labels = None if self.labels is None else self.labels[rows]
        return replace(self, ids=[self.ids[row] for row in rows], images=images, labels=labels)

    def digest(self) -> str:
        """Checksum of names, labels and contents (of files: their sizes), by which a restart knows its own work."""
        digest = hashlib.sha256("\n".join(self.ids).encode())
        digest.update(b"" if self.labels is None else np.ascontiguousarray(self.labels).tobytes())
        if isinstance(self.images, np.ndarray):
            digest.update(np.ascontiguousarray(self.images).data)
        elif isinstance(self.images, list):
            digest.update(np.array([_size_and_time(file)[0] for file in self.images]).tobytes())
        return digest.hexdigest()

    def changed(self) -> str:
        """Checksum of when the images' files were changed: one that was edited may have its earlier size."""
        images = self.images.images if isinstance(self.images, Rows) else self.images
        files = images if isinstance(images, list) else getattr(images, "files", [])
        times = np.array([_size_and_time(file)[1] for file in files], np.int64)
        return hashlib.sha256(times.tobytes()).hexdigest() if files else ""

    def _spread(self) -> list[int]:
        """At most 64 rows, evenly spaced."""
        return np.unique(np.linspace(0, len(self) - 1, 64).astype(int)).tolist()

    def shape(self, size: int | None, channels: int | None) -> tuple[int, int, int]:
        """The shape of the decoded images: as asked for, else as 64 of them have it.

        Raises:
            InputError: no size is asked for, and the images have no common one.
        """
        sizes, grey = set(), True
        for row in self._spread():
            try:
                image = open_picture(self.images[row])
            except UNDECODABLE:
                continue
            sizes.add(image.size)
            grey = grey and is_grey(image)
        channels = channels or (1 if grey and sizes else 3)
        if size:
            return size, size, channels
        if not sizes:
            raise InputError(f"no image of {self.domain} can be opened; check that these are images, and see --size")
        sides = sorted({side for both in sizes for side in both})
        if len(sides) > 1:
            raise InputError(
                f"the images of {self.domain} have sides from {sides[0]} to {sides[-1]} pixels and a store has squares"
                " of one size; choose one with --size, best that of the model's training images"
            )
        return sides[0], sides[0], channels


def _size_and_time(file: Picture) -> tuple[int, int]:
    if isinstance(file, bytes | np.ndarray):  # a Dataset's in memory
        return zlib.crc32(file if isinstance(file, bytes) else file.tobytes()), 0
    try:
        about = os.stat(file)
    except (OSError, ValueError):  # rejected with its reason when it is decoded
        return -1, -1
    return about.st_size, about.st_mtime_ns


class Rows(Sequence[Picture]):
    """A selection of pictures that stays unread until asked for."""

    def __init__(self, images: Sequence[Picture], rows: np.ndarray):
        self.images, self.rows = images, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self.images[self.rows[index]]


def row_ids(count: int) -> list[str]:
    """Row numbers as ids, all of one width so that they sort."""
    width = len(str(count - 1))
    return [f"{row:0{width}d}" for row in range(count)]


def domain_and_split(name: str) -> tuple[str, str | None]:
    """Reads `clipart_train` as the domain clipart and its split train."""
    match = re.fullmatch(r"(.+?)[_-](train|test|val|validation|list)", name)
    if not match:
        return name, None
    return match[1], None if match[2] == "list" else match[2]


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """One sentence for whatever goes wrong while a foreign file is read: there is no end to the ways."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{path} cannot be read as {kind} ({first_line(error)}); make or fetch it again") from error
