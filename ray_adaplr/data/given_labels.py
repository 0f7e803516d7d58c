"""Labels from a file: another method's output as the start of refinement, or a person's corrections, which stay."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from ray_adaplr.data.labels import unpacked
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError
from ray_adaplr.storage.folder import read_file


def read_given_labels(file: str | Path, store: ImageStore, num_classes: int, classes: Sequence[str] = ()) -> np.ndarray:
    """Labels for the store's images from a CSV (.gz too) or Parquet file with `id`, `label`; int64 [n], -1 where none.

    Args:
        file: `label` is a class name or number; of a run's labels.parquet, `refined_label` is taken.
        store: whose ids the file names.
        num_classes: labels lie below it.
        classes: their names, where the store has none: a report names them as the model does.

    Raises:
        InputError: for a missing column, an unknown id or class, or an id named twice.
    """
    content = pa.py_buffer(unpacked(read_file(file, "label file"), str(file)))
    try:
        as_text = pa.csv.ConvertOptions(column_types={"id": pa.string(), "label": pa.string()})
        parquet, source = content[:4] == b"PAR1", pa.BufferReader(content)
        table = pa.parquet.read_table(source) if parquet else pa.csv.read_csv(source, convert_options=as_text)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"cannot read the label file {file}: {str(error).splitlines()[0]}") from error
    column = next((name for name in ("label", "refined_label") if name in table.column_names), None)
    if column is None or "id" not in table.column_names:
        raise InputError(f"{file} has the columns {', '.join(table.column_names)}; it needs id and label")
    rows = pc.index_in(table["id"].cast(pa.string()), value_set=store.ids.combine_chunks())
    if rows.null_count:
        unknown = table["id"].filter(pc.is_null(rows))[0]
        raise InputError(f"{file} names the image '{unknown}', which is not in {', '.join(store.paths)}")
    index = rows.to_numpy()
    if len(np.unique(index)) != len(index):
        raise InputError(f"{file} names an image twice")
    names = {name: number for number, name in enumerate(store.classes or classes)}
    given = np.full(len(store), -1, np.int64)
    for row, text in zip(index.tolist(), table[column].cast(pa.string()).to_pylist()):
        number = names.get(text, int(text) if text is not None and text.isdecimal() else -1)
        if not 0 <= number < num_classes:
            raise InputError(f"{file} has the label '{text}', which is no class name or number below {num_classes}")
        given[row] = number
    return given


def fingerprint(labels: np.ndarray | None) -> str:
    """A short hash, so that a resumed run can tell whether its labels were given anew."""
    return "" if labels is None else hashlib.blake2b(labels.tobytes(), digest_size=8).hexdigest()
