"""Ray's token auth from the client's side: the token that is there is used, and a refusal says what is missing.

`ray.init` uses a token that exists, but Ray's job client only where RAY_AUTH_MODE=token is set; here both do.
"""

import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from ray_adaplr.engine.private_ray import private
from ray_adaplr.errors import InputError

log = logging.getLogger(__name__)
T = TypeVar("T")
_CONNECTED = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # leaves CUDA_VISIBLE_DEVICES alone, no warning
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # the supervisor tells what failed, once
}
_SET_BY_RAY = ("RAY_AUTH_MODE", "RAY_USAGE_STATS_ENABLED", "PYTHONBREAKPOINT")  # and left so
_turned_on: list[str] = []  # where a token lay that was used although nobody had said so


def token_place() -> str | None:
    """Where Ray finds a token, the name of a variable or a file; None when there is none."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return "RAY_AUTH_TOKEN"
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    return str(file) if file.is_file() else None


def if_no_token_is_taken() -> str:
    """What to say where workers are lost: with a token, beside a cluster without token auth, none is heard."""
    return "".join(f" (a cluster without tokens needs RAY_AUTH_MODE=disabled: {place} is used)" for place in _turned_on)


def keep_token_private() -> None:
    """Let only its owner read Ray's token file, for a local Ray.

    Ray would write a missing one readable for everybody, so it is made here, as `ray get-auth-token --generate` does.
    """
    if os.environ.get("RAY_AUTH_MODE", "token") != "token" or os.environ.get("RAY_AUTH_TOKEN"):
        return
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    with contextlib.suppress(OSError):  # a home that cannot be written to is Ray's to complain about
        if file.exists():
            if file.stat().st_uid == os.getuid() and file.stat().st_mode & 0o077:
                file.chmod(0o600)
        else:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as private:
                private.write(secrets.token_hex(32))


@contextlib.contextmanager
def variables(values: Mapping[str, str | None]) -> Iterator[None]:
    """Environment variables have these values meanwhile, and afterwards those that the user gave them.

    One without a value is left to whoever sets it meanwhile.
    """
    before = {name: os.environ.get(name) for name in values}
    os.environ.update({name: value for name, value in values.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def loopback_only() -> Iterator[None]:
    """A Ray that starts meanwhile listens on 127.0.0.1 alone, as it does on macOS and Windows.

    Ray reads the variable when it is imported, so this process needs the constant and Ray's other processes the
    variable; `tests/engine/test_connect.py` looks at the ports.
    """
    private("ray._private.ray_constants", "ENABLE_RAY_CLUSTER")
    ray_constants = private("ray._private", "ray_constants")
    enabled, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        with variables({ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}):
            yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = enabled


@contextlib.contextmanager
def connection() -> Iterator[None]:
    """Ray's variables are set as a connection needs them, unless the user did; afterwards all are the user's again."""
    values = {name: os.environ.get(name, value) for name, value in _CONNECTED.items()}
    try:
        with variables({**dict.fromkeys(_SET_BY_RAY), **values}):
            yield
    finally:
        _read_variables_again()


def _read_variables_again() -> None:
    private("ray._raylet", "Config").initialize("")  # Ray read them when it was imported


def with_token(call: Callable[[], T], address: str) -> T:
    """The result of `call`, which talks to the cluster at `address`, with the token where there is one.

    InputError when the cluster refuses: no token, not its token, or a token that may not be used.
    """
    from ray.exceptions import AuthenticationError

    place = token_place()
    if place and "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        _turned_on[:] = [place]
        if address != "local":
            without = "one without token auth would not hear this process: set RAY_AUTH_MODE=disabled for it"
            log.warning("the token in %s is used for the cluster at %s; %s", place, address, without)
        _read_variables_again()
    try:
        return call()
    except AuthenticationError as error:
        mode = os.environ.get("RAY_AUTH_MODE")
        if place is None:
            why = "wants a token and there is none; put the cluster's (`ray get-auth-token` prints it on the head node)"
            raise InputError(f"the cluster at {address} {why} into ~/.ray/auth_token or RAY_AUTH_TOKEN") from error
        if mode != "token":
            raise InputError(f"the cluster at {address} wants a token but RAY_AUTH_MODE={mode}; unset it") from error
        raise InputError(f"the cluster at {address} refused the token in {place}; put the cluster's there") from error
