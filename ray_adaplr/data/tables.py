"""Pictures in tables: Parquet files, and Hugging Face Datasets, given as an object or named `hf:PATH_OR_NAME[:split]`.

Parquet is read one row group at a time, so that memory stays bounded. A path after `hf:` is a folder that
`save_to_disk` wrote or one that `load_dataset` understands, e.g. of images in class folders; a name is looked up on the
hub. Images of a Dataset are read as they are stored: its transforms and formats have no effect.
"""

import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ray_adaplr.data.arrays import as_uint8_nhwc
from ray_adaplr.data.labels import labelled
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.pictures import Picture, Pictures, domain_and_split, reading, row_ids
from ray_adaplr.errors import InputError, few, first_line, need

IMAGE_COLUMNS = ("image", "img", "bytes", "path", "file_name")
LABEL_COLUMNS = ("label", "labels", "class", "class_name", "category", "target")
HUB = "hf:"
_MODULES = ("datasets.arrow_dataset", "datasets.dataset_dict", "datasets.iterable_dataset")


def from_parquet(path: Path, options: PrepareOptions) -> Pictures:
    """Parquet with a column of image bytes, of paths, or Hugging Face's {bytes, path}, and perhaps `label` and `id`."""
    files = _files_of_split(path, options)
    with reading(path, "Parquet"):
        schema = pq.read_schema(files[0])
        column = image_column(schema.names, IMAGE_COLUMNS, options, str(files[0]))
        _check_image_type(schema.field(column).type, column, files[0])
        label = label_column(schema.names, LABEL_COLUMNS, options, str(files[0]))
        id_column = find_column(schema.names, None, ("id",), str(files[0]))
        images = ParquetImages(files, column, Path(options.root) if options.root else files[0].parent)
        wanted = [name for name in (id_column, label) if name]
        table = pa.concat_tables([pq.read_table(file, columns=wanted) for file in files])
        ids = [str(value) for value in table["id"].to_pylist()] if id_column else row_ids(len(images))
        values: list[Any] = table[label].to_pylist() if label else [None]
    if not len(images):
        raise InputError(f"{path} holds no row; a store needs at least one image")
    names = _hugging_face_names(schema, label)
    pictures = Pictures(ids, images, None, list(options.classes or names), *domain_and_split(path.stem))
    return _with_column(pictures, values, names, options, str(path))


def has_images(file: Path, options: PrepareOptions) -> bool:
    """Whether a Parquet file has a column of images: predictions, which lie beside images, have none.

    A damaged file counts as one of images, so that it is told of when it is read.
    """
    wanted = {options.image_column} if options.image_column else set(IMAGE_COLUMNS)
    try:
        return bool(wanted & set(pq.read_schema(file).names))
    except (pa.ArrowException, OSError):
        return True


def _files_of_split(path: Path, options: PrepareOptions) -> list[Path]:
    """The Parquet files of a folder, or the one, whose names a split's begins; without a split train's, else all."""
    tables, split = sorted(path.glob("*.parquet")) if path.is_dir() else [path], options.split
    files = [table for table in tables if has_images(table, options)] or tables
    wanted = split or "train"
    named = [file for file in files if file.name.startswith(wanted) or domain_and_split(file.stem)[1] == wanted]
    if split and not named:
        found = few(file.name for file in files)
        raise InputError(f"{path} has no file of the split '{split}', only {found}; name another, or no --split")
    return named or files


def _with_column(
    pictures: Pictures, values: Sequence[Any], names: list[str], options: PrepareOptions, where: str
) -> Pictures:
    """Pictures with the labels of a column; without any where all are unknown: None, or Hugging Face's -1."""
    unknown = [row for row, value in enumerate(values) if value is None or value == -1]
    if len(unknown) == len(values) or options.unlabelled:
        return pictures
    if unknown:
        raise InputError(
            f"{where} has no label for row {unknown[0]}; fill it in, or give --unlabelled to prepare or adapt"
        )
    files = pictures.images.paths() if isinstance(pictures.images, ParquetImages) else []
    folders = [Path(file or "").parent.name for file in files] or None  # they name the classes, as those of a list do
    return labelled(pictures, values, where, options, names=names, folders=folders)


def image_column(columns: Sequence[str], usual: Sequence[str], options: PrepareOptions, where: str) -> str:
    """The column of images: as the options say, else the first that has a usual name; InputError for none."""
    found = find_column(columns, options.image_column, usual, where)
    if found is None:
        raise InputError(f"{where} has no column `image` (it has {', '.join(columns)}); give --image-column to prepare")
    return found


def label_column(columns: Sequence[str], usual: Sequence[str], options: PrepareOptions, where: str) -> str | None:
    """The column of labels, found in the same way; None where labels do not count or there are none."""
    return None if options.unlabelled else find_column(columns, options.label_column, usual, where)


def find_column(columns: Sequence[str], wanted: str | None, usual: Sequence[str], where: str) -> str | None:
    """The column that is wanted, else the first of a usual name; InputError where it is missing, or there twice."""
    if wanted and wanted not in columns:
        raise InputError(f"{where} has no column `{wanted}`; it has {', '.join(columns)}")
    found = wanted or next((name for name in usual if name in columns), None)
    if found and list(columns).count(found) > 1:
        raise InputError(f"{where} has the column `{found}` twice; name each column once")
    return found


