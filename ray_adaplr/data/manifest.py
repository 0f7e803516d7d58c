"""`store.json`, the manifest of an image store, and its files checked against it, here or in a copy of a remote store.

A manifest may come from anybody, so everything in it is checked before it is believed. Files are read against their
checksums once, then again only when their size or time of change is another; reading 1 GB that is in memory takes about
0.3 s on one core.

A remote store is copied once, however many processes ask at the same time: an entry of the cache is named after the
address and the manifest, so that a store that was prepared again is fetched again. The first process takes a lock,
copies into a temporary folder, checks the checksums and renames it; the others wait for the lock and find the entry.
"""

import contextlib
import fcntl
import hashlib
import json
import math
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ray_adaplr.data.options import MOST_CLASSES, checked_names
from ray_adaplr.errors import InputError, first_line
from ray_adaplr.storage.digests import crc32_of_file
from ray_adaplr.storage.folder import Folder, is_uri
from ray_adaplr.storage.layout import STORE_MANIFEST

FORMAT = "ray-adaplr image store"
VERSION = 1
FILE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,100}$"  # of a file in the store's own folder, and nowhere else

Side = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=1, le=2**40)]


class FileRecord(BaseModel):
    """A data file of a store."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    file: str = Field(pattern=FILE_NAME)
    bytes: int = Field(ge=1, le=2**50)
    crc32: str = Field(pattern=r"^[0-9a-f]{8}$")


class ShardRecord(FileRecord):
    """A file of images."""

    count: Count


class Manifest(BaseModel):
    """Everything about a store that is not an image, an id or a label."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    height: Side
    width: Side
    channels: Literal[1, 3]
    count: Count
    classes: list[str] = Field(max_length=MOST_CLASSES)
    domain: str
    split: str | None
    shards: list[ShardRecord] = Field(min_length=1)
    truth: FileRecord | None
    recipe: dict[str, Any] = Field(default_factory=dict)  # how it was prepared; the same recipe is not run twice
    left_out: int = Field(0, ge=0)  # images that could not be decoded, and files that were not read
    format: str = FORMAT
    version: int = VERSION

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of an image: height, width, channels."""
        return self.height, self.width, self.channels

    @property
    def files(self) -> list[FileRecord]:
        """All data files: the shards, and the ground truth where there is some."""
        return [*self.shards, *([self.truth] if self.truth else [])]


def parse_manifest(content: bytes, name: str) -> Manifest:
    """The manifest of a `store.json`, checked; `name` is what the file is called in a sentence about it."""
    try:
        fields = json.loads(content)
        kind, version = fields["format"], fields["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{name} is not the manifest of an image store; prepare the store again") from error
    if kind != FORMAT or version != VERSION:
        raise InputError(f"{name} is {kind!r} version {version}, this release reads {VERSION}; prepare it again")
    try:
        manifest = Manifest(**fields)
        checked_names(manifest.classes)
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"][-1:] == ("file",):
            raise InputError(f"{name} names a file outside its own folder; do not use this store") from error
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"{name} is damaged ({where}: {first['msg'].lower()}); prepare the store again") from error
    except (InputError, TypeError) as error:
        raise InputError(f"{name} is damaged ({first_line(error)}); prepare the store again") from error
    image_bytes = math.prod(manifest.shape)
    if (
        manifest.count != sum(shard.count for shard in manifest.shards)
        or any(shard.count * image_bytes > shard.bytes for shard in manifest.shards)
        or len({record.file for record in manifest.files}) != len(manifest.files)
    ):
        raise InputError(f"{name} contradicts itself (counts, sizes or files); prepare the store again")
    return manifest


def cache_folder() -> Path:
    """Where copies of remote stores and notes on checked ones are kept: `$ADAPLR_CACHE`, or below the home folder."""
    return Path(os.environ.get("ADAPLR_CACHE", "~/.cache/ray-adaplr")).expanduser()


def local_folder(path: str) -> Path:
    """The folder itself, or for a URI (s3://, gs://, file://, …) the folder of its copy on this machine."""
    if not is_uri(path):
        return Path(path)
    try:
        remote = Folder(path)
        manifest = remote.read(STORE_MANIFEST)
    except (InputError, OSError) as error:
        raise InputError(f"no store can be read at {path} ({first_line(error)}); check address and rights") from error
    entry = cache_folder() / hashlib.sha256(path.encode() + manifest).hexdigest()[:16]
    if not entry.exists():
        entry.parent.mkdir(parents=True, exist_ok=True)
        with entry.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # given back by the system when its holder dies
            if not entry.exists():
                _fill(entry, remote, manifest)
    return entry


def _fill(entry: Path, remote: Folder, content: bytes) -> None:
    manifest = parse_manifest(content, f"{remote.base}/{STORE_MANIFEST}")
    temporary = entry.with_suffix(".tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # what a killed process left
    temporary.mkdir()
    (temporary / STORE_MANIFEST).write_bytes(content)

    def fetch(record: FileRecord) -> None:
        source, target = remote.path(record.file), temporary / record.file
        try:
            remote.fetch(record.file, target)
        except OSError as error:
            raise InputError(f"{source} cannot be fetched ({first_line(error)}); check the store") from error
        if crc32_of_file(target) != record.crc32:
            raise InputError(f"{source} differs from its checksum; upload the store again")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fetch, manifest.files))
    temporary.rename(entry)
    note_as_good(entry, manifest.files)


def check_sizes(folder: Path, records: Sequence[FileRecord]) -> None:
    """InputError when a file is missing or is not as large as its record says."""
    for record in records:
        path = folder / record.file
        size = path.stat().st_size if path.is_file() else -1
        if size != record.bytes:
            state = "is missing" if size < 0 else f"has {size} bytes where {STORE_MANIFEST} says {record.bytes}"
            raise InputError(f"{path} {state}: the store is damaged; prepare it again")


def check_contents(folder: Path, records: Sequence[FileRecord], again: bool = False) -> None:
    """InputError when a file differs from its checksum; those found good before are read only if `again` or changed."""
    known = {} if again else _read(_notes(folder))
    unknown = [record for record in records if known.get(record.file) != _state(folder, record)]
    if not unknown:
        return
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda record: crc32_of_file(folder / record.file), unknown))
    for record, crc32 in zip(unknown, found):
        if crc32 != record.crc32:
            raise InputError(
                f"{folder / record.file} differs from its checksum: its bytes have changed since it was written;"
                " prepare the store again"
            )
    note_as_good(folder, unknown)


def note_as_good(folder: Path, records: Sequence[FileRecord]) -> None:
    """Notes files that are known to agree with their records."""
    notes = _notes(folder)
    content = {**_read(notes), **{record.file: _state(folder, record) for record in records}}
    with contextlib.suppress(OSError):  # no cache to write to: the files are checked again next time
        Folder(notes.parent).write_json(notes.name, content)


def _state(folder: Path, record: FileRecord) -> list[int | str]:
    about = (folder / record.file).stat()
    return [about.st_size, about.st_mtime_ns, about.st_ino, record.crc32]


def _notes(folder: Path) -> Path:
    name = hashlib.sha256(os.path.realpath(folder).encode(errors="surrogateescape")).hexdigest()[:24]
    return cache_folder() / "verified" / f"{name}.json"


def _read(notes: Path) -> dict[str, list[int | str]]:
    try:
        content = json.loads(notes.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
