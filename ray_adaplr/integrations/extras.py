"""Packages of other people that only a door needs: imported when it is used, with one sentence where one is missing."""

import importlib

from ray_adaplr.errors import InputError


def need(what: str, extra: str, *packages: str) -> None:
    """InputError with the pip command where a package is missing that `what` needs."""
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise InputError(f"{what} needs {package}: pip install 'ray-adaplr[{extra}]'") from error
