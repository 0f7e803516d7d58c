"""A run's folder as its run writes it: whether a new call may continue in it, and what each stage leaves there."""

import contextlib
import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from ray_adaplr.config import Config
from ray_adaplr.core.models import Classifier
from ray_adaplr.errors import InputError, first_line
from ray_adaplr.storage import layout
from ray_adaplr.storage.digests import crc32
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.inferred import Inferred
from ray_adaplr.storage.lease import hold
from ray_adaplr.storage.metrics import Line, parse_lines
from ray_adaplr.storage.models import SPEC, is_whole, load_model, save_model
from ray_adaplr.storage.ownership import check_ours, claim, clear
from ray_adaplr.storage.run_reader import CHECKSUMS, is_altered
from ray_adaplr.storage.secrets import redacted

log = logging.getLogger(__name__)
_FIXED = {  # what makes it another run, and the words for it
    "source_fingerprint": "another source model or normalisation",
    "target_fingerprint": "other images",
    "given_labels": "other labels to start from",
    "guest_fingerprint": "other guests",
    "prior_shares": "another prior",
    "classes": "other class names",
}
GIVEN = {"given_labels": "--labels", "guest_fingerprint": "--guest"}  # those that a run may lack, and their options
_COMPUTED = "computed_with"
_INFER_SECONDS = "infer_seconds"
_FORKED = "forked_from"


