"""`sweep.json`: what a sweep is, so that `--resume` goes on with the same one.

A space is known by its content. The code of a user's space is run when the user names the file, never because a folder
names one: the trials of a grid or a random search are in the record.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from ray_adaplr.config import Config
from ray_adaplr.errors import InputError, checked_model
from ray_adaplr.storage.folder import Folder, absolute
from ray_adaplr.storage.layout import SWEEP, SWEEP_FILES
from ray_adaplr.storage.ownership import check_ours, claim, clear
from ray_adaplr.sweep.options import SweepJob, SweepOptions
from ray_adaplr.sweep.space import Changes, space_file


class SweepRecord(BaseModel):
    """What all of a sweep's trials depend on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    space: str
    space_sha256: str
    source: list[str]
    model: str | None = None
    classes: str | None = None
    normalize: str | None = None
    target: list[str]
    target_fingerprint: str
    options: SweepOptions
    config: str  # TOML
    listed: list[Changes] | None  # None where a searcher makes trials up
    command: str = ""
    precision: str | None = None  # what precision = "auto" came to, for all trials; not known before the first run

    def settings(self) -> Config:
        """The sweep's settings."""
        return Config.load_text(self.config)


def content_hash(space: str) -> str:
    """What identifies a space: the hash of its file."""
    return hashlib.sha256(space_file(space).read_bytes()).hexdigest()


def read_record(out: str) -> SweepRecord:
    """The record of the sweep in a folder; InputError when there is none, or it is damaged."""
    folder = Folder(out)
    if not folder.exists(SWEEP):
        raise InputError(f"--resume: there is no sweep in {out}")
    try:
        content = json.loads(folder.read(SWEEP))
        return checked_model(SweepRecord, content)
    except (ValueError, TypeError, OSError) as error:
        way_out = "start again with --force, or choose another --out"
        raise InputError(f"{SWEEP} in {out} is damaged or of another version; {way_out}") from error


def may_run(job: SweepJob, earlier: SweepRecord) -> str:
    """The space that a resumed sweep goes on with; refused are another content, and code that nobody named here."""
    space = job.space or earlier.space
    if content_hash(space) != earlier.space_sha256:
        raise InputError(
            f"{space} is not the space that the sweep in {job.out} was started with; put that back, or choose "
            "another --out"
        )
    if earlier.listed is None and job.space is None and Path(space).suffix == ".py":
        raise InputError(f"to go on, the code of {space} has to run; say so: tune {space} --resume --out {job.out}")
    return space


def check_sweep(folder: Folder, job: SweepJob, record: SweepRecord) -> None:
    """Refuse a folder of somebody else's, one with another sweep, or going on without --resume; changes nothing."""
    check_ours(folder, "sweep")
    if job.force or not folder.exists(SWEEP):
        return
    if not job.resume:
        raise InputError(f"{folder.uri} holds a sweep; --resume goes on with it, --force starts again")
    before, now = (_comparable(each) for each in (read_record(job.out), record))
    changed = [name for name in now if before[name] != now[name]]
    if changed:
        raise InputError(f"{folder.uri} holds a sweep with other {', '.join(changed)}; choose another --out")


def put_record(folder: Folder, job: SweepJob, record: SweepRecord) -> None:
    """Take a folder that is held for a sweep, or go on in it."""
    check_sweep(folder, job, record)  # once more: somebody may have been faster
    if job.force:
        clear(folder, SWEEP_FILES)
    claim(folder, "sweep")
    if not folder.exists(SWEEP):
        folder.write(SWEEP, record.model_dump_json(indent=1) + "\n")


def _comparable(record: SweepRecord) -> dict[str, Any]:
    content = json.loads(record.model_dump_json(exclude={"command", "space", "precision"}))
    return {**content, "source": [absolute(source) for source in record.source]}  # a place has several spellings
