"""Reads whatever a run's folder holds, finished, in mid-run or failed: a missing or cut-off file is never an error."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from ray_adaplr.config import tomllib
from ray_adaplr.core import signs
from ray_adaplr.errors import InputError
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.layout import CONFIG, LABEL_COLUMNS, LABELS, METRICS, ORIGIN, SUMMARY
from ray_adaplr.storage.metrics import parse_lines

Record = dict[str, Any]


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value read from JSON can be drawn: a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass
class RunFolder:
    """What was found in a run's folder; what was not found is empty."""

    name: str
    place: str
    refine: list[Record]  # one record per epoch, in order
    distill: list[Record]
    labels: pa.Table | None
    summary: Record
    settings: Record
    origin: Record  # run.json: source, target, command
    unread: list[str]  # files that are there but could not be read
    last_write: datetime | None

    @property
    def finished(self) -> bool:
        """A run writes its summary last."""
        return bool(self.summary)

    @property
    def has_truth(self) -> bool:
        """Whether the run knew the ground truth, for its diagnostics."""
        known = [self.summary.get(key) for key in ("inferred", "noise_before")]
        return any(is_number(value) for value in known) or any("noise" in record for record in self.refine)

    @property
    def alpha(self) -> float:
        """The confidence above which a label counts as sure."""
        alpha = self.settings.get("alpha")
        return float(alpha) if is_number(alpha) else 0.9

    @property
    def command(self) -> str:
        """The command that started the run."""
        return str(self.origin.get("command") or self.summary.get("command") or "")

    @cached_property
    def classes(self) -> list[str]:
        """Class names as the run wrote them, else numbers."""
        known = self.summary.get("classes") or self.origin.get("classes") or []
        largest = -1
        if self.labels is not None and len(self.labels):
            columns = [self.labels[name].to_numpy() for name in ("initial_label", "refined_label")]
            largest = max(int(column.max()) for column in columns)
        return [str(name) for name in known] + [str(i) for i in range(len(known), largest + 1)]

    def last(self, key: str) -> float | None:
        """The newest value of a figure."""
        return next((r[key] for r in reversed(self.refine) if is_number(r.get(key))), None)

    @cached_property
    def warnings(self) -> list[str]:
        """Plain signs of harm: as the run wrote them, or worked out from the epochs so far."""
        if "warnings" in self.summary:
            return [str(warning) for warning in self.summary["warnings"]]
        return signs.warnings(self.refine)


def read_run(place: str | Path, labels: bool = True) -> RunFolder:
    """Reads a run's folder, or a URI of a pyarrow filesystem; `labels` is the one large file of it."""
    folder = Folder(place)
    if folder.fs.get_file_info(folder.base).type != fs.FileType.Directory:
        raise InputError(f"{place} is not a folder; name the folder that `adapt --out` made")
    unread: list[str] = []
    written: list[datetime] = []

    def read(name: str, parse: Callable[[bytes], Any], empty: Any) -> Any:
        info = folder.fs.get_file_info(folder.path(name))
        if info.type != fs.FileType.File:
            return empty
        if info.mtime:
            written.append(info.mtime)
        try:
            return parse(folder.read(name))
        except (OSError, ValueError):
            unread.append(name)
            return empty

    records = read(METRICS, parse_lines, [])
    return RunFolder(
        name=Path(folder.base).name,
        place=str(place),
        refine=_by_epoch(records, "refine"),
        distill=_by_epoch(records, "distill"),
        labels=read(LABELS, _parse_labels, None) if labels else None,
        summary=read(SUMMARY, _parse_object, {}),
        settings=read(CONFIG, lambda data: tomllib.loads(data.decode()), {}),
        origin=read(ORIGIN, _parse_object, {}),
        unread=unread,
        last_write=max(written, default=None),
    )


def _parse_object(data: bytes) -> Record:
    content = json.loads(data)
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    return content


def _by_epoch(records: list[Record], stage: str) -> list[Record]:
    """A resumed run may have written an epoch twice: the later line is the one that counts."""
    epochs = {r["epoch"]: r for r in records if r.get("stage") == stage and isinstance(r.get("epoch"), int)}
    return [epochs[epoch] for epoch in sorted(epochs)]


def _parse_labels(data: bytes) -> pa.Table:
    table = pq.read_table(pa.BufferReader(data))
    if lacking := set(LABEL_COLUMNS) - set(table.column_names):
        raise ValueError(f"{LABELS} lacks {sorted(lacking)}")
    return table
