"""Labels as they are written (numbers, names, columns of tables) into class numbers, with every oddity refused.

Among them labels from a file: another method's output as the start of refinement, or a person's corrections.
"""

import gzip
import io
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from ray_adaplr.data.options import MOST_CLASSES, PrepareOptions, checked_names
from ray_adaplr.data.pictures import Pictures
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError, first_line
from ray_adaplr.storage.digests import blake2
from ray_adaplr.storage.folder import read_file

MOST_TEXT = 1 << 30  # bytes of an unpacked list or label file; a million lines have about 0.1 GB


def unpacked(content: bytes, where: str) -> bytes:
    """The bytes of a file, or of what is in it where it is packed with gzip; InputError calls it `where`."""
    if content[:2] != b"\x1f\x8b":
        return content
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
            plain = packed.read(MOST_TEXT + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{where} cannot be unpacked with gzip ({first_line(error)}); pack it again") from error
    if len(plain) > MOST_TEXT:
        raise InputError(f"{where} has more than {MOST_TEXT >> 30} GB when it is unpacked; give a smaller list")
    return plain


def as_written(
    values: Iterable[Any], where: str, names: Sequence[str] = (), classes: Sequence[str] | None = None
) -> list[str] | list[int]:
    """Labels of any kind as class numbers, or, where one is no number, as class names.

    Text of digits is a number. Numbers stand for `names`, where the data has some; else they are names themselves where
    each is one of `classes`: with the classes 1, 2 and 3, the label 1 is the first.
    """
    plain = [_plain(value) for value in values]
    texts = [str(value) for value in plain]
    if not names and set(texts) <= set(classes or ()):
        return texts
    read = [_one(value, where) for value in plain]
    numbers = [value for value in read if isinstance(value, int)]
    if len(numbers) < len(read):
        return [str(value) for value in read]
    if not names:
        return numbers
    if beyond := [number for number in numbers if not 0 <= number < len(names)]:
        raise InputError(f"{where} has the label {beyond[0]} and {len(names)} class names; each number needs one")
    return [names[number] for number in numbers]


def _plain(value: Any) -> Any:
    """A label as a type of Python's own, without blanks around it."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value.strip() if isinstance(value, str) else value


def _one(value: Any, where: str) -> str | int:
    if isinstance(value, str):
        if not re.fullmatch(r"[+-]?[0-9]+", value):
            return checked_names([value])[0]
        value = int(value) if len(value) < 19 else value
    if not isinstance(value, int) or abs(value) >= 2**63:
        raise InputError(f"{where} has the label {value!r}; labels are class names or numbers from 0")
    return int(value)


def labelled(
    pictures: Pictures,
    values: Iterable[Any],
    where: str,
    options: PrepareOptions,
    *,
    names: Sequence[str] = (),
    folders: Sequence[str] | None = None,
) -> Pictures:
    """Pictures with labels of any kind, one for each; with `options.subset`, only those of the classes given.

    `names` for numbers are as in `as_written`, and `folders` of the images as in `class_numbers`.
    """
    if options.unlabelled:
        return pictures
    written = as_written(values, where, names, options.classes)
    if len(written) != len(pictures):
        raise InputError(f"{where} has {len(pictures)} images but {len(written)} labels; one for each is needed")
    numbers, classes, kept = class_numbers(written, options.classes or names or None, options.subset, folders)
    return replace(pictures.subset(kept), labels=numbers, classes=classes)


def class_numbers(
    written: Sequence[str] | Sequence[int],
    classes: Sequence[str] | None,
    subset: bool = False,
    folders: Sequence[str] | None = None,
) -> tuple[np.ndarray, list[str], np.ndarray]:
    """The class of each image kept, int64 [n], the class names, and the rows kept.

    `written` labels are as `as_written` gives them. `classes` are the names in order, when the caller knows them; with
    `subset` images of other classes are left out instead of refused. The folders of the images name numbers that
    have just one folder each; else a number is its own name.
    """
    names: Sequence[str]
    if written and isinstance(written[0], int):
        numbers = _counted_from_zero(np.array(written, np.int64), len(classes or ()))
        first = int(written[0]) - int(numbers[0])  # where the list counts from
        if classes and numbers.max() >= len(classes) and not subset:
            raise InputError(f"label {numbers.max()} is beyond the {len(classes)} classes; numbers start at 0")
        if numbers.max() >= MOST_CLASSES:
            raise InputError(
                f"label {numbers.max()} would make {numbers.max() + 1} classes and {MOST_CLASSES} are possible;"
                " is that the column of labels? Names may be of any kind"
            )
        pairs = set(zip(numbers.tolist(), folders or ()))
        folder_of = dict(pairs)
        if not len(pairs) == len(folder_of) == len(set(folder_of.values())):  # each number needs a folder of its own
            folder_of = {}
        if classes and not subset and not (folder_of and set(folder_of.values()) <= set(classes)):
            return numbers, list(classes), np.arange(len(numbers))
        known = [folder_of.get(number, str(number + first)) for number in range(int(numbers.max()) + 1)]
        names = [known[number] for number in numbers]
    else:
        names = [str(name) for name in written]
        known = sorted(set(names))
    order = checked_names(classes or known)
    number_of = {name: number for number, name in enumerate(order)}
    others = sorted(set(names) - set(number_of))
    if others and not subset:
        raise InputError(
            f"class {others[0]!r} of the images is not among the {len(order)} classes given; add it there, take its "
            "images out, or give --unlabelled to prepare or adapt"
        )
    kept = np.array([row for row, name in enumerate(names) if name in number_of], np.int64)
    if not len(kept):
        raise InputError(f"no image is of the classes given ({', '.join(order[:3])}, …); check their spelling")
    return np.array([number_of[names[row]] for row in kept], np.int64), order, kept


def _counted_from_zero(numbers: np.ndarray, known: int) -> np.ndarray:
    """Numbers of a list that counts from 1, as those of PACS do, less one; `known` classes, or 0, are given."""
    if numbers.min() == 1 and len(np.unique(numbers)) == numbers.max() and known in (0, numbers.max()):
        return numbers - 1
    if numbers.min() < 0:
        raise InputError(f"there is the label {numbers.min()}; labels are class names or numbers from 0")
    return numbers


_GIVEN_COLUMNS = ("label", "refined_label", "class", "refined_class")  # the first that a file of labels has is taken


def given_labels(
    labels: str | Path | Sequence[int] | None, store: ImageStore, num_classes: int, classes: Sequence[str] = ()
) -> np.ndarray | None:
    """Labels for the store's images from a file, or given one by one; int64 [n], -1 where none."""
    if labels is None or isinstance(labels, str | Path):
        return None if labels is None else read_given_labels(labels, store, num_classes, classes)
    given = np.asarray(labels)
    if given.shape != (len(store),) or given.dtype.kind not in "iu":
        raise InputError(f"labels has shape {given.shape} of {given.dtype}; give {len(store)} integers, -1 where none")
    if given.min() < -1 or given.max() >= num_classes:
        raise InputError(f"labels run from {given.min()} to {given.max()}; the model has {num_classes} classes")
    return given.astype(np.int64)


def read_given_labels(file: str | Path, store: ImageStore, num_classes: int, classes: Sequence[str] = ()) -> np.ndarray:
    """Labels for the store's images from a CSV (.gz too) or Parquet file with `id`, `label`; int64 [n], -1 where none.

    A label is a class number below `num_classes`, or a name: of the store, or where it has none of `classes`, as a
    report names them. A column of integers has numbers; where text may be both, a column `class` beside it decides. Of
    a run's labels.parquet, `refined_label` is taken. InputError for a missing column, an unknown id or class, text that
    may be two classes, an id named twice, or names beside the labels that say otherwise.
    """
    content = pa.py_buffer(unpacked(read_file(file, "label file"), str(file)))
    try:
        text = dict.fromkeys(("id", "label", "class", "refined_class"), pa.string())
        as_text = pa.csv.ConvertOptions(column_types=text)
        parquet, source = content[:4] == b"PAR1", pa.BufferReader(content)
        header = "" if parquet else content.to_pybytes().split(b"\n", 1)[0].decode(errors="replace")
        parted = pa.csv.ParseOptions(delimiter=max(",;\t", key=header.count))
        table = pa.parquet.read_table(source) if parquet else pa.csv.read_csv(source, None, parted, as_text)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"cannot read the label file {file}: {first_line(error)}") from error
    table = table.rename_columns([name.strip() for name in table.column_names])
    column = next((name for name in _GIVEN_COLUMNS if name in table.column_names), None)
    if column is None or "id" not in table.column_names:
        raise InputError(f"{file} has the columns {', '.join(table.column_names)}; it needs id and label")
    if not len(table):
        raise InputError(f"{file} has a header and no rows; give a label in each, or leave it out")
    rows = pc.index_in(table["id"].cast(pa.string()), value_set=store.ids.combine_chunks())
    if rows.null_count:
        unknown = table["id"].filter(pc.is_null(rows))[0]
        raise InputError(f"{file} names the image '{unknown}', which is not in {', '.join(store.paths)}")
    index = rows.to_numpy()
    if len(np.unique(index)) != len(index):
        raise InputError(f"{file} names an image twice")
    given, names = np.full(len(store), -1, np.int64), (store.classes or list(classes))[:num_classes]
    given[index] = numbers = _numbers_of(table, column, names, num_classes, file)
    if names and (beside := column.replace("label", "class")) in set(table.column_names) - {column}:
        _check_names(table, beside, [names[number] for number in numbers], file)
    return given


