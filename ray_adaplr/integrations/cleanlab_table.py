"""A run's labels with cleanlab's columns: which labels were given, which are doubted, and how much.

The scores are not out of sample: the ensemble was trained on these very images.
"""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ray_adaplr.errors import InputError, first_line
from ray_adaplr.storage.folder import parent_of
from ray_adaplr.storage.layout import INFERRED, LABELS
from ray_adaplr.storage.ownership import own_file
from ray_adaplr.storage.run import Run, as_csv
from ray_adaplr.storage.run_reader import read_run

COLUMNS = ("id", "given_label", "predicted_label", "label_score", "is_label_issue")
_HEAD = ",".join(f'"{name}"' for name in COLUMNS).encode()
NOT_OUT_OF_SAMPLE = (
    "label_score is not out of sample: the ensemble was trained on these images, and trusts their labels too much"
)


def write_cleanlab(folder: str | Path, out: str | Path) -> str:
    """Write the CSV of a run; returns what was written.

    `given_label` is the label that refinement was to judge: the source model's, or one that came with --labels.
    `predicted_label` is the refined one, and a label is an issue where the two differ. `label_score` is the ensemble's
    probability of the given label; of a run without the columns p_CLASS, for a changed label the most it can be.
    InputError for a folder without refined labels, or an `out` that is somebody else's.
    """
    if Path(parent_of(out)[1]).suffix != ".csv":
        raise InputError(f"--out {out}: cleanlab's columns are written as text; let the name end in .csv")
    target, name = own_file(out, _HEAD, b"")
    found, run = read_run(folder, labels=False), Run(folder)
    found.check()
    try:
        table = run.read_labels()
    except FileNotFoundError as error:
        raise InputError(f"{folder} has no {LABELS} yet; let `adapt` or `refine` come to its end") from error
    except OSError as error:
        raise InputError(f"{folder}: {LABELS} cannot be read ({first_line(error)})") from error
    refined, given, names = table["refined_label"].to_numpy(), _given(run, table), found.classes
    names = names + [str(number) for number in range(len(names), int(max(refined.max(), given.max())) + 1)]
    words = pa.array(names)
    columns = {
        "id": table["id"],
        "given_label": words.take(pa.array(given)),
        "predicted_label": words.take(pa.array(refined)),
        "label_score": _scores(table, given, names),
        "is_label_issue": given != refined,
    }
    target.write(name, as_csv(pa.table(columns)))
    issues = int((given != refined).sum())
    return f"{len(table):,} labels, {issues:,} of them issues: {out}\n  {NOT_OUT_OF_SAMPLE}"


def _given(run: Run, table: pa.Table) -> np.ndarray:
    """The labels that were there before, int [n]: the source model's, and in their place those of a file."""
    first = table["initial_label"].to_numpy()
    if not run.origin().get("given_labels"):
        return first
    start = pq.read_table(io.BytesIO(run.folder.read(INFERRED)), columns=["start_label", "fixed"])
    fixed = start["fixed"].to_numpy()
    return np.where(fixed, start["start_label"].to_numpy(), first) if fixed.any() else start["start_label"].to_numpy()


def _scores(table: pa.Table, given: np.ndarray, names: list[str]) -> np.ndarray:
    """The probability of each given label, float32 [n]."""
    columns = [f"p_{name}" for name in names]
    if set(columns) <= set(table.column_names):
        probs = np.stack([table[column].to_numpy() for column in columns], 1)
        return probs[np.arange(len(given)), given].astype(np.float32)
    sure = table["confidence"].to_numpy()
    return np.where(given == table["refined_label"].to_numpy(), sure, 1 - sure).astype(np.float32)
