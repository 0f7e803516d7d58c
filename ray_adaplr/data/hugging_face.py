"""Pictures of Hugging Face Datasets: given as an object, or named as `hf:PATH_OR_NAME[:split]`.

A path is a folder that `save_to_disk` wrote or one that `load_dataset` understands, e.g. of images in class folders; a
name is looked up on the hub. Images are read as they are stored: transforms and formats of the Dataset have no effect.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ray_adaplr.data.arrays import as_uint8_nhwc
from ray_adaplr.data.decode import Picture
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.parquet import IMAGE_COLUMNS, LABEL_COLUMNS, encoded, with_labels
from ray_adaplr.data.pictures import Pictures, row_ids
from ray_adaplr.errors import InputError, first_line

HUB = "hf:"
_MODULES = ("datasets.arrow_dataset", "datasets.dataset_dict", "datasets.iterable_dataset")


def is_dataset(value: object) -> bool:
    """Whether a value is a Dataset, or several, of Hugging Face; the package is not imported for that."""
    return any(kind.__module__ in _MODULES for kind in type(value).__mro__)


def from_name(what: str, options: PrepareOptions) -> Pictures:
    """The pictures of `hf:PATH_OR_NAME[:split]`."""
    try:
        import datasets
    except ImportError as error:
        raise InputError(f"{what} needs datasets: pip install 'ray-adaplr[hf]'") from error
    place, split = what.removeprefix(HUB), options.split
    if not os.path.exists(place):
        place, colon, named = place.partition(":")
        split = named if colon else split
    place = os.path.expanduser(place)
    saved = any(os.path.isfile(os.path.join(place, file)) for file in ("state.json", "dataset_dict.json"))
    try:
        with _quietly(datasets):
            found = datasets.load_from_disk(place) if saved else datasets.load_dataset(place)
    except Exception as error:  # no network, no such name, no dataset in the folder: each has its own kind
        raise InputError(
            f"{what} cannot be read as a Hugging Face dataset ({first_line(error)}); name a folder that save_to_disk "
            "wrote, a folder of images, or, where there is a network, a dataset of the hub"
        ) from error
    return from_dataset(_split(found, split, what), what, options)


@contextmanager
def _quietly(datasets: Any) -> Iterator[None]:
    """Without bars, and without two lines for each of the hub's five tries: a failure gets its sentence in the end."""
    log, bars = logging.getLogger("huggingface_hub"), not datasets.are_progress_bars_disabled()
    level = log.level
    log.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        log.setLevel(level)
        if bars:
            datasets.enable_progress_bars()


def _split(found: Any, split: str | None, what: str) -> Any:
    """One split: the one that is named, else train, else the only one."""
    if not hasattr(found, "keys"):
        if split not in (None, str(found.split)):
            raise InputError(f"{what} is a single split, {found.split}; leave the name of the split out")
        return found
    if split is None:
        split = "train" if "train" in found or len(found) > 1 else next(iter(found))
    name, _, part = split.partition("[")
    if name not in found:
        raise InputError(f"{what} has no split '{name}'; it has {', '.join(found)}: add :SPLIT or --split")
    if part:
        raise InputError(f"{what}: a part of a split is taken with --limit or --scale, not with [{part}")
    return found[name]


def from_dataset(dataset: Any, what: str, options: PrepareOptions) -> Pictures:
    """The pictures of a `datasets.Dataset`, with the names of its `ClassLabel`.

    Args:
        dataset: with a column of images; the first of type `Image`, or as `options.image_column` says.
        what: its name in sentences.
        options: columns, classes, and whether labels count.
    """
    if hasattr(dataset, "keys"):
        raise InputError(
            f"{what} has the splits {', '.join(dataset)}; give one of them, e.g. dataset['{next(iter(dataset))}']"
        )
    if not hasattr(dataset, "select"):
        raise InputError(f"{what} is a stream without a length; load it with streaming=False")
    if not len(dataset):
        raise InputError(f"{what} holds no row; a store needs at least one image")
    column, label = _image_column(dataset, what, options), _label_column(dataset, what, options)
    names = getattr(dataset.features[label], "names", None) or [] if label else []
    plain = dataset.with_format(None)
    if hasattr(dataset.features[column], "decode"):
        plain = plain.cast_column(column, type(dataset.features[column])(decode=False))
    images: Any = DatasetImages(plain.select_columns([column]), column)
    if not images.files:  # in memory: a process gets its own part, not the whole
        images = list(images.all())
    ids = [str(value) for value in plain["id"]] if "id" in dataset.column_names else row_ids(len(dataset))
    domain = os.path.basename(what.removeprefix(HUB).partition(":")[0].rstrip("/")) or "dataset"
    pictures = Pictures(ids, images, None, list(options.classes or names), domain, str(dataset.split or "") or None)
    return with_labels(pictures, list(plain[label]) if label else [None], names, options, what)


def _image_column(dataset: Any, what: str, options: PrepareOptions) -> str:
    columns = dataset.column_names
    typed = [name for name in columns if type(dataset.features[name]).__name__ == "Image"]
    wanted = options.image_column or next((name for name in (*typed, *IMAGE_COLUMNS) if name in columns), None)
    if wanted is None or wanted not in columns:
        missing = f"column `{wanted}`" if wanted else "column of images"
        raise InputError(f"{what} has no {missing} (it has {', '.join(columns)}); name one with --image-column")
    return wanted


def _label_column(dataset: Any, what: str, options: PrepareOptions) -> str | None:
    if options.unlabelled:
        return None
    columns = dataset.column_names
    typed = [name for name in columns if type(dataset.features[name]).__name__ == "ClassLabel"]
    usual = [name for name in LABEL_COLUMNS if name in columns]
    found = next(iter(usual), typed[0] if len(typed) == 1 else None)
    if options.label_column is None and found is None and typed:
        raise InputError(f"{what} has several labels ({', '.join(typed)}); choose with --label-column, or --unlabelled")
    if options.label_column not in (None, *columns):
        raise InputError(f"{what} has no column `{options.label_column}`; it has {', '.join(columns)}")
    return options.label_column or found


class DatasetImages(Sequence[Picture]):
    """The image column of a Dataset, read row by row."""

    def __init__(self, dataset: Any, column: str):
        self.dataset, self.column = dataset, column
        self.files = [file["filename"] for file in dataset.cache_files]  # by which changed contents are noticed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        value = encoded(self.dataset[int(index)][self.column])
        return as_uint8_nhwc(np.asarray(value)[None], "a row")[0] if isinstance(value, list) else value

    def all(self) -> Iterator[Picture]:
        """Every image; of an empty cell no bytes, so that it is rejected among the others."""
        for row in range(len(self)):
            try:
                yield self[row]
            except ValueError:
                yield b""
