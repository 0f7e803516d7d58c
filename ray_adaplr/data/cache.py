"""What this machine keeps of stores: copies of remote ones, and notes on the files that were found good.

A remote store is copied once, however many processes ask at the same time: an entry of the cache is named after the
address and the manifest, so that a store that was prepared again is fetched again. The first process takes a lock,
copies into a temporary folder, checks the checksums and renames it; the others wait for the lock and find the entry.
Files are read against their checksums once, then again only when their size or time of change is another; reading 1 GB
that is in memory takes about 0.3 s on one core.
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.fs as pafs

from ray_adaplr.data.manifest import MANIFEST, FileRecord, checksum_of, parse_manifest
from ray_adaplr.errors import InputError, first_line
from ray_adaplr.storage.folder import Folder, is_uri


def cache_folder() -> Path:
    """Where copies of remote stores and notes on checked ones are kept: `$ADAPLR_CACHE`, or below the home folder."""
    return Path(os.environ.get("ADAPLR_CACHE", "~/.cache/ray-adaplr")).expanduser()


def local_folder(path: str) -> Path:
    """The folder itself, or for a URI (s3://, gs://, file://, …) the folder of its copy on this machine."""
    if not is_uri(path):
        return Path(path)
    try:
        remote = Folder(path)
        manifest = remote.read(MANIFEST)
    except (InputError, OSError) as error:
        raise InputError(
            f"no image store can be read at {path} ({first_line(error)}); check address and rights"
        ) from error
    entry = cache_folder() / hashlib.sha256(path.encode() + manifest).hexdigest()[:16]
    if not entry.exists():
        entry.parent.mkdir(parents=True, exist_ok=True)
        with entry.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # given back by the system when its holder dies
            if not entry.exists():
                _fill(entry, remote, manifest)
    return entry


def _fill(entry: Path, remote: Folder, content: bytes) -> None:
    manifest = parse_manifest(content, f"{remote.base}/{MANIFEST}")
    temporary = entry.with_suffix(".tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # what a killed process left
    temporary.mkdir()
    (temporary / MANIFEST).write_bytes(content)

    def fetch(record: FileRecord) -> None:
        source, target = remote.path(record.file), temporary / record.file
        try:
            pafs.copy_files(
                source, str(target), source_filesystem=remote.fs, destination_filesystem=pafs.LocalFileSystem()
            )
        except OSError as error:
            raise InputError(f"{source} cannot be fetched ({first_line(error)}); check the store") from error
        if checksum_of(target) != record.crc32:
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
            state = "is missing" if size < 0 else f"has {size} bytes where {MANIFEST} says {record.bytes}"
            raise InputError(f"{path} {state}: the store is damaged; prepare it again")


def check_contents(folder: Path, records: Sequence[FileRecord], again: bool = False) -> None:
    """InputError when a file differs from its checksum.

    Args:
        folder: the store's.
        records: of the files to check.
        again: read also those that were found good before and have not changed since.
    """
    notes = _notes(folder)
    known = {} if again else _read(notes)
    unknown = [record for record in records if known.get(record.file) != _state(folder, record)]
    if not unknown:
        return
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda record: checksum_of(folder / record.file), unknown))
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
    try:
        notes.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=notes.parent, delete=False) as file:
            json.dump(content, file)
        os.replace(file.name, notes)
    except OSError:
        pass  # no cache to write to: the files are checked again next time


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
