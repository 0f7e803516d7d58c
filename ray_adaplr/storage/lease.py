"""One writer per folder: a lock that the system frees on a local disk, a lease by conditional puts in a bucket.

The lease is an object that one process alone can create (`If-None-Match: *`) and that its holder renews (`If-Match`).
`SECONDS` after the last sign of life, by the server's clock, the next one takes over, again by `If-Match`. pyarrow
cannot put on a condition, so this needs boto3; without it, or where the storage cannot, a run says so and goes on.
"""

import contextlib
import fcntl
import logging
import os
import threading
import time
import uuid
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ray_adaplr.errors import InputError, RunFailed, same_command
from ray_adaplr.storage.folder import Folder, is_uri
from ray_adaplr.storage.layout import CONFIG, LEASE, LOCK, MARKER, ORIGIN, STORES, SWEEP
from ray_adaplr.storage.secrets import redacted

log = logging.getLogger(__name__)
SECONDS = 60.0  # without renewal after which a lease is free
_POLL = 1.0
FIRST_FILES = (SWEEP, CONFIG, ORIGIN, MARKER)  # what is written before any work; the marker is removed last


@contextlib.contextmanager
def hold(folder: Folder) -> Iterator[Folder]:
    """Hold a folder for this process; gives the folder to write to, which refuses once it is held by another.

    InputError when another live process holds it, or it cannot be written to. When the command is refused before it
    has done any work, a new folder is as it was before, or gone.
    """
    with _locked(folder) if folder.is_local else _leased(folder) as held:
        is_new = not held.exists(MARKER)
        try:
            yield held
        except InputError:  # refused once it was claimed: too few GPUs, no cluster there, images of a wrong size
            made = {name for name in held.files() if not name.startswith(f"{STORES}/")}
            if is_new and MARKER in made and made <= {LOCK, LEASE, *FIRST_FILES}:
                for name in FIRST_FILES:
                    held.delete(name)
            raise


@contextlib.contextmanager
def _leased(folder: Folder) -> Iterator[Folder]:
    lease = _Lease.of(folder)
    if lease is None:
        yield folder
        return
    try:
        lease.acquire()
        yield Folder(folder.uri, lease.confirm)
    finally:
        lease.release()


@contextlib.contextmanager
def _locked(folder: Folder) -> Iterator[Folder]:
    place = Path(folder.path(LOCK))
    missing = [each for each in place.parents if not os.path.exists(each)]  # the innermost first
    try:
        with _acquired(folder, place) as lock:
            lock.truncate(0)
            lock.write(f"pid {os.getpid()} on {os.uname().nodename}")
            lock.flush()
            try:
                yield folder
            finally:
                if os.listdir(place.parent) == [LOCK]:  # refused: nothing stays
                    place.unlink()
    finally:
        for each in missing:
            with contextlib.suppress(OSError):  # it holds something, or was never made
                each.rmdir()


def _acquired(folder: Folder, place: Path) -> IO[str]:
    """The lock's file, locked; another process may remove it until it is."""
    holder = ""
    for _ in range(10):  # processes of a killed run share its lock, and end in a moment
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            lock = place.open("a+")
        except OSError as error:
            raise InputError(f"cannot write to {folder.uri} ({error.strerror}); choose another --out") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock.fileno()), place.stat()):
                return lock
        except OSError:
            lock.seek(0)
            holder = lock.read().strip()
        lock.close()
        time.sleep(0.1)
    raise _in_use(folder, holder)


def _in_use(folder: Folder, holder: str) -> InputError:
    who = holder or "another process"
    return InputError(f"{folder.uri} is in use by a live run ({who}); wait or choose another --out")


