"""Pictures in Parquet files, Hugging Face's among them; read one row group at a time, so that memory stays bounded."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ray_adaplr.data.decode import Picture
from ray_adaplr.data.labels import as_written, class_numbers
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.pictures import Pictures, domain_and_split, reading, row_ids
from ray_adaplr.errors import InputError, first_line

IMAGE_COLUMNS = ("image", "img", "bytes", "path", "file_name")
LABEL_COLUMNS = ("label", "labels", "class")


def from_parquet(path: Path, options: PrepareOptions, split: str) -> Pictures:
    """Parquet with a column of image bytes, of paths, or Hugging Face's {bytes, path}, and perhaps `label` and `id`.

    Of a folder those files that a split's name begins, or all, where none is named so.
    """
    files = sorted(path.glob(f"{split}*.parquet")) or sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    with reading(path, "Parquet"):
        schema = pq.read_schema(files[0])
        column = _column(schema, (options.image_column,) if options.image_column else IMAGE_COLUMNS, files[0])
        if column is None:
            missing, has = options.image_column or "image", ", ".join(schema.names)
            raise InputError(f"{files[0]} has no column `{missing}` (it has {has}); name one with --image-column")
        _check_image_type(schema.field(column).type, column, files[0])
        label = _column(schema, (options.label_column,) if options.label_column else LABEL_COLUMNS, files[0])
        if options.label_column and label is None:
            raise InputError(f"{files[0]} has no column `{options.label_column}`; it has {', '.join(schema.names)}")
        id_column = _column(schema, ("id",), files[0])
        images = ParquetImages(files, column, Path(options.root) if options.root else files[0].parent)
        wanted = [name for name in (id_column, label) if name]
        table = pa.concat_tables([pq.read_table(file, columns=wanted) for file in files])
        ids = [str(value) for value in table["id"].to_pylist()] if id_column else row_ids(len(images))
        values: list[Any] = table[label].to_pylist() if label else [None]
    if not len(images):
        raise InputError(f"{path} holds no row; a store needs at least one image")
    names = _hugging_face_names(schema, label)
    pictures = Pictures(ids, images, None, list(options.classes or names), *domain_and_split(path.stem))
    return with_labels(pictures, values, names, options, str(path))


def with_labels(
    pictures: Pictures, values: Sequence[Any], names: list[str], options: PrepareOptions, where: str
) -> Pictures:
    """Pictures with the labels of a column; without any where one is unknown: None, or Hugging Face's -1.

    Args:
        pictures: without labels; their classes are those of the options, else `names`.
        values: of the column, one for each picture.
        names: the classes that numbers in the column stand for, [] when unknown.
        options: whether labels count, and which classes stay.
        where: what holds them, for a sentence.
    """
    if options.unlabelled or any(value is None or value == -1 for value in values):
        return pictures
    written = as_written(values, where)
    if names and isinstance(written[0], int):
        if min(written) < 0 or max(written) >= len(names):
            raise InputError(f"{where} has the label {max(written)} and {len(names)} class names; the file is damaged")
        written = [names[number] for number in written]
    numbers, known, kept = class_numbers(written, [""] * len(written), pictures.classes or None, options.subset)
    return replace(pictures.subset(kept), labels=numbers, classes=known)


def _column(schema: pa.Schema, wanted: tuple[str, ...], file: Path) -> str | None:
    found = next((name for name in wanted if name in schema.names), None)
    if found and schema.names.count(found) > 1:
        raise InputError(f"{file} has the column `{found}` twice; name each column once")
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
        self.groups: list[tuple[Path, int, int]] = []  # file, when it was changed, and number of the group in it
        counts = [0]
        for file in files:
            footer, changed = pq.read_metadata(file), file.stat().st_mtime_ns
            self.groups += [(file, changed, group) for group in range(footer.num_row_groups)]
            counts += [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
        self.ends = np.cumsum(counts)[1:]

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
