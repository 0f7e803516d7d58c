"""Stores on remote filesystems: copied once to this machine, however many processes ask at the same time.

The cache is `$ADAPLR_CACHE`, by default `~/.cache/ray-adaplr`. An entry is named after the address and the manifest, so
that a store that was prepared anew is fetched anew. The first process takes a lock, copies into a temporary folder,
checks the checksums and renames it; the others wait for the lock and find the entry.
"""

import fcntl
import hashlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

from ray_adaplr.data.manifest import MANIFEST, FileRecord, checksum_of, read_manifest
from ray_adaplr.errors import InputError
from ray_adaplr.storage.folder import is_uri


def local_folder(path: str) -> Path:
    """The folder itself, or for a URI (s3://, gs://, file://, …) the folder of its copy on this machine."""
    if not is_uri(path):
        return Path(path)
    try:
        filesystem, inner = pafs.FileSystem.from_uri(path)
        with filesystem.open_input_stream(f"{inner}/{MANIFEST}") as stream:
            manifest = stream.read()
    except (pa.ArrowInvalid, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"no image store can be read at {path} ({reason}); check address and rights") from error
    cache = Path(os.environ.get("ADAPLR_CACHE", "~/.cache/ray-adaplr")).expanduser()
    entry = cache / hashlib.sha256(path.encode() + manifest).hexdigest()[:16]
    if not entry.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with entry.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # given back by the system when its holder dies
            if not entry.exists():
                _fill(entry, filesystem, inner, manifest)
    return entry


def _fill(entry: Path, filesystem: pafs.FileSystem, inner: str, manifest: bytes) -> None:
    temporary = entry.with_suffix(".tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # what a killed process left
    temporary.mkdir()
    (temporary / MANIFEST).write_bytes(manifest)

    def fetch(record: FileRecord) -> None:
        target = temporary / record["file"]
        try:
            pafs.copy_files(
                f"{inner}/{record['file']}",
                str(target),
                source_filesystem=filesystem,
                destination_filesystem=pafs.LocalFileSystem(),
            )
        except OSError as error:
            raise InputError(f"{inner}/{record['file']} cannot be fetched ({error}); check the store") from error
        if checksum_of(target) != record["crc32"]:
            raise InputError(f"{inner}/{record['file']} differs from its checksum; upload the store again")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fetch, read_manifest(temporary).files()))
    temporary.rename(entry)
