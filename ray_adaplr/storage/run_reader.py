"""Reads whatever a run's folder holds, finished, in mid-run or failed: a missing or cut-off file is never an error."""

import contextlib
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
from ray_adaplr.storage.digests import crc32
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.layout import CONFIG, LABEL_COLUMNS, LABELS, METRICS, MOST_CLASSES, ORIGIN, SUMMARY
from ray_adaplr.storage.metrics import parse_lines

Record = dict[str, Any]  # a line of metrics.jsonl, what a file of a run holds, or a trial of a sweep
CHECKSUMS = "checksums"  # in run.json: CRC-32 of a run's tables, by name
MOST_EPOCHS = 1_000_000  # as with MOST_CLASSES, a larger number in a file is damage, and would cost memory
_LABELS_SCHEMA = pa.schema(
    zip(LABEL_COLUMNS, (pa.string(), pa.int64(), pa.int64(), pa.float32(), pa.bool_(), pa.int64()))
)


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value read from JSON can be drawn: a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_altered(name: str, content: bytes, origin: Record) -> bool:
    """Whether a table has other bytes than the run wrote; a run.json without its checksum cannot tell."""
    known = origin.get(CHECKSUMS)
    return isinstance(known, dict) and name in known and known[name] != crc32(content)


@dataclass
class RunFolder:
    """What was found in a run's folder; what was not found is empty."""

    name: str
    place: str
    refine: list[Record]  # one record per epoch, in order
    distill: list[Record]
    labels: pa.Table | None
    refined: bool  # the labels are there, read or not
    summary: Record
    settings: Record
    origin: Record  # run.json: source, target, command
    unread: list[str]  # files, or parts of files, that are there but could not be read
    last_write: datetime | None

    def check(self) -> None:
        """InputError where there is nothing of a run."""
        if not (self.origin or self.settings or self.refine or self.summary or self.unread):
            raise InputError(f"{self.place} holds no run; name the folder that `adapt --out` made")

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

    @property
    def targets(self) -> list[str]:
        """Where the images of the run were."""
        places = self.origin.get("target")
        return [str(place) for place in places] if isinstance(places, list) else []

    @cached_property
    def classes(self) -> list[str]:
        """Class names as the run wrote them; numbers for those it has no name for, as many as the model has classes."""
        known = self.summary.get("classes") or self.origin.get("classes")
        names = [str(name) for name in known] if isinstance(known, list) else []
        count = self.summary.get("num_classes") or self.origin.get("num_classes")
        count = count if isinstance(count, int) and 0 < count <= MOST_CLASSES else 0
        if self.labels is not None and len(self.labels):  # of a run that did not write the number, or a damaged one
            largest = max(int(self.labels[name].to_numpy().max()) for name in ("initial_label", "refined_label"))
            count = max(count, largest + 1)
        return names + [str(i) for i in range(len(names), count)]

    def last(self, key: str) -> float | None:
        """The newest value of a figure."""
        return next((r[key] for r in reversed(self.refine) if is_number(r.get(key))), None)

    @property
    def sure_noise(self) -> Any:
        """Which share of the sure labels is wrong."""
        return self.summary.get("hcs_noise", self.last("hcs_noise"))

    @cached_property
    def warnings(self) -> list[str]:
        """Plain signs of harm: as the run wrote them, or worked out from what there is so far."""
        written = self.summary.get("warnings")
        if isinstance(written, list):
            return [str(warning) for warning in written]
        change = None
        if self.labels is not None and len(self.labels):
            columns = ("initial_label", "refined_label", "high_confidence")
            before, after, sure = (self.labels[name].to_numpy() for name in columns)
            change = signs.label_change(before, after, sure, len(self.classes))
        return signs.warnings(self.refine, change, self.classes)


