"""This machine: the versions of what a result depends on, and room on its disks.

Without pyarrow, so that `--help` of the doctor, which asks for it, answers at once.
"""

import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ray_adaplr import __version__


def free_bytes(path: str) -> float:
    """Free bytes of the disk that holds a path, or will; endless where the system does not count."""
    place = Path(os.path.abspath(os.path.expanduser(path)))  # a home that nobody has stays as it is
    while not place.exists():
        place = place.parent
    disk = shutil.disk_usage(place)
    return float(disk.free) if disk.total else float("inf")


def versions() -> dict[str, str]:
    """Versions of Python, this package and the packages whose kernels and formats it uses."""
    found = {"python": platform.python_version()}
    for name in ("ray-adaplr", "ray", "torch", "torchvision", "numpy", "pyarrow"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = __version__ if name == "ray-adaplr" else "not installed"  # run from its sources
    return found


def size_in_words(count: float) -> str:
    """Bytes for a person to read.

    >>> size_in_words(2_340_000_000), size_in_words(36e6), size_in_words(0)
    ('2.34 GB', '36.0 MB', '0.0 MB')
    """
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
