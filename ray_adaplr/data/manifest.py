"""`store.json`, the manifest of an image store: what the files are, how large, and their checksums."""

import json
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ray_adaplr.errors import InputError

MANIFEST = "store.json"
FORMAT = "ray-adaplr image store"
VERSION = 1

FileRecord = dict[str, Any]  # file, bytes, crc32; a shard has count too


@dataclass
class Manifest:
    """Everything about a store that is not an image, an id or a label."""

    height: int
    width: int
    channels: int
    count: int
    classes: list[str]
    domain: str
    split: str | None
    shards: list[FileRecord]
    truth: FileRecord | None
    recipe: dict[str, Any] = field(default_factory=dict)  # how it was prepared; the same recipe is not run twice
    format: str = FORMAT
    version: int = VERSION

    def files(self) -> list[FileRecord]:
        """The records of all data files."""
        return [*self.shards, *([self.truth] if self.truth else [])]

    def identity(self) -> list[Any]:
        """What training can see: shape, domain, classes and the shards' checksums."""
        return [self.height, self.width, self.channels, self.domain, self.classes, [s["crc32"] for s in self.shards]]

    def to_json(self) -> str:
        """The text of `store.json`."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """Reads and checks the manifest of a store folder."""
    path = folder / MANIFEST
    if not path.is_file():
        raise InputError(f"{folder} holds no image store (there is no {MANIFEST}); make one with `ray-adaplr prepare`")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        kind, version = content["format"], content["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not the manifest of an image store; prepare the store again") from error
    if kind != FORMAT or version != VERSION:
        raise InputError(
            f"{path} is {kind!r} version {version}, this release reads version {VERSION}; prepare it again"
        )
    try:
        manifest = Manifest(**content)
        consistent = manifest.count == sum(shard["count"] for shard in manifest.shards) > 0
        names = [record["file"] for record in manifest.files() if record["bytes"] and record["crc32"]]
    except (TypeError, KeyError) as error:
        raise InputError(f"{path} lacks a field or has one too many ({error}); prepare the store again") from error
    if any(name != Path(name).name for name in names):
        raise InputError(f"{path} names a file outside its own folder; do not use this store")
    if not consistent or manifest.channels not in (1, 3):
        raise InputError(f"{path} contradicts itself (count or channels); prepare the store again")
    return manifest


def checksum_of(path: Path) -> str:
    """CRC-32 of a file, read in pieces."""
    value = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            value = zlib.crc32(piece, value)
    return f"{value:08x}"