def as_parquet(table: pa.Table, **how: Any) -> bytes:
    """A table as a Parquet file."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **how)
    return buffer.getvalue()


def as_csv(table: pa.Table) -> bytes:
    """A table as text, whose first line names the columns."""
    buffer = io.BytesIO()
    pa.csv.write_csv(table, buffer)
    return buffer.getvalue()


class Unreadable(InputError):
    """A table of a run that the disk has damaged."""


class Run:
    """One run's folder on any filesystem; each stage leaves a file, and a stage whose file is there is done."""

    def __init__(self, out: str | Path) -> None:
        self.folder = Folder(out)
        self.name = self.folder.name

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder for this process; InputError when another live run holds it."""
        with hold(self.folder) as self.folder:
            yield
        self.folder = Folder(self.folder.uri)

    def check(self, config: Config | None = None, origin: dict[str, Any] | None = None, force: bool = False) -> None:
        """Refuse a folder with somebody else's files or, unless `force`, with a run of other settings or data.

        Changes nothing. What is left out of `config` and `origin` is not compared; without both it looks only at whose
        folder it is.
        """
        check_ours(self.folder, "run")
        if origin is None or force or not self.folder.exists(layout.CONFIG):
            return
        earlier, before = self.read_config(), self.known_origin()
        if _FORKED in before:  # what its first labels were made with was named to the run it continues
            origin = origin | {key: before.get(key) for key in GIVEN if not origin.get(key)}
        changed = [*earlier.differences(config.as_decided(earlier)).values()] if config else []
        others = [words for key, words in _FIXED.items() if before.get(key) != origin.get(key, before.get(key))]
        if unnamed := [option for key, option in GIVEN.items() if before.get(key) and not origin.get(key, True)]:
            raise InputError(
                f"{self.folder.uri} holds a run that was started with {' and '.join(unnamed)}; name that again to "
                "continue, or use --force to start again without"
            )
        if others:
            raise InputError(
                f"{self.folder.uri} holds a run of {' and '.join(others)}; use --force to start again, or another --out"
            )
        if changed:
            raise InputError(
                f"{self.folder.uri} holds a run with other settings ({'; '.join(changed)}); use --force to start "
                "again, or --fork RUN with another --out to continue under the new ones"
            )

    def known_origin(self) -> dict[str, Any]:
        """What run.json holds; InputError where nobody can tell what the run is of."""
        if not (found := self.origin()):
            raise InputError(
                f"{self.folder.path(layout.ORIGIN)} is missing or damaged, so nobody can tell what the run is of; use "
                "--force to start again, or another --out"
            )
        return found

    def claim(self, force: bool = False) -> None:
        """Make the folder this run's, or continue in it; `force` removes an earlier run's files first."""
        claim(self.folder, "run")
        if force:
            clear(self.folder, layout.RUN_FILES)

    def begin(self, config: Config, origin: dict[str, Any]) -> Config:
        """Write down settings and origin, after all checks; returns the settings, with what was decided before."""
        if self.done(layout.CONFIG):
            config = config.as_decided(self.read_config())
        kept = {_COMPUTED, CHECKSUMS, _INFER_SECONDS, _FORKED, *(key for key in GIVEN if not origin[key])}
        added = {key: value for key, value in self.origin().items() if key in kept}
        self.folder.write_json(layout.ORIGIN, origin | added)
        self.write_config(config)
        return config

    def inherit(self, earlier: "Run") -> None:
        """Note of an earlier run's files, which are here now, what that run notes of them."""
        theirs = earlier.origin()
        kept = {key: theirs[key] for key in (CHECKSUMS, _INFER_SECONDS, *GIVEN) if key in theirs}
        self.folder.write_json(layout.ORIGIN, {**kept, _FORKED: redacted(earlier.folder.uri)})

    def read_config(self) -> Config:
        """The settings that the run was begun with."""
        return Config.load_text(self.folder.read(layout.CONFIG).decode(errors="replace"))  # refused as no TOML

    def write_config(self, config: Config) -> None:
        """All settings, as far as they are known."""
        self.folder.write(layout.CONFIG, config.to_toml())

    def origin(self) -> dict[str, Any]:
        """What run.json holds; nothing when it is missing or damaged."""
        try:
            found = self.folder.read_json(layout.ORIGIN)
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def note_computed_with(self, **now: Any) -> list[str]:
        """Record what the bits depend on beside the settings; returns a sentence when a resumed run changes it."""
        origin = self.origin()
        before = origin.get(_COMPUTED, [])
        if not before or before[-1] != now:
            self.folder.write_json(layout.ORIGIN, origin | {_COMPUTED: [*before, now]})
        changes = [
            f"{name} {earlier.get(name)} -> {value}"
            for earlier, later in zip(before, [*before[1:], now])
            for name, value in later.items()
            if earlier.get(name, value) != value
        ]
        said = f"Parts were computed otherwise ({', '.join(changes)}): the bits are not those of one whole run."
        return [said] if changes else []

    def note_infer_seconds(self, seconds: float) -> None:
        """Record how long the call took that ended `infer`, which has no lines in metrics.jsonl."""
        self.folder.write_json(layout.ORIGIN, self.origin() | {_INFER_SECONDS: seconds})

    def seconds(self) -> dict[str, float]:
        """What each stage took, resumed parts too; without `infer` where no call noted it, as in a sweep's trial."""
        origin, spent = self.origin(), dict.fromkeys(("refine", "distill"), 0.0)
        for line in self.read_metrics():
            if line.get("stage") in spent:
                spent[line["stage"]] += line.get("seconds", 0)
        return {"infer": origin[_INFER_SECONDS], **spent} if _INFER_SECONDS in origin else spent

    def done(self, name: str) -> bool:
        """Whether a stage's file is there."""
        return self.folder.exists(name)

    def write_inferred(self, ids: pa.ChunkedArray, inferred: Inferred) -> None:
        """First labels, and the models the members start from; the labels last, as the sign that all is there."""
        for k, model in enumerate(inferred.models):
            save_model(self.folder / f"{layout.START_MODELS}/{k}", model)
        self._write_table(layout.INFERRED, inferred.to_table(ids))
        clear(self.folder, layout.INFER_FILES)

    def read_inferred(self, models: list[Classifier]) -> Inferred:
        """What `write_inferred` wrote; `models` give the architectures."""
        table, started = self._read_table(layout.INFERRED), self.folder / layout.START_MODELS
        loaded = [load_model((started / str(k)).uri, like=model) for k, model in enumerate(models)]
        return Inferred.from_table(table, loaded)

    def write_labels(self, table: pa.Table) -> None:
        """The refined labels, for programs and as text."""
        self.folder.write(layout.LABELS_CSV, as_csv(table))
        self._write_table(layout.LABELS, table)

    def read_labels(self) -> pa.Table:
        """The refined labels."""
        return self._read_table(layout.LABELS)

    def delete_checkpoints(self) -> None:
        """What no stage needs once all are done."""
        clear(self.folder, layout.TRAINING_FILES)

    def has_labels(self) -> bool:
        """Whether refined labels are there; unreadable ones are named in a warning, altered ones are refused."""
        return self._is_readable(layout.LABELS, self.read_labels)

    def has_summary(self) -> bool:
        """Whether the summary is there and can be read; a damaged one is named in a warning."""
        return self._is_readable(layout.SUMMARY, lambda: self.folder.read_json(layout.SUMMARY))

    def _is_readable(self, name: str, read: Callable[[], object]) -> bool:
        try:
            read()
        except FileNotFoundError:
            return False
        except (Unreadable, json.JSONDecodeError, UnicodeDecodeError) as error:
            why = first_line(error.__cause__ or error)
            log.warning("%s is damaged and made again: %s", self.folder.path(name), why)
            return False
        return True

    def has_target_model(self) -> bool:
        """Whether the target model is there and whole; a damaged one is named in a warning."""
        place = self.folder / layout.TARGET_MODEL
        whole = is_whole(place)
        if not whole and place.exists(SPEC):
            log.warning("%s does not have the bytes that were written; it is trained again", place.base)
        return whole

    def read_metrics(self) -> list[Line]:
        """All lines of metrics.jsonl."""
        return parse_lines(self.folder.read(layout.METRICS)) if self.folder.exists(layout.METRICS) else []

    def _write_table(self, name: str, table: pa.Table) -> None:
        """Write a table after its checksum in run.json: a table that is there has one."""
        content, origin = as_parquet(table, write_page_checksum=True), self.origin()
        known = origin.get(CHECKSUMS, {}) | {name: crc32(content)}
        self.folder.write_json(layout.ORIGIN, origin | {CHECKSUMS: known})
        self.folder.write(name, content)

    def _read_table(self, name: str) -> pa.Table:
        """A table as this run wrote it; Unreadable when it is none, InputError when it has other bytes."""
        content = self.folder.read(name)
        try:
            table = pq.read_table(io.BytesIO(content), page_checksum_verification=True)
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            place, why = self.folder.path(name), first_line(error)
            raise Unreadable(f"{place} is damaged ({why}): remove it, and the same command makes it again") from error
        if is_altered(name, content, self.origin()):
            raise InputError(
                f"{self.folder.path(name)} is not as the run wrote it (edited, or damaged by the disk): remove it, and "
                "the same command makes it again; labels of your own go to a new run with --labels FILE"
            )
        return table
