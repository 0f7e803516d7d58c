"""`store.json`, the manifest of an image store: what the files are, how large, and their checksums.

It may come from anybody, so everything in it is checked before it is believed.
"""

import json
import math
import zlib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ray_adaplr.data.class_names import MOST_CLASSES, checked_names
from ray_adaplr.errors import InputError, first_line

MANIFEST = "store.json"
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

    def identity(self) -> list[Any]:
        """What training can see: shape, domain, classes and the shards' checksums."""
        return [*self.shape, self.domain, self.classes, [shard.crc32 for shard in self.shards]]

    def to_json(self) -> str:
        """The text of `store.json`."""
        return json.dumps(self.model_dump(), indent=1, sort_keys=True) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """Reads and checks the manifest of a store folder."""
    path = folder / MANIFEST
    if not path.is_file():
        raise InputError(f"{folder} holds no image store (there is no {MANIFEST}); make one with `ray-adaplr prepare`")
    return parse_manifest(path.read_bytes(), str(path))


def parse_manifest(content: bytes, name: str) -> Manifest:
    """The manifest of a `store.json`, checked; `name` is what the file is called in a sentence about it."""
    try:
        fields = json.loads(content)
        kind, version = fields["format"], fields["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{name} is not the manifest of an image store; prepare the store again") from error
    if kind != FORMAT or version != VERSION:
        raise InputError(
            f"{name} is {kind!r} version {version}, this release reads version {VERSION}; prepare it again"
        )
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


def checksum_of(path: Path) -> str:
    """CRC-32 of a file, read in pieces."""
    value = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            value = zlib.crc32(piece, value)
    return f"{value:08x}"
