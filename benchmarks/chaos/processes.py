"""Commands of `ray-adaplr` as processes that can be killed, and the processes below them.

A command without Ray is forked from a server that has torch loaded already, so that starting one again costs a tenth
of a second instead of three; it goes through the same `main` as the console script. One with Ray is a plain new
process, as a user starts it.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import ROOT

LEASE = 20.0  # seconds instead of 60, which every kill in a bucket would wait for
_LOADED = ["torch", "matplotlib.figure", "pyarrow.parquet", "ray_adaplr.cli.main", "ray_adaplr.stages.adapt"]
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(_LOADED)


def _run(arguments: list[str], log: str, environment: dict[str, str]) -> None:
    os.setsid()
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, sys.stdout.fileno())
    os.dup2(handle, sys.stderr.fileno())
    os.environ.update(environment)
    from ray_adaplr.cli.main import main
    from ray_adaplr.storage import lease

    lease.SECONDS = LEASE
    sys.exit(main(arguments))


class Command:
    """A command that runs.

    Args:
        arguments: words after `ray-adaplr`.
        log: file that its output is added to.
        environment: variables on top of this process's own.
    """

    def __init__(self, arguments: list[str], log: Path, environment: dict[str, str]) -> None:
        self._below: set[int] = set()
        self._new: subprocess.Popen[bytes] | None = None
        if "local" in arguments or arguments[0] == "prepare":
            self._forked = _SERVER.Process(target=_run, args=(arguments, str(log), environment))
            self._forked.start()
            self.pid: int = self._forked.pid or 0
        else:
            words = [sys.executable, "-m", "ray_adaplr", *arguments]
            with log.open("ab") as output:
                self._new = subprocess.Popen(
                    words, cwd=ROOT, stdout=output, stderr=output, env=os.environ | environment, start_new_session=True
                )
            self.pid = self._new.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.wait(0) is None

    def kill(self) -> None:
        """End it as a crash would: no handler runs."""
        self.descendants()
        send(self.pid, signal.SIGKILL)
        self.wait(10)

    def wait(self, seconds: float) -> int | None:
        """Its exit code; None when it has not ended by then."""
        if self._new is None:
            self._forked.join(seconds)
            return self._forked.exitcode
        try:
            return self._new.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def descendants(self) -> set[int]:
        """All processes below it."""
        found = below(self.pid)
        self._below |= found
        return found

    def sweep_up(self) -> None:
        """End it and what it left behind; Ray's own processes end by themselves within seconds."""
        if self.alive:
            self.kill()
        deadline = time.monotonic() + 5
        while (left := {pid for pid in self._below if is_rays(pid)}) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in left:
            send(pid, signal.SIGKILL)


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; False when the process is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def below(pid: int) -> set[int]:
    """All descendants of a process, by /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children.setdefault(_parent(int(entry.name)), []).append(int(entry.name))
    found: set[int] = set()
    queue = [pid]
    while queue:
        new = children.get(queue.pop(), [])
        found |= set(new)
        queue += new
    return found


def named(pids: set[int], word: str) -> list[int]:
    """Those whose command line has a word in it, sorted."""
    return sorted(pid for pid in pids if word in command_of(pid))


def command_of(pid: int) -> str:
    """A process's command line; nothing when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def is_rays(pid: int) -> bool:
    """Whether a process, known as ours from earlier, is still one of Ray's; numbers are given again after a time."""
    return "ray" in command_of(pid)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError):
        return -1
