"""What the first stage leaves: labels, how sure they are, and the models that the members start from."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ray_adaplr.core.models import Classifier, averaged

_NOTES = ("warnings", "warm", "remarks", "as_it_came", "shift", "spared")  # what the table's metadata hold


@dataclass(frozen=True)
class Inferred:
    """What refinement starts from."""

    labels: np.ndarray  # the source models' own, int64 [n]
    confidence: np.ndarray  # of those labels, float32 [n]
    start_labels: np.ndarray  # what refinement starts from, after the warm start, int64 [n]
    models: list[Classifier]  # member k starts from models[k mod len]
    warnings: list[str]
    fixed: np.ndarray | None = None  # labels that a person gave and that stay, bool [n]
    warm: bool = False  # the start labels are of models whose warm start was kept
    remarks: list[str] = field(default_factory=list)  # what became of each guest, and of the vote
    start_probs: np.ndarray | None = None  # where features voted: the soft labels to start from, float32 [n, C]
    shares: np.ndarray | None = None  # expected of the classes where prior = "auto", float32 [C]; None: equal ones
    as_it_came: bool = False  # the models are the sources', BatchNorm's statistics too: all warm starts were dropped
    shift: float | None = None  # how far the images lie from the source's own, by `core/shift.py`; None: not known
    spared: bool = False  # there is no shift, and the source model is hardly changed

    def to_table(self, ids: pa.ChunkedArray) -> pa.Table:
        """All but the models."""
        columns = {
            "id": ids,
            "label": self.labels.astype(np.int32),
            "confidence": self.confidence,
            "start_label": self.start_labels.astype(np.int32),
            "fixed": np.zeros(len(ids), bool) if self.fixed is None else self.fixed,
        }
        if self.start_probs is not None:
            columns["vote"] = pa.FixedSizeListArray.from_arrays(self.start_probs.reshape(-1), self.start_probs.shape[1])
        notes = {name: json.dumps(getattr(self, name)) for name in _NOTES}
        if self.shares is not None:
            notes["shares"] = json.dumps(self.shares.tolist())
        return pa.table(columns).replace_schema_metadata(notes)

    @classmethod
    def together(cls, parts: Sequence["Inferred"], domains: Sequence[str]) -> "Inferred":
        """Of several targets that were labelled one by one; members start from the mean of their models' weights."""
        if len(parts) == 1:
            return parts[0]

        def joined(name: str) -> np.ndarray:
            return np.concatenate([getattr(part, name) for part in parts])

        def said(name: str) -> list[str]:
            return [f"{domain}: {each}" for domain, part in zip(domains, parts) for each in getattr(part, name)]

        start_probs, shares = joined("start_probs"), None
        if any(part.shares is not None for part in parts):
            equal = np.full_like(start_probs[0], 1 / start_probs.shape[1])
            expected = [equal if part.shares is None else part.shares for part in parts]
            shares = np.average(expected, axis=0, weights=[len(part.labels) for part in parts])
        return cls(
            labels=joined("labels"),
            confidence=joined("confidence"),
            start_labels=joined("start_labels"),
            models=[averaged(models) for models in zip(*(part.models for part in parts))],
            warnings=said("warnings"),
            warm=all(part.warm for part in parts),
            remarks=["Each target was labelled by itself.", *said("remarks")],
            start_probs=start_probs,
            shares=shares,
            as_it_came=all(part.as_it_came for part in parts),
        )

    @classmethod
    def from_table(cls, table: pa.Table, models: list[Classifier]) -> "Inferred":
        """What `to_table` made, with its models."""
        notes = {name.decode(): json.loads(value) for name, value in table.schema.metadata.items()}
        fixed, start_probs, shares = table["fixed"].to_numpy(), None, notes.get("shares")
        if "vote" in table.column_names:
            start_probs = table["vote"].combine_chunks().flatten().to_numpy().reshape(len(table), -1)
        return cls(
            labels=table["label"].to_numpy().astype(np.int64),
            confidence=table["confidence"].to_numpy(),
            start_labels=table["start_label"].to_numpy().astype(np.int64),
            models=models,
            fixed=fixed if fixed.any() else None,
            start_probs=start_probs,
            shares=None if shares is None else np.array(shares, np.float32),
            **{name: notes[name] for name in _NOTES if name in notes},
        )
