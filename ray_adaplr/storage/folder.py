"""A folder on any pyarrow filesystem (local, S3, GCS, NFS) with whole-file, atomic writes.

A reader never sees half a file: locally a temporary file is synced and renamed, object stores do that by themselves. A
bucket that is out of reach for a while is asked again for three minutes.
"""

import contextlib
import json
import logging
import os
import re
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pyarrow import fs

from ray_adaplr.errors import InputError, first_line
from ray_adaplr.storage.layout import BEING_WRITTEN

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")

PATIENCE = 180.0  # seconds that a bucket may be out of reach
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 15.0
# What pyarrow's messages hold when trying again may help.
_PASSING = re.compile(
    "SLOW_DOWN|UNAVAILABLE|NETWORK_CONNECTION|INTERNAL_FAILURE|TIMEOUT|THROTTLING|HTTP status 5|curlCode"
)
# The same of boto3's, which writes leases, and what either says of credentials.
_PASSING_LEASE = re.compile("SlowDown|ServiceUnavailable|Could not connect|Connection was closed|Read timeout")
_REFUSED = re.compile(
    "ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE_DOES_NOT_MATCH|EXPIRED_TOKEN|HTTP status 40[13]|AccessDenied|Forbidden|"
    "InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken|Unable to locate credentials"
)


def storage_trouble(error: OSError) -> str:
    """What to say of remote storage that refused, or stayed out of reach; nothing where the error is another."""
    told = first_line(error).rstrip(": ")
    if _PASSING.search(told) or _PASSING_LEASE.search(told):
        return f"the storage was out of reach for too long ({told}); once it answers"
    if _REFUSED.search(told):
        return f"the storage refuses the credentials ({told}); once they are right"
    return ""


