"""A folder on any pyarrow filesystem (local, S3, GCS, NFS) with whole-file, atomic writes.

A reader never sees half a file: locally a temporary file is synced and renamed, object stores do that by themselves.
"""

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from pyarrow import fs

from ray_adaplr.errors import InputError


def is_uri(place: object) -> bool:
    """Whether a place is named by a URI (s3://, gs://, file://, …) and not by a path of this machine."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", str(place)) is not None


def absolute(place: str | Path) -> str:
    """The same place, named so that a process in another working folder finds it."""
    return str(place) if is_uri(place) else os.path.abspath(place)


class Folder:
    """A place for files, by relative name.

    Args:
        uri: a path, or a URI such as s3://bucket/runs/1.
    """

    def __init__(self, uri: str | Path) -> None:
        self.uri = str(uri)
        if is_uri(self.uri):
            try:
                self.fs, self.base = fs.FileSystem.from_uri(self.uri)
            except Exception as error:  # pyarrow raises many kinds
                raise InputError(f"cannot use storage {self.uri}: {error}") from error
        else:
            self.uri = str(Path(uri).expanduser().absolute())
            self.fs, self.base = fs.LocalFileSystem(), self.uri
        self.is_local = isinstance(self.fs, fs.LocalFileSystem)

    def __truediv__(self, name: str) -> "Folder":
        place, mark, options = self.uri.partition("?") if is_uri(self.uri) else (self.uri, "", "")
        return Folder(f"{place.rstrip('/')}/{name}{mark}{options}")

    def path(self, name: str) -> str:
        """The full path of a file on this folder's filesystem."""
        return f"{self.base}/{name}"

    def exists(self, name: str) -> bool:
        """Whether there is a file or folder of that name."""
        return self.fs.get_file_info(self.path(name)).type != fs.FileType.NotFound

    def names(self) -> list[str]:
        """Names of the files in this folder, sorted; none when it does not exist."""
        selector = fs.FileSelector(self.base, allow_not_found=True)
        return sorted(info.base_name for info in self.fs.get_file_info(selector) if info.type == fs.FileType.File)

    def read(self, name: str) -> bytes:
        """A file's bytes; FileNotFoundError when there is none."""
        with self.fs.open_input_stream(self.path(name)) as stream:
            return stream.read()

    def read_json(self, name: str) -> Any:
        """A JSON file's value."""
        return json.loads(self.read(name))

    def write(self, name: str, content: bytes | str) -> None:
        """Write a whole file, atomically."""
        data = content.encode() if isinstance(content, str) else content
        path = self.path(name)
        self.fs.create_dir(os.path.dirname(path), recursive=True)
        if not self.is_local:
            with self.fs.open_output_stream(path) as stream:
                stream.write(data)
            return
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".part-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def write_json(self, name: str, value: Any) -> None:
        """Write a value as readable JSON, atomically."""
        self.write(name, json.dumps(value, indent=1) + "\n")

    def copy(self, name: str, to: "Folder") -> None:
        """Copy a file, or a folder with all that is in it, to the same name in another folder."""
        selector = fs.FileSelector(self.path(name), recursive=True, allow_not_found=True)
        single = self.fs.get_file_info(self.path(name))
        for info in [single] if single.type == fs.FileType.File else self.fs.get_file_info(selector):
            if info.type == fs.FileType.File:
                relative = info.path.removeprefix(self.base).lstrip("/")
                to.write(relative, self.read(relative))

    def delete(self, name: str) -> None:
        """Delete a file or a folder with all that is in it; nothing happens when it is not there."""
        kind = self.fs.get_file_info(self.path(name)).type
        if kind == fs.FileType.Directory:
            self.fs.delete_dir(self.path(name))
        elif kind != fs.FileType.NotFound:
            self.fs.delete_file(self.path(name))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
