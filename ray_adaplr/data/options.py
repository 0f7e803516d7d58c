"""`PrepareOptions`: how images become a store. The command line makes its flags, defaults and help from this model.

Without numpy, so that `--help` answers at once.
"""

import re
from collections.abc import Iterable
from typing import Literal

from pydantic import field_validator

from ray_adaplr.errors import Checked, InputError, option
from ray_adaplr.storage.layout import MOST_CLASSES

CONTROL = re.compile(r"[\x00-\x1f\x7f]")
LARGEST_SIZE = 4096  # pixels; above it one shard of a few images fills the memory of a decoding process
MOST_WORKERS = 1024
DIGITS = tuple("0123456789")  # classes
DEMO_DOMAINS = ("mnist", "optdigits", "mnistm")


def checked_names(names: Iterable[str]) -> list[str]:
    """Class names in order; InputError for an empty one, one with control characters, or one named twice."""
    known = [str(name) for name in names]
    if len(known) > MOST_CLASSES:
        raise InputError(f"{len(known)} class names are given and {MOST_CLASSES} are possible; is the list right?")
    for name in known:
        if not name.strip() or CONTROL.search(name):
            raise InputError(f"{name!r} is not a class name; a name has letters and no control characters")
    if len(set(known)) != len(known):
        twice = next(name for row, name in enumerate(known) if name in known[:row])
        raise InputError(f"class {twice!r} is named twice; every class needs a name of its own")
    return known


class PrepareOptions(Checked):
    """Everything about `prepare` that is not its input and its output."""

    size: int | None = option(
        None, "side of the square images in pixels; default: theirs, if all are the same square", ge=1, le=LARGEST_SIZE
    )
    at_most: bool = option(False, "with --size: images that are all smaller are not enlarged to it")
    channels: Literal[1, 3] | None = option(None, "1 (grey) or 3 (RGB); default: what the images have")
    aspect: Literal["resize", "crop"] = option(
        "resize", "resize squeezes the image into the square; crop fits the shorter side, keeps the centre"
    )
    domain: str | None = option(None, "name of the domain; default: the file's or folder's")
    root: str | None = option(
        None,
        "folder that the paths of a list (lines `path label` or `path`), CSV (columns path and, if "
        "known, label; a header may name them) or Parquet start from; or where a benchmark's data is",
    )
    classes: tuple[str, ...] | None = option(
        None, "class names in order (on the command line: a file with one name per line); default: the data's"
    )
    image_column: str | None = option(
        None,
        "column of images in Parquet or a Hugging Face dataset, or of paths in CSV; default: found by type and name",
    )
    label_column: str | None = option(None, "column of labels there; default: found by name and type")
    subset: bool = option(False, "leave out images of classes not in `classes`, e.g. DomainNet's 126")
    unlabelled: bool = option(False, "ignore ground truth that is there; subfolders are not classes")
    split: str | None = option(
        None, "which split of a published set that has several, e.g. train or test; default: train"
    )
    limit: int | None = option(None, "take this many images only, drawn by the seed", ge=1)
    scale: float = option(
        1.0, "take this share of the images or of the limit; a smaller share is part of a larger", gt=0, le=1
    )
    seed: int = option(0, "fixes which images are drawn", ge=0)
    max_rejected: float | None = option(
        None, "largest share of unreadable images to leave out; default: 0.01, or ten images", ge=0, le=1
    )
    workers: int | None = option(
        None, "processes, or Ray tasks at a time; default: one per core", ge=1, le=MOST_WORKERS
    )
    on_ray: bool = option(False, "decode on a Ray cluster whose nodes all see the images and the store")

    def side(self, sides: list[int]) -> int | None:
        """The side of the store's images where one is asked for, by the longer sides of some images."""
        return min(self.size, max(sides)) if self.size and self.at_most and sides else self.size

    @field_validator("classes")
    @classmethod
    def _names_differ(cls, classes: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if classes is None else tuple(checked_names(classes))

    @field_validator("domain", "root", "split", "image_column", "label_column")
    @classmethod
    def _is_text(cls, text: str | None) -> str | None:
        if text is not None and (not text.strip() or CONTROL.search(text)):
            raise ValueError("a name is not empty and has no control characters")
        return text
