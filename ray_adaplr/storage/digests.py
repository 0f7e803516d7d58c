"""Checksums, as files, manifests and names of folders hold them: by these, other bytes are noticed."""

import base64
import hashlib
import zlib
from pathlib import Path


def crc32(content: bytes) -> str:
    """Of tables and images: it guards against accidents at 3.5 GB/s, where SHA-256 would take a fifth of decoding."""
    return f"{zlib.crc32(content):08x}"


def crc32_of_file(path: Path) -> str:
    """The same of a file, read in pieces."""
    value = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            value = zlib.crc32(piece, value)
    return f"{value:08x}"


def blake2(content: bytes, size: int = 16) -> str:
    """Of weights and checkpoints, and in so many bytes of whatever gets a short name by it."""
    return hashlib.blake2b(content, digest_size=size).hexdigest()


def script_digest(script: str) -> str:
    """SHA-256 of a page's script, as the policy that lets it run and no other names it."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
