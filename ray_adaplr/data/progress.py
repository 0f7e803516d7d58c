"""One calm line of progress: rewritten in place on a terminal, plain lines elsewhere (at most one in two seconds)."""

import sys
import time
from typing import TextIO

from ray_adaplr.storage.secrets import redacted

_QUIET_SECONDS = 2.0


class Progress:
    """Shows which stage runs and when it will end; on standard error, so that output can be piped."""

    def __init__(self, stream: TextIO | None = None, quiet: bool = False) -> None:
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._live = self._stream.isatty()
        self._open = False  # a line that is rewritten in place has been begun
        self.stage("", 1)

    def stage(self, name: str, total: int, done: int | None = 0) -> None:
        """Begin a stage of `total` steps, of which `done` were done in an earlier run; None: the first step tells."""
        self.close()
        self._name, self.total = name, total
        self._since = done, time.monotonic()
        self._shown = -_QUIET_SECONDS

    def step(self, done: int, **figures: str) -> None:
        """Show that `done` steps of the stage are done, with figures as they are to be read."""
        now = time.monotonic()
        before, started = self._since
        if before is None:  # also of a new run, whose first step has its start in it
            self._since = done, now
        if self._quiet or (not self._live and done < self.total and now - self._shown < _QUIET_SECONDS):
            return
        self._shown = now
        left = _clock((now - started) / max(1, done - (before or 0)) * (self.total - done))
        if before is None and 1 < done < self.total:
            left = "?"
        line = f"{self._name:8} {done:>4}/{self.total}  ETA {left}"
        line += "".join(f"  {name.replace('_', ' ')} {value}" for name, value in figures.items())
        self._write(f"\r\x1b[K{line}" if self._live else f"{line}\n")
        self._open = self._live

    def say(self, text: str) -> None:
        """A line that stays."""
        self.close()
        if not self._quiet:
            self._write(redacted(text) + "\n")

    def close(self) -> None:
        """End a line that was begun."""
        if self._open:
            self._write("\n")
        self._open = False

    def _write(self, text: str) -> None:
        """Show it; work whose progress nobody reads any more (`| head`) goes on in silence."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except BrokenPipeError:
            self._quiet = True


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
