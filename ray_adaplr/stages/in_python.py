"""Error sentences for who calls from Python: keyword arguments in the place of options, and no keys of URIs."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ray_adaplr.errors import InputError
from ray_adaplr.storage.secrets import redacted


@contextmanager
def in_python_terms() -> Iterator[None]:
    """What a sentence says about the command line, said about Python: `--size 64` as size=64, --force as force=True."""
    try:
        yield
    except InputError as error:
        told = redacted(error.in_python or str(error)).replace("--set ", "")
        told = re.sub(r"(--[a-z-]+) to prepare( or adapt)?", r"\1", told)
        error.args = (re.sub(r"(?<![\w/.:-])--([a-z-]+)( (?=\d|[A-Z]+\b))?", _keyword, told),)
        raise


def _keyword(option: re.Match[str]) -> str:
    name = option[1].replace("-", "_")
    return name + ("=True" if name in ("force", "unlabelled") else "=" if option[2] else "")
