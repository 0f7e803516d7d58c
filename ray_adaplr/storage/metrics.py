"""metrics.jsonl while a run writes it: appended to on a disk, rewritten now and then in a bucket, no line twice.

A line whose epoch was there before (a resumed run repeats it) takes the place of that one and all later of its stage.
"""

import json
from typing import Any

from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.layout import METRICS

Line = dict[str, Any]
_SHARE = 8  # in a bucket the file is rewritten when an eighth of its lines is new: about 9 times its bytes in all


def parse_lines(data: bytes) -> list[Line]:
    """The lines of metrics.jsonl; what is cut off or is no JSON object is left out."""
    lines = []
    for text in data.decode(errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            lines.append(line)
    return lines


class MetricsLog:
    """Writes a run's metrics.jsonl; lines that are not in the file yet are in `unwritten`, which a checkpoint holds."""

    def __init__(self, folder: Folder, unwritten: list[Line] | None = None) -> None:
        self._folder = folder
        self.unwritten: list[Line] = [] if unwritten is None else unwritten
        data = folder.read(METRICS) if folder.exists(METRICS) else b""
        self.lines = parse_lines(data)
        self._clean = len(self.lines) == data.count(b"\n") and (not data or data.endswith(b"\n"))
        held, self.unwritten[:] = list(self.unwritten), []
        for line in held:
            self._place(line)
            self._clean = False

    def append(self, line: Line) -> None:
        """Add an epoch's line."""
        as_before = self._place(line) and self._clean
        if not self._folder.is_local:
            self.unwritten.append(line)
            if not as_before or len(self.unwritten) * _SHARE >= len(self.lines):
                self.flush()
        elif as_before:
            self._folder.append(METRICS, _text(line))
        else:
            self.flush()

    def has(self, line: Line) -> bool:
        """Whether there is a line of the same stage and epoch."""
        return any((o.get("stage"), o.get("epoch")) == (line["stage"], line["epoch"]) for o in self.lines)

    def flush(self) -> None:
        """Write the whole file."""
        self._folder.write(METRICS, "".join(map(_text, self.lines)))
        self.unwritten.clear()
        self._clean = True

    def close(self) -> None:
        """Write what is not in the file yet."""
        if self.unwritten:
            self.flush()

    def _place(self, line: Line) -> bool:
        """Put a line behind those before it; False when lines of the same stage had to give way."""
        stage, epoch = line.get("stage"), line.get("epoch", -1)
        before = len(self.lines)
        self.lines = [o for o in self.lines if o.get("stage") != stage or o.get("epoch", -1) < epoch]
        self.lines.append(line)
        return len(self.lines) > before


def _text(line: Line) -> str:
    return json.dumps(line) + "\n"
