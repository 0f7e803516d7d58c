"""What is used of Ray beyond its public interface, in one place: an unsupported Ray is reported in one sentence.

Nothing public tells the processes and the folder of a session or what is free on each node, lets a local Ray listen on
loopback alone, or makes Ray read its variables again. `tests/engine/test_private_ray.py` shuts all other ways.
"""

import importlib
from importlib import metadata
from typing import Any

from ray_adaplr.errors import InputError

OLDEST, NEWEST = "2.52", "2.60"  # minor versions in hosted CI; before, Ray had no tokens


def private(module: str, name: str) -> Any:
    """A name of one of Ray's private modules; InputError where this Ray does not have it."""
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"Ray {metadata.version('ray')} has no {module}.{name}, which Ray {OLDEST} to {NEWEST} have; install the "
            f"last: pip install 'ray[default,train,tune]=={NEWEST}.*'"
        ) from error
