"""`Pictures`: the images of one domain before they are decoded, in a fixed order, with names and, if known, classes."""

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ray_adaplr.data.decode import UNDECODABLE, Picture, is_grey, open_picture
from ray_adaplr.errors import InputError

LARGEST_AUTOMATIC_SIZE = 256  # the paper's resolution for photographs (VisDA-C, DomainNet)


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
    """

    ids: list[str]
    images: Sequence[Picture] | np.ndarray
    labels: np.ndarray | None
    classes: list[str]
    domain: str
    split: str | None = None

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
            digest.update(np.array([_size(file) for file in self.images]).tobytes())
        return digest.hexdigest()

    def look(self) -> tuple[int, int]:
        """The size and the channels that suit the images, from 64 of them: (side of the square, 1 or 3)."""
        sizes, grey = set(), True
        for row in np.unique(np.linspace(0, len(self) - 1, 64).astype(int)):
            try:
                image = open_picture(self.images[row])
            except UNDECODABLE:
                continue
            sizes.add(image.size)
            grey = grey and is_grey(image)
        sides = {side for size in sizes for side in size}
        alike = len(sides) == 1 and max(sides) <= LARGEST_AUTOMATIC_SIZE
        return (sides.pop() if alike else LARGEST_AUTOMATIC_SIZE), (1 if grey and sizes else 3)


def _size(file: str) -> int:
    try:
        return os.stat(file).st_size
    except OSError:  # told as rejected when it is decoded
        return -1


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


def name_labels(
    values: Sequence[str | int], names: Sequence[str], classes: Sequence[str] | None, subset: bool
) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Turns written labels into class numbers.

    Args:
        values: the label of each image as it is written: a number or a class name.
        names: a class name for each image, from its folder; used to name numbers that have just one folder each.
        classes: the class names in order, when the caller knows them.
        subset: leave out images of other classes than `classes` instead of refusing them.

    Returns:
        The class of each image kept, the class names, and the rows kept.
    """
    if all(isinstance(value, int) for value in values):
        numbers = np.array(values, np.int64)
        if numbers.min() == 1 and len(np.unique(numbers)) == numbers.max():
            numbers -= 1  # a list that counts from 1, as those of PACS do
        if numbers.min() < 0:
            raise InputError(f"a label is {numbers.min()}; labels are class names or numbers from 0")
        folder_of = {int(number): name for number, name in zip(numbers, names)}
        one_to_one = len(set(zip(numbers.tolist(), names))) == len(folder_of) == len(set(folder_of.values()))
        if classes and not subset and not (one_to_one and set(names) <= set(classes)):
            if numbers.max() >= len(classes):
                raise InputError(f"label {numbers.max()} is beyond the {len(classes)} classes; numbers start at 0")
            return numbers, list(classes), np.arange(len(numbers))
        known = [folder_of.get(i, str(i)) if one_to_one else str(i) for i in range(int(numbers.max()) + 1)]
        values = [known[number] for number in numbers]
    else:
        known = sorted({str(value) for value in values})
    order = classes or known
    number_of = {name: number for number, name in enumerate(order)}
    others = sorted({str(value) for value in values} - set(number_of))
    if others and not subset:
        raise InputError(f"class {others[0]!r} of the images is not among the {len(order)} classes given; add it there")
    kept = np.array([row for row, value in enumerate(values) if value in number_of], np.int64)
    if not len(kept):
        raise InputError(f"no image is of the classes given ({', '.join(order[:3])}, …); check their spelling")
    return np.array([number_of[str(values[row])] for row in kept], np.int64), list(order), kept


def need_file(path: Path, purpose: str) -> Path:
    """The path, when there is such a file."""
    if not path.is_file():
        raise InputError(f"{path} is missing; it holds {purpose}")
    return path
