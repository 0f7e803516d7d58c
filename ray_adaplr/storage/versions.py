"""Versions of what a result depends on, for the record."""

import platform
from importlib.metadata import PackageNotFoundError, version

from ray_adaplr import __version__


def versions() -> dict[str, str]:
    """Versions of Python, this package and the packages whose kernels and formats it uses."""
    found = {"python": platform.python_version()}
    for name in ("ray-adaplr", "ray", "torch", "torchvision", "numpy", "pyarrow"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = __version__ if name == "ray-adaplr" else "not installed"  # run from its sources
    return found