class _Lease:
    """A lease on one folder of a bucket."""

    def __init__(self, folder: Folder, client: Any) -> None:
        self._folder, self._client, self._name = folder, client, redacted(folder.uri)
        bucket, _, key = folder.base.partition("/")
        self._object = {"Bucket": bucket, "Key": f"{key.rstrip('/')}/{LEASE}"}
        self._id, self._etag, self._lost, self._renewed = uuid.uuid4().hex, "", "", 0.0
        self._ended = threading.Event()

    @classmethod
    def of(cls, folder: Folder) -> "_Lease | None":
        """A lease for this folder, or None (with a sentence) where the storage has no conditional puts."""
        try:
            import boto3
        except ImportError:
            _say_without(folder, "leases need boto3: pip install 'ray-adaplr[s3]'")
            return None
        if folder.storage != "s3":
            _say_without(folder, f"{folder.storage} storage has no conditional puts here")
            return None
        url = urlsplit(folder.uri)
        options = dict(parse_qsl(url.query))
        endpoint = options.get("endpoint_override")
        if endpoint and not is_uri(endpoint):
            endpoint = f"{options.get('scheme', 'https')}://{endpoint}"
        key, secret = (unquote(part) if part else None for part in (url.username, url.password))
        keys = {"aws_access_key_id": key, "aws_secret_access_key": secret}
        return cls(folder, boto3.client("s3", endpoint_url=endpoint, region_name=options.get("region"), **keys))

    def acquire(self) -> None:
        """Get the lease, from a holder that gives no sign of life if need be, and keep it until `release`."""
        while not self._put(IfNoneMatch="*"):
            found = self._read()
            if found is None:
                continue  # it was given back just now
            holder, etag, age = found
            if not holder:
                break
            if age < SECONDS:
                self._await_end(holder, etag, SECONDS - age)
            if self._put(IfMatch=etag):
                log.warning("%s was held by %s, which is gone; taken over", self._name, holder)
                break
        if self._put(IfNoneMatch="*"):  # must fail: our own is there
            _say_without(self._folder, "the server ignores If-None-Match")
        threading.Thread(target=self._renew, daemon=True, name="lease").start()

    def _await_end(self, holder: str, etag: str, seconds: float) -> None:
        """Wait for a lease to run out; a renewal is the sign that its holder lives."""
        log.warning("%s is held by %s; waiting %.0f s for a sign of life", self._name, holder, seconds)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(min(_POLL, SECONDS / 10))
            found = self._read()
            if found is None:
                return
            if found[1] != etag:
                raise _in_use(self._folder, holder)

    def confirm(self) -> None:
        """Raise when this process does not hold the folder any more."""
        if not self._lost and time.monotonic() - self._renewed > 0.75 * SECONDS:  # before another may take over
            self._lost = "it could not be renewed in time"
        if self._lost:
            raise RunFailed(f"the lease on {self._name} is lost ({self._lost}); {same_command()} continues later")

    def release(self) -> None:
        """Give the lease back, unless another has taken it over."""
        self._ended.set()
        if self._etag and not self._lost:
            with contextlib.suppress(Exception):  # it runs out by itself
                self._client.delete_object(**self._object, IfMatch=self._etag)

    def _renew(self) -> None:
        answers = True
        while not self._ended.wait(SECONDS / 4):
            try:
                holder = "" if self._put(IfMatch=self._etag) else (self._read() or ("nobody",))[0]
                if holder and not self._ended.is_set():
                    self._lost = "another run has taken over"
                    return
                answers = True
            except Exception as error:  # the server is out of reach: `confirm` counts the seconds
                if answers:  # warn once per outage
                    log.warning("the lease on %s could not be renewed: %s", self._name, error)
                answers = False

    def _put(self, **condition: str) -> bool:
        """Write the lease; False when the condition does not hold."""
        from botocore.exceptions import BotoCoreError, ClientError

        began = time.monotonic()
        try:
            who = f"pid {os.getpid()} on {os.uname().nodename}\n{self._id} {uuid.uuid4().hex}"  # a new ETag each time
            answer = self._client.put_object(**self._object, Body=who.encode(), **condition)
        except (BotoCoreError, ClientError) as error:
            answer = getattr(error, "response", None) or {}  # there is none where the connection was cut
            if answer.get("ResponseMetadata", {}).get("HTTPStatusCode") in (404, 409, 412):
                return False
            raise OSError(f"cannot write to {self._name}: {error}") from error
        self._etag, self._renewed = answer["ETag"], began
        return True

    def _read(self) -> tuple[str, str, float] | None:
        """Who holds the lease (nothing: this process), its ETag and its age in seconds; None when there is none."""
        try:
            answer = self._client.get_object(**self._object)
        except self._client.exceptions.NoSuchKey:
            return None
        except Exception as error:  # botocore has many kinds
            raise OSError(f"cannot read {self._name}: {error}") from error
        now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
        holder, _, marks = answer["Body"].read().decode(errors="replace").partition("\n")
        if self._id in marks:  # our own put had come through, and only its answer was lost
            self._etag, self._renewed, holder = answer["ETag"], time.monotonic() - SECONDS / 4, ""
        age = (now - answer["LastModified"]).total_seconds() - 1  # both have whole seconds
        return holder, answer["ETag"], age


def _say_without(folder: Folder, why: str) -> None:
    log.warning("%s: a second run in this folder would not be noticed, since %s", redacted(folder.uri), why)
