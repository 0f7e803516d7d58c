"""metrics.jsonl, one line per epoch: read back, and written while a run goes, no epoch twice."""

import json
from typing import Any

from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.layout import METRICS

Line = dict[str, Any]


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
    """Writes a run's metrics.jsonl: appended to on a disk, rewritten in a bucket, whose objects cannot grow."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        data = folder.read(METRICS) if folder.exists(METRICS) else b""
        self._lines = parse_lines(data)
        self._whole = _text(self._lines).encode() == data  # else a line was cut off

    def append(self, line: Line) -> None:
        """Add an epoch's line, in the place of an earlier one of this epoch and all that followed it."""
        stage, epoch = line["stage"], line["epoch"]
        earlier = [o for o in self._lines if o.get("stage") != stage or o.get("epoch", -1) < epoch]
        follows = self._whole and len(earlier) == len(self._lines)
        self._lines = [*earlier, line]
        if follows and self._folder.is_local:
            self._folder.append(METRICS, _text([line]))
        else:
            self._folder.write(METRICS, _text(self._lines))
        self._whole = True


def _text(lines: list[Line]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)