def _check_image_type(kind: pa.DataType, column: str, file: Path) -> None:
    if pa.types.is_struct(kind):
        inner = {field.name: field.type for field in kind}
        kinds = [inner[name] for name in ("bytes", "path") if name in inner]
    else:
        kinds = [kind]
    if not kinds or not set(kinds) <= {pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.null()}:
        raise InputError(f"{file} has {kind} in the column `{column}`; it needs encoded images, or paths of images")


def _hugging_face_names(schema: pa.Schema, label: str | None) -> list[str]:
    """The class names that Hugging Face writes beside the data; [] where there are none, or nothing readable."""
    try:
        written = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        names = written["info"]["features"][label]["names"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []


class ParquetImages(Sequence[Picture]):
    """The image column of Parquet files."""

    def __init__(self, files: list[Path], column: str, root: Path):
        self.files, self.column, self.root = files, column, root
        self.known = (column, [file.name for file in files])
        self.groups: list[tuple[Path, int, int]] = []  # file, when it was changed, and number of the group in it
        counts = [0]
        for file in files:
            footer, changed = pq.read_metadata(file), file.stat().st_mtime_ns
            self.groups += [(file, changed, group) for group in range(footer.num_row_groups)]
            counts += [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
        self.ends = np.cumsum(counts)[1:]

    def paths(self) -> list[str | None]:
        """The paths in the column, none for an empty cell; nothing where it holds images."""
        kind = pq.read_schema(self.files[0]).field(self.column).type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            return []
        return [path for file in self.files for path in pq.read_table(file, columns=[self.column])[0].to_pylist()]

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        group = int(np.searchsorted(self.ends, index, "right"))
        try:
            rows = _row_group(*self.groups[group], self.column)
            value = rows[int(index - self.ends[group]) + len(rows)].as_py()
        except pa.ArrowException as error:
            raise ValueError(f"cannot be read from Parquet ({first_line(error)})") from error
        value = encoded(value)
        return str(self.root / value) if isinstance(value, str) else value


def encoded(value: Any) -> Any:
    """The image in a cell: bytes, a path, or of Hugging Face's {bytes, path} the one that is there."""
    if isinstance(value, dict):
        value = value.get("bytes") if value.get("bytes") is not None else value.get("path")
    if value is None:
        raise ValueError("empty cell")
    return value


@lru_cache(maxsize=4)
def _row_group(file: Path, _changed: int, group: int, column: str) -> pa.ChunkedArray:
    return pq.ParquetFile(file).read_row_group(group, columns=[column]).column(column)


def is_dataset(value: object) -> bool:
    """Whether a value is a Dataset, or several, of Hugging Face; the package is not imported for that."""
    return any(kind.__module__ in _MODULES for kind in type(value).__mro__)


def from_name(what: str, options: PrepareOptions) -> Pictures:
    """The pictures of `hf:PATH_OR_NAME[:split]`."""
    datasets = need(what, "hf", "datasets")
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
        raise InputError(f"{what}: a part of a split is taken with --limit or --scale of prepare, not with [{part}")
    return found[name]


def from_dataset(dataset: Any, what: str, options: PrepareOptions) -> Pictures:
    """The pictures of a `datasets.Dataset`, with the names of its `ClassLabel`; `what` is its name in sentences.

    Images are in the first column of type `Image`, or as `options.image_column` says.
    """
    if hasattr(dataset, "keys"):
        raise InputError(
            f"{what} has the splits {', '.join(dataset)}; give one of them, e.g. dataset['{next(iter(dataset))}']"
        )
    if not hasattr(dataset, "select"):
        raise InputError(f"{what} is a stream without a length; load it with streaming=False")
    if not len(dataset):
        raise InputError(f"{what} holds no row; a store needs at least one image")
    columns, classes = dataset.column_names, _typed(dataset, "ClassLabel")
    column = image_column(columns, (*_typed(dataset, "Image"), *IMAGE_COLUMNS), options, what)
    label = label_column(columns, (*LABEL_COLUMNS, *(classes if len(classes) == 1 else ())), options, what)
    if label is None and classes and not options.unlabelled:
        raise InputError(
            f"{what} has several labels ({', '.join(classes)}); give --label-column to prepare, or --unlabelled"
        )
    names = getattr(dataset.features[label], "names", None) or [] if label else []
    plain = dataset.with_format(None)
    if hasattr(dataset.features[column], "decode"):
        plain = plain.cast_column(column, type(dataset.features[column])(decode=False))
    images: Any = DatasetImages(plain.select_columns([column]), column, dataset._fingerprint)
    if not images.files:  # in memory: a process gets its own part, not the whole
        images = list(images.all())
    ids = [str(value) for value in plain["id"]] if "id" in dataset.column_names else row_ids(len(dataset))
    domain = os.path.basename(what.removeprefix(HUB).partition(":")[0].rstrip("/")) or "dataset"
    pictures = Pictures(ids, images, None, list(options.classes or names), domain, str(dataset.split or "") or None)
    return _with_column(pictures, list(plain[label]) if label else [None], names, options, what)


def _typed(dataset: Any, kind: str) -> list[str]:
    return [name for name in dataset.column_names if type(dataset.features[name]).__name__ == kind]


class DatasetImages(Sequence[Picture]):
    """The image column of a Dataset, read row by row."""

    def __init__(self, dataset: Any, column: str, fingerprint: str):
        self.dataset, self.column = dataset, column
        self.known = (column, fingerprint)  # Hugging Face's: other rows, or the same in another order, have another
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