def read_run(place: str | Path, labels: bool = True) -> RunFolder:
    """Reads a run's folder, or a URI of a pyarrow filesystem; `labels` is the one large file of it."""
    folder = Folder(place)
    if folder.info().type != fs.FileType.Directory:
        raise InputError(f"{place} is not a folder; name the folder that `adapt --out` made")
    unread: list[str] = []
    written: list[datetime] = []

    def read(name: str, parse: Callable[[bytes], Any], empty: Any) -> Any:
        info = folder.info(name)
        if info.type != fs.FileType.File:
            return empty
        if info.mtime:
            written.append(info.mtime)
        try:
            return parse(folder.read(name))
        except (OSError, ValueError, TypeError, LookupError, RecursionError, pa.ArrowException):
            unread.append(name)
            return empty

    origin = read(ORIGIN, _parse_object, {})
    records, lost = read(METRICS, _parse_records, ([], 0))
    if lost:
        unread.append(f"{METRICS} ({lost} of {lost + len(records)} lines)")
    return RunFolder(
        name=Path(folder.base).name,
        place=str(place),
        refine=_by_epoch(records, "refine"),
        distill=_by_epoch(records, "distill"),
        labels=read(LABELS, lambda data: _parse_labels(data, origin), None) if labels else None,
        refined=folder.exists(LABELS),
        summary=read(SUMMARY, _parse_object, {}),
        settings=read(CONFIG, lambda data: tomllib.loads(data.decode()), {}),
        origin=origin,
        unread=unread,
        last_write=max(written, default=None),
    )


def remarks_in(summary: Record) -> list[str]:
    """What was said of the first labels; a run of an earlier version called it `guests`."""
    found = summary.get("remarks", summary.get("guests"))
    return [str(remark) for remark in found] if isinstance(found, list) else []


def words_per_domain(summary: Record) -> dict[str, str]:
    """What became of the labels of each of several targets, by its name."""
    said, found = dict[str, str](), summary.get("labels_per_domain")
    for name, figures in found.items() if isinstance(found, dict) and len(found) > 1 else ():
        with contextlib.suppress(TypeError, ValueError, KeyError):  # damaged
            said[name] = "{num_images:,} images, {changed_share:.1%} changed, {hcs_share:.1%} sure".format(**figures)
            said[name] += "; right {inferred:.3f} → {refined:.3f}".format(**figures)  # where there is ground truth
    return said


def _parse_object(data: bytes) -> Record:
    content = json.loads(data)
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    return content


def _parse_records(data: bytes) -> tuple[list[Record], int]:
    """Records of metrics.jsonl, and how many lines are none; a last line that is still being written does not count."""
    records = [line for line in parse_lines(data) if _is_record(line)]
    *whole, last = data.split(b"\n")
    return records, len(whole) + len(parse_lines(last)) - len(records)


def _is_record(line: Record) -> bool:
    epoch, collapsed = line.get("epoch"), line.get("collapsed", [])
    if type(epoch) is not int or not 0 <= epoch < MOST_EPOCHS:
        return False
    return isinstance(collapsed, list) and all(type(c) is int and c >= 0 for c in collapsed)


def _by_epoch(records: list[Record], stage: str) -> list[Record]:
    """A resumed run may have written an epoch twice: the later line is the one that counts."""
    epochs = {record["epoch"]: record for record in records if record.get("stage") == stage}
    return [epochs[epoch] for epoch in sorted(epochs)]


def _parse_labels(data: bytes, origin: Record) -> pa.Table:
    """The table of labels, checked for all that its readers rely on."""
    if is_altered(LABELS, data, origin):
        raise ValueError(f"{LABELS} is not as the run wrote it")
    table = pq.read_table(pa.BufferReader(data)).select(list(LABEL_COLUMNS)).cast(_LABELS_SCHEMA)
    table.validate(full=True)
    if any(column.null_count for column in table.columns):
        raise ValueError(f"{LABELS} has empty cells")
    for name in ("initial_label", "refined_label"):
        labels = table[name].to_numpy()
        if len(labels) and not 0 <= labels.min() <= labels.max() < MOST_CLASSES:
            raise ValueError(f"{LABELS}: {name} from {labels.min()} to {labels.max()}")
    return table