def _check_names(table: pa.Table, column: str, given: list[str], file: str | Path) -> None:
    """InputError where a column of class names is not as the labels beside it: somebody has edited one of the two."""
    for row, (name, label) in enumerate(zip(_texts(table, column), given)):
        if name not in (None, label):
            raise InputError(
                f"{file} labels the image '{table['id'][row]}' {label!r} and calls it {name!r} in the column "
                f"`{column}`; correct both columns, or leave one out"
            )


def _texts(table: pa.Table, column: str) -> list[Any]:
    return pc.utf8_trim_whitespace(table[column].cast(pa.string())).to_pylist()


def _numbers_of(table: pa.Table, column: str, classes: list[str], num_classes: int, file: str | Path) -> np.ndarray:
    """The class numbers in a column of names or numbers, int64 [rows]; InputError for an unknown or unclear one."""
    number_of = {name: number for number, name in enumerate(classes)}
    texts = _texts(table, column)
    by_name = np.array([number_of.get(text, -1) for text in texts], np.int64)
    by_number = np.array([int(t) if t and t.isdecimal() and int(t) < num_classes else -1 for t in texts], np.int64)
    if pa.types.is_integer(table[column].type):
        by_name = by_number
    found = np.where(by_name < 0, by_number, by_name)
    if (found < 0).any():
        text = texts[int(np.argmin(found))]
        raise InputError(f"{file} has the label '{text}', not a class name or a number below {num_classes}")
    if (by_name < 0).any() != (by_number < 0).any():  # all can be read in one of the two ways only
        return by_number if (by_name < 0).any() else by_name
    unclear = (by_number >= 0) & (by_number != found)
    beside = column.replace("label", "class")
    if unclear.any() and beside in table.column_names:
        told = [number_of.get(name, -1) for name in _texts(table, beside)]
        found = np.where(unclear, told, found)
        unclear &= (found != by_name) & (found != by_number)
    if unclear.any():
        row = int(np.argmax(unclear))
        raise InputError(
            f"{file} has the label '{texts[row]}', which is the name of class number {by_name[row]} and a number"
            " itself; give names in a column `class`, or numbers as integers in Parquet"
        )
    return found


def fingerprint(labels: np.ndarray | None) -> str:
    """A short hash, so that a resumed run can tell whether its labels were given anew."""
    return "" if labels is None else blake2(labels.tobytes(), size=8)
