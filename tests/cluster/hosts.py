"""A machine of its own inside this one: own processes, network and mounts, by Linux namespaces.

Ray nodes on it use their usual ports and even `ray stop` (which ends every Ray process it can see) without meeting any
other Ray of this machine, and when the host is closed the kernel ends all that ran on it.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
AS_ROOT = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
TOKEN = "0123456789abcdef" * 4
LOOPBACK_UP = (
    "import fcntl, socket, struct; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM);"
    "fcntl.ioctl(s, 0x8914, struct.pack('16sh14x', b'lo', 0x1))"  # SIOCSIFFLAGS, IFF_UP
)
# Process 1 of a host: it lets the system reap what it inherits, as an init does, else `ray stop` waits for the dead.
INIT = (
    "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); print('ready', flush=True);"
    "signal.sigwait({signal.SIGUSR1})"
)


class Host:
    """One machine; a context manager. Its home and temporary files lie in `folder`."""

    def __init__(self) -> None:
        # A short path, because sockets lie below it.
        self.folder = folder = Path(tempfile.mkdtemp(prefix="h-", dir="/tmp"))
        (folder / "home" / ".ray").mkdir(parents=True)
        (folder / "home" / ".ray" / "auth_token").write_text(TOKEN)
        self.env = {
            "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(folder / "home"),
            "RAY_TMPDIR": str(folder),
            "PYTHONPATH": str(REPOSITORY),
            "OMP_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # as in conftest.py
        }

    def __enter__(self) -> "Host":
        isolated = ["unshare", *AS_ROOT, "--pid", "--net", "--mount", "--fork", "--mount-proc", "--kill-child"]
        try:
            self._keeper = subprocess.Popen(
                [*isolated, sys.executable, "-c", INIT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        except FileNotFoundError:
            pytest.skip("there is no unshare command to make a machine of its own with")
        if not self._keeper.stdout.readline():  # type: ignore[union-attr]
            pytest.skip(f"no namespaces here: {self._keeper.communicate()[1].strip()}")
        self.pid = int(Path(f"/proc/{self._keeper.pid}/task/{self._keeper.pid}/children").read_text())
        self.run(sys.executable, "-c", LOOPBACK_UP, check=True)
        return self

    def __exit__(self, *error: Any) -> None:
        self._keeper.kill()  # its child, process 1 of the host, dies with it, and so does everything on the host
        self._keeper.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def command(self, *arguments: str) -> list[str]:
        """A command line that runs there."""
        user = ["--user", "--preserve-credentials"] if AS_ROOT else []
        inside = ["--pid", "--net", "--mount", "--", "env", "--chdir", str(self.folder)]
        return ["nsenter", "--target", str(self.pid), *user, *inside, *arguments]

    def run(
        self, *arguments: str, check: bool = False, timeout: float = 600, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command there and wait for it."""
        return subprocess.run(
            self.command(*arguments),
            env=self.env | env,
            check=check,
            timeout=timeout,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    def adaplr(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run `ray-adaplr` there."""
        return self.run(sys.executable, "-m", "ray_adaplr", *arguments, **options)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Run `ray-adaplr` there in the background."""
        return subprocess.Popen(
            self.command(sys.executable, "-m", "ray_adaplr", *arguments),
            env=self.env,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    @staticmethod
    def interrupt(process: "subprocess.Popen[str]") -> None:
        """Press Ctrl-C for what `start` returned, a child of the nsenter process."""
        os.kill(int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()), signal.SIGINT)

    def kill(self, name: str) -> None:
        """Kill the host's processes of that name, as a power cut would."""
        mine = os.readlink(f"/proc/{self.pid}/ns/pid")
        for file in Path("/proc").glob("[0-9]*/comm"):
            with contextlib.suppress(OSError):  # it ended by itself meanwhile
                if file.read_text().strip() == name and os.readlink(file.with_name("ns") / "pid") == mine:
                    os.kill(int(file.parent.name), signal.SIGKILL)

    def ray_start(self, *arguments: str) -> None:
        """`ray start` with token auth, as the launchers do it."""
        done = self.run("ray", "start", *arguments, RAY_AUTH_MODE="token")
        assert done.returncode == 0, done.stdout + done.stderr
