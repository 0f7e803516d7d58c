"""The Ray that a command starts for itself: watched while it lives, and none of its files stay behind.

Without its raylet or GCS, Ray's client ends this process without a word: after 60 s, or when it next touches the object
store. So the run is ended in good order when the loss is seen, and a shell that outlives it says how to continue.
"""

import _thread
import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray

from ray_adaplr.engine.private_ray import private
from ray_adaplr.errors import same_command

MARK = "started-by-ray-adaplr"  # a file in the session's folder, locked by the process that started that Ray
_ASKED = 10.0  # seconds in which a SIGTERM that ended Ray may turn out to be for this process too
_UNWIND = 30.0  # seconds a run has to end after the loss; it takes 2 to 8
_ENDING = 10.0  # seconds for the last of Ray's processes to end after its shutdown; it takes 1
# By their names; the agents of older Rays by their scripts.
_OF_RAY = re.compile(rb"^ray::|^[^\0]+\0-u\0[^\0]+/ray/(dashboard|_private)/[^\0]+\.py\0")
# A dashboard's server without its pages, an autoscaler without machines, and a forwarder of logs to nobody: half of the
# CPU time of a start, and `ray.init` waits for the first.
_NOT_NEEDED = ("start_api_server", "start_monitor", "start_log_monitor")
_WAY_ON = "(its logs: {}/logs); {} continues from the last checkpoint (a sweep with --resume)"


class OwnRay:
    """The local Ray of this process, from its start to `close`."""

    def __init__(self) -> None:
        self._worker = private("ray._private", "worker")
        self._node = private("ray._private.worker", "_global_node")
        self._folder = Path(self._node.get_session_dir_path())
        self._print = private("ray._private.worker", "print_to_stdstream")
        self._worker.print_to_stdstream = self._all_but_last_words
        self._in_main = threading.current_thread() is threading.main_thread()
        self._closing, self._closed = threading.Event(), threading.Event()
        self.lost = ""  # the sentence about what was lost
        remove_leftovers(self._folder.parent)
        fresh = self._folder / f"{MARK}.new"
        self._mark = fresh.open("w")
        fcntl.flock(self._mark, fcntl.LOCK_EX)  # before it has its name, so that nobody takes it for a dead one's
        fresh.rename(self._folder / MARK)
        self._way_on = _WAY_ON.format(self._folder, same_command())
        killed = f"ERROR: the process was killed, or ended by Ray after a loss {self._way_on}"
        words = ["/bin/sh", "-c", 'read -r ended_well || echo "$0" >&2', killed]
        self._teller = subprocess.Popen(words, stdin=subprocess.PIPE, text=True, start_new_session=True)
        threading.Thread(target=self._watch, name="own-ray", daemon=True).start()

    @property
    def neighbours(self) -> int:
        """How many other processes on this machine have started a Ray of their own."""
        return len(living(self._folder.parent)) - 1

    def _all_but_last_words(self, data: Any, **how: Any) -> None:
        """Ray tells of a lost raylet too: with 20 lines of its log, on stdout, and before anybody else notices."""
        if "Raylet is terminated" not in str(data):
            self._print(data, **how)

    def _watch(self) -> None:
        watched = {name: self._node.all_processes[name][0].process for name in ("raylet", "gcs_server")}
        while not (gone := [name for name, process in watched.items() if process.poll() is not None]):
            if self._closing.wait(0.01):  # seconds between two looks
                return
        asked_to_end = watched[gone[0]].returncode in (0, -signal.SIGTERM)
        if self._closing.wait(_ASKED if asked_to_end else 0):
            return
        self.lost = f"the {gone[0]} of the Ray that this command started was lost {self._way_on}"
        if self._in_main:
            _thread.interrupt_main()
        if not self._closed.wait(_UNWIND):
            os._exit(1)

    def close(self) -> None:
        """End it and remove its files; those of a Ray that was lost stay until the next start, for its logs."""
        self._closing.set()
        ray.shutdown()
        self._closed.set()
        self._teller.communicate("\n")
        self._worker.print_to_stdstream = self._print
        self._mark.close()
        clear(self._folder, _ENDING, keep=bool(self.lost))


def mark_failed_start(since: float) -> None:
    """Mark what a Ray that did not start has left since then, by time.time(): the next start removes it."""
    place = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray"
    for session in place.glob(f"session_[0-9]*_{os.getpid()}"):
        if session.stat().st_mtime > since - 1:  # not of an earlier process with the same number; clocks of files lag
            (session / MARK).touch()


@contextlib.contextmanager
def bare() -> Iterator[None]:
    """A Ray that starts meanwhile has only the processes that a run needs; one of another version may have more."""
    node = private("ray._private.node", "Node")
    kept = {name: vars(node)[name] for name in _NOT_NEEDED if name in vars(node)}
    for name in kept:
        setattr(node, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name, start in kept.items():
            setattr(node, name, start)


def remove_leftovers(place: Path) -> None:
    """Remove the folders of sessions below `place` that this product started and whose processes have all ended."""
    for mark in place.glob(f"session_[0-9]*/{MARK}"):  # not session_latest, a link
        clear(mark.parent, wait=0.5)


def living(place: Path) -> list[Path]:
    """The folders of sessions below `place` that this product started and whose processes live."""
    found = []
    for mark in place.glob(f"session_[0-9]*/{MARK}"):
        with contextlib.suppress(FileNotFoundError), mark.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(mark.parent)
    return found


def clear(session: Path, wait: float, keep: bool = False) -> None:
    """End what is left of a session, and remove its folder unless a process still uses it.

    Only a session that this product marked, and whose mark is no longer locked: the process that started it is gone, or
    done with it. Of those that have files of the session open, this user's that are Ray's are ended; its agents stay
    alive for ever when the GCS went first. They have `wait` seconds; with `keep` the folder stays, for its logs.
    """
    with contextlib.suppress(OSError), (session / MARK).open() as mark:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        deadline = time.monotonic() + wait
        while users := _users(session):
            if time.monotonic() > deadline:
                return
            for process in users:
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    of_ray = _OF_RAY.search((process / "cmdline").read_bytes())
                    if of_ray and process.stat().st_uid == os.getuid():
                        os.kill(int(process.name), signal.SIGKILL)
            time.sleep(0.05)
        if not keep:
            shutil.rmtree(session, ignore_errors=True)
            latest = session.parent / "session_latest"
            if latest.is_symlink() and not latest.exists():
                latest.unlink()


def _users(session: Path) -> set[Path]:
    """Other processes that have a file of the session open, by their folder in /proc."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ends meanwhile, or is somebody else's
            for file in os.scandir(process / "fd"):
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    if os.readlink(file.path).startswith(f"{session}/"):
                        found.add(process)
    return found - {Path(f"/proc/{os.getpid()}")}