def is_uri(place: object) -> bool:
    """Whether a place is named by a URI (s3://, gs://, file://, …) and not by a path of this machine."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", str(place)) is not None


def absolute(place: str | Path) -> str:
    """The same place, named so that a process in another working folder finds it."""
    return str(place) if is_uri(place) else os.path.abspath(os.path.expanduser(place))


def joined(place: str | Path, name: str) -> str:
    """A file or folder below a place; of a URI with options (s3://bucket/runs?region=eu) the name goes before them."""
    path, mark, options = str(place).partition("?") if is_uri(place) else (str(place), "", "")
    return f"{path.rstrip('/')}/{name}{mark}{options}"


def parent_of(place: str | Path) -> tuple["Folder", str]:
    """The folder of a single file, and the file's name in it."""
    path, mark, options = str(place).partition("?") if is_uri(place) else (absolute(place), "", "")
    parent, _, name = path.rpartition("/")
    return Folder(f"{parent or '/'}{mark}{options}"), name


def read_file(place: str | Path, what: str) -> bytes:
    """A single file that the user named, local or remote; InputError, which calls it `what`, when it cannot be read."""
    folder, name = parent_of(place)
    try:
        return folder.read(name)
    except FileNotFoundError as error:
        raise InputError(f"there is no {what} {place}") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise InputError(f"cannot read the {what} {place}: {first_line(error)}") from error


def _open(uri: str) -> tuple[fs.FileSystem, str]:
    """The filesystem and path of a URI; on S3 a small object takes one request and not the three of a multipart one."""
    if uri.startswith("s3://"):
        with contextlib.suppress(Exception):  # a pyarrow that does not know the option, or a mistake that is told below
            return fs.FileSystem.from_uri(f"{uri}{'&' if '?' in uri else '?'}allow_delayed_open=true")
    return fs.FileSystem.from_uri(uri)


class Folder:
    """A place for files, by relative name, at a path or a URI such as s3://bucket/runs/1.

    `guard` is called before anything is changed, and raises when this process may not write here any more.
    """

    def __init__(self, uri: str | Path, guard: Callable[[], None] | None = None) -> None:
        self.uri, self.guard = absolute(uri), guard
        if is_uri(uri):
            try:
                self._fs, self.base = _open(self.uri)
            except Exception as error:  # pyarrow raises many kinds
                raise InputError(f"cannot use storage {self.uri}: {error}") from error
        else:
            self._fs, self.base = fs.LocalFileSystem(), self.uri
        self.is_local = isinstance(self._fs, fs.LocalFileSystem)
        self.storage = self._fs.type_name  # local, s3, gcs, …

    def is_same(self, other: "Folder") -> bool:
        """Whether both name one place, also by way of a link or in another spelling."""
        if self.is_local and other.is_local:
            return os.path.realpath(self.base) == os.path.realpath(other.base)
        return (self.storage, self.base) == (other.storage, other.base)

    def __truediv__(self, name: str) -> "Folder":
        return Folder(joined(self.uri, name), self.guard)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.base.rstrip("/").rsplit("/", 1)[-1]

    def path(self, name: str) -> str:
        """The full path of a file on this folder's filesystem."""
        return f"{self.base}/{name}"

    def exists(self, name: str) -> bool:
        """Whether there is a file or folder of that name."""
        return self.info(name).type != fs.FileType.NotFound

    def info(self, name: str = "") -> fs.FileInfo:
        """Kind, size and time of a file or folder; without a name, of this folder itself."""
        return self._patiently(lambda: self._fs.get_file_info(self.path(name) if name else self.base))

    def infos(self, recursive: bool = False) -> list[fs.FileInfo]:
        """The same of all that is in this folder, or also below it; nothing when it does not exist."""
        selector = fs.FileSelector(self.base, recursive=recursive, allow_not_found=True)
        return self._patiently(lambda: self._fs.get_file_info(selector))

    def names(self) -> list[str]:
        """Names of the files in this folder, sorted; none when it does not exist."""
        return sorted(info.base_name for info in self.infos() if info.is_file)

    def files(self) -> list[str]:
        """Paths of all files in this folder and below it, relative to it, sorted."""
        found = [info.path for info in self.infos(recursive=True) if info.is_file]
        return sorted(path.removeprefix(self.base.rstrip("/")).lstrip("/") for path in found)

    def read(self, name: str) -> bytes:
        """A file's bytes; FileNotFoundError when there is none."""

        def read_whole() -> bytes:
            if self.is_local and Path(self.path(name)).is_fifo():  # opening it may wait for ever
                raise OSError("it is a pipe and not a file")
            with self._fs.open_input_stream(self.path(name), compression=None) as stream:  # else a .gz is unpacked
                return stream.read()

        return self._patiently(read_whole)

    def read_json(self, name: str) -> Any:
        """A JSON file's value."""
        return json.loads(self.read(name))

    def write(self, name: str, content: bytes | str) -> None:
        """Write a whole file, atomically."""
        data = content.encode() if isinstance(content, str) else content
        self._may_change()
        if self.is_local:
            self._write_local(self.path(name), data)
            return

        def write_whole() -> None:  # object stores have no folders that would have to be there
            with self._fs.open_output_stream(self.path(name), compression=None) as stream:
                stream.write(data)

        self._patiently(write_whole)

    def write_json(self, name: str, value: Any) -> None:
        """Write a value as readable JSON, atomically."""
        self.write(name, json.dumps(value, indent=1) + "\n")

    def append(self, name: str, content: str) -> None:
        """Add to a file's end and sync it; for local folders only, since objects cannot grow."""
        self._may_change()
        with open(self.path(name), "ab") as file:
            file.write(content.encode())
            file.flush()
            os.fsync(file.fileno())

    def copy(self, name: str, to: "Folder") -> None:
        """Copy a file, or a folder with all that is in it, to the same name in another folder."""
        below = [name] if self.info(name).is_file else [f"{name}/{path}" for path in (self / name).files()]
        for path in below:
            to.write(path, self.read(path))

    def fetch(self, name: str, to: Path) -> None:
        """Copy a file of any size to a path on this machine."""
        self._patiently(lambda: fs.copy_files(self.path(name), str(to), self._fs, fs.LocalFileSystem()))

    def delete(self, name: str) -> None:
        """Delete a file or a folder with all that is in it; nothing happens when it is not there."""
        self._may_change()
        kind = self.info(name).type
        if kind == fs.FileType.Directory:
            self._patiently(lambda: self._fs.delete_dir(self.path(name)))
        elif kind != fs.FileType.NotFound:
            self.delete_file(name)

    def delete_file(self, name: str) -> None:
        """Delete a file that is there."""
        self._may_change()
        with contextlib.suppress(FileNotFoundError):  # an earlier try had come through
            self._patiently(lambda: self._fs.delete_file(self.path(name)))

    def _may_change(self) -> None:
        if self.guard:
            self.guard()

    def _patiently(self, call: Callable[[], Answer]) -> Answer:
        """What a call gives; on remote storage that is out of reach for a while it is made again."""
        started, wait = time.monotonic(), _FIRST_WAIT
        while True:
            try:
                return call()
            except OSError as error:
                passing = not self.is_local and _PASSING.search(str(error))
                if not passing or time.monotonic() - started + wait > PATIENCE:
                    raise
                log.warning("%s is out of reach; trying again in %g s", self.base.split("/")[0], wait)
                time.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT)

    @staticmethod
    def _write_local(path: str, data: bytes) -> None:
        parent = os.path.dirname(path)
        os.makedirs(parent, exist_ok=True)
        temporary = os.path.join(parent, f"{BEING_WRITTEN}{uuid.uuid4().hex}")
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
