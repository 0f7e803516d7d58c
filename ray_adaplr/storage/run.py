"""A run's folder: what is in it, whether a new call may go on in it, and the lock that keeps a second run out."""

import contextlib
import fcntl
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ray_adaplr.config import Config
from ray_adaplr.core.models import Classifier
from ray_adaplr.errors import InputError
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.layout import (
    CHECKPOINTS,
    CONFIG,
    INFERRED,
    INPUTS,
    LABELS,
    LOCK,
    METRICS,
    ORIGIN,
    START_MODELS,
    WRITTEN,
)
from ray_adaplr.storage.models import load_model, save_model

_SHAPES = ("n_e", "n_a", "history_dtype", "zero_fill")  # what the files of a checkpoint depend on


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


class Run:
    """One run's folder on any filesystem; each stage leaves a file, and a stage whose file is there is done."""

    def __init__(self, out: str | Path) -> None:
        self.folder = Folder(out)
        self.name = self.folder.base.rstrip("/").rsplit("/", 1)[-1]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for one process; the system frees the lock when that process dies, however it dies.

        Raises:
            InputError: when another live run holds it.
        """
        if not self.folder.is_local:
            yield
            return
        try:
            Path(self.folder.base).mkdir(parents=True, exist_ok=True)
            lock = open(self.folder.path(LOCK), "a+")  # noqa: SIM115
        except OSError as error:
            raise InputError(f"cannot write to {self.folder.uri} ({error.strerror}); choose another --out") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                lock.seek(0)
                holder = lock.read().strip() or "another process"
                raise InputError(
                    f"{self.folder.uri} is in use by a live run ({holder}); wait or choose another --out"
                ) from error
            lock.truncate(0)
            lock.write(f"pid {os.getpid()} on {os.uname().nodename}")
            lock.flush()
            yield

    def clear(self) -> None:
        """Throw an earlier run's files away."""
        for name in WRITTEN:
            self.folder.delete(name)

    def begin(self, config: Config, origin: dict[str, Any]) -> None:
        """Claim the folder for these settings, or go on in it when they are the same.

        Args:
            config: resolved settings.
            origin: what else fixes the result (sources, targets, their fingerprints), and the command.

        Raises:
            InputError: when an earlier run here had other settings or data.
        """
        if self.folder.exists(CONFIG):
            earlier = Config.load_text(self.folder.read(CONFIG).decode())
            changed = earlier.differences(config)
            before = self.folder.read_json(ORIGIN)
            fixed = ("source", "target_fingerprint", "given_labels")
            changed += [f"{k}: {before.get(k)} -> {origin[k]}" for k in fixed if before.get(k) != origin[k]]
            if changed:
                raise InputError(
                    f"{self.folder.uri} holds a run with other settings ({'; '.join(changed)}); use --force to start "
                    "anew, or --fork with another --out to go on under the new ones"
                )
        elif self.folder.is_local and set(os.listdir(self.folder.base)) - INPUTS:
            raise InputError(f"{self.folder.uri} holds other files; choose a new or empty folder for --out")
        self.folder.write_json(ORIGIN, origin)
        self.folder.write(CONFIG, config.to_toml())

    def fork(self, earlier: str, config: Config, origin: dict[str, Any]) -> None:
        """Take over another run's inferred labels and checkpoints, to go on from them under other settings.

        Args:
            earlier: the other run's folder.
            config: the new, resolved settings.
            origin: as for `begin`.

        Raises:
            InputError: when that is no run, or one of other images, or the checkpoints cannot carry the new settings.
        """
        if self.folder.exists(CONFIG):
            return  # forked before; this call resumes it
        other = Folder(earlier)
        if not other.exists(CONFIG):
            raise InputError(f"--fork {earlier}: there is no run in that folder")
        before = Config.load_text(other.read(CONFIG).decode())
        fixed = [name for name in _SHAPES if getattr(before, name) != getattr(config, name)]
        if fixed:
            raise InputError(f"--fork cannot change {', '.join(fixed)}: the checkpoints hold the members as they are")
        theirs = other.read_json(ORIGIN)
        if theirs["target_fingerprint"] != origin["target_fingerprint"]:
            raise InputError(f"--fork {earlier}: that run is of other images ({', '.join(theirs['target'])})")
        if origin["given_labels"] not in ("", theirs["given_labels"]):
            raise InputError("--fork goes on from labels that are there already; give --labels to a run of its own")
        for name in (INFERRED, START_MODELS, CHECKPOINTS):
            other.copy(name, self.folder)
        self.folder.delete(f"{CHECKPOINTS}/distill.pt")  # of a target model under the earlier settings

    def done(self, name: str) -> bool:
        """Whether a stage's file is there."""
        return self.folder.exists(name)

    def write_inferred(self, ids: pa.ChunkedArray, inferred: Inferred) -> None:
        """First labels, and the models the members start from; the labels last, as the sign that all is there."""
        for k, model in enumerate(inferred.models):
            save_model(self.folder / f"{START_MODELS}/{k}", model)
        columns = {
            "id": ids,
            "label": inferred.labels.astype(np.int32),
            "confidence": inferred.confidence,
            "start_label": inferred.start_labels.astype(np.int32),
            "fixed": np.zeros(len(ids), bool) if inferred.fixed is None else inferred.fixed,
        }
        notes = {"warnings": json.dumps(inferred.warnings), "warm": json.dumps(inferred.warm)}
        table = pa.table(columns).replace_schema_metadata(notes)
        self._write_table(INFERRED, table)

    def read_inferred(self, models: list[Classifier]) -> Inferred:
        """What `write_inferred` wrote; `models` give the architectures."""
        table = self._read_table(INFERRED)
        return Inferred(
            table["label"].to_numpy().astype(np.int64),
            table["confidence"].to_numpy(),
            table["start_label"].to_numpy().astype(np.int64),
            [load_model((self.folder / f"{START_MODELS}/{k}").uri, like=model) for k, model in enumerate(models)],
            json.loads(table.schema.metadata[b"warnings"]),
            table["fixed"].to_numpy() if table["fixed"].to_numpy().any() else None,
            json.loads(table.schema.metadata[b"warm"]),
        )

    def write_labels(self, table: pa.Table) -> None:
        """The refined labels."""
        self._write_table(LABELS, table)

    def read_labels(self) -> pa.Table:
        """The refined labels."""
        return self._read_table(LABELS)

    def write_metrics(self, lines: list[dict[str, Any]]) -> None:
        """All of metrics.jsonl; it is small, and a whole atomic write leaves no line twice after a resume."""
        self.folder.write(METRICS, "".join(json.dumps(line) + "\n" for line in lines))

    def read_metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl."""
        if not self.folder.exists(METRICS):
            return []
        return [json.loads(line) for line in self.folder.read(METRICS).splitlines()]

    def _write_table(self, name: str, table: pa.Table) -> None:
        buffer = io.BytesIO()
        pq.write_table(table, buffer)
        self.folder.write(name, buffer.getvalue())

    def _read_table(self, name: str) -> pa.Table:
        return pq.read_table(io.BytesIO(self.folder.read(name)))
