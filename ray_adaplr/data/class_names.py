"""Names of classes. Without numpy, so that `--help`, which reads the options that use them, answers at once."""

import re
from collections.abc import Iterable

from ray_adaplr.errors import InputError

MOST_CLASSES = 100_000  # five times ImageNet-21k; a list of class names of that length takes a few megabytes
CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def checked_names(names: Iterable[str]) -> list[str]:
    """Class names in order; InputError for an empty one, one with control characters, or one named twice."""
    known = [str(name) for name in names]
    if len(known) > MOST_CLASSES:
        raise InputError(f"{len(known)} class names are given and {MOST_CLASSES} are possible; is the list right?")
    for name in known:
        if not name.strip() or CONTROL.search(name):
            raise InputError(f"{name!r} is no class name; a name has letters and no control characters")
    if len(set(known)) != len(known):
        twice = next(name for row, name in enumerate(known) if name in known[:row])
        raise InputError(f"class {twice!r} is named twice; every class needs a name of its own")
    return known
