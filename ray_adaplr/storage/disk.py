"""Room on a local disk. Without pyarrow, so that `--help` of the doctor, which asks for it, answers at once."""

import shutil
from pathlib import Path


def free_bytes(path: str) -> float:
    """Free bytes of the disk that holds a path, or will; endless where the system does not count."""
    place = Path(path).expanduser().absolute()
    while not place.exists():
        place = place.parent
    disk = shutil.disk_usage(place)
    return float(disk.free) if disk.total else float("inf")
