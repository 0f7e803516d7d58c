"""Stores on remote filesystems: copied once to this machine, however many processes ask at the same time.

An entry of the cache is named after the address and the manifest, so that a store that was prepared again is fetched
again. The first process takes a lock, copies into a temporary folder, checks the checksums and renames it; the others
wait for the lock and find the entry.
"""

import fcntl
import hashlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.fs as pafs

from ray_adaplr.data.manifest import MANIFEST, FileRecord, checksum_of, parse_manifest
from ray_adaplr.data.verify import cache_folder, note_as_good
from ray_adaplr.errors import InputError, first_line
from ray_adaplr.storage.folder import Folder, is_uri


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

    records = [*manifest.shards, *([manifest.truth] if manifest.truth else [])]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fetch, records))
    temporary.rename(entry)
    note_as_good(entry, records)
