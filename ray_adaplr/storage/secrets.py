"""Keys in a URI (s3://KEY:SECRET@bucket/...) serve the run, and are shown and written nowhere."""

import re

from ray_adaplr.errors import InputError

HIDDEN = "***@"
_KEYS = re.compile(r"(?<=://)[^@\s'\"]+:[^@\s'\"]*@")
_PARAMETERS = re.compile(r"((?:secret|access|session|token|password|key)\w*=)[^&\s'\"]+", re.IGNORECASE)


def redacted(text: str) -> str:
    """The text without the keys of URIs in it: user:password@ before the host, and secret parameters after a `?`.

    >>> redacted("s3://KEY:SECRET@bucket/runs?region=eu")
    's3://***@bucket/runs?region=eu'
    """
    if "://" not in text:
        return text
    return _PARAMETERS.sub(r"\1***", _KEYS.sub(HIDDEN, text))


def named_again(places: list[str], flag: str) -> list[str]:
    """The places of an earlier run; InputError when their keys were hidden, so that they have to be named again."""
    for place in places:
        if HIDDEN in place or "=***" in place:
            raise InputError(f"the keys of {place} were not written down; name it again with --{flag}")
    return places
