"""Faults in real runs: each run must end with the bits of the run that nobody disturbed.

    python -m benchmarks chaos [--faults 200] [--seed 0] [--minutes M] [--only WORD ...]

A small task of real digits is prepared, pretrained, adapted and swept while processes are killed or stopped, nodes are
lost and a bucket is cut off, at random stages and epochs. A command that ends badly is given again in the same words
until it ends well. Four things are counted: runs that never end well (lost), runs with other bits, commands that take
more than `--limit` seconds (hangs), and how often a command had to be given again. Every fault is one line of
`--record`; a round that was stopped goes on, and a new record begins with the faults of `--out`. Writes
results/chaos.json and results/chaos.md.
"""

import fcntl
import itertools
import json
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks import RESULTS, WORK, command_line
from benchmarks.chaos.faults import KINDS, Arena, Kind, torment
from benchmarks.chaos.record import Record, page, struck, sums, totals
from benchmarks.chaos.task import LIMIT, Task
from benchmarks.provenance import commit, provenance

# Kinds that need seconds are struck more often than those that start a Ray of their own.
SHARES = {
    "coordinator killed, in process": 60,
    "prepare killed": 20,
    "pretrain killed": 20,
    "member killed": 20,
    "bucket cut off": 24,
    "member stopped for half a second": 12,
    "coordinator killed, in a bucket": 12,
    "coordinator killed, on Ray": 10,
    "member stopped for good": 10,
    "node killed and replaced": 10,
    "raylet killed": 10,
    "GCS killed": 10,
    "sweep killed": 10,
}


def main(arguments: list[str] | None = None) -> int:
    """Torment runs until there are enough faults or no more minutes; 1 when a run ended badly."""
    parser = command_line("chaos", __doc__)
    parser.add_argument("--faults", type=int, default=200, help="stop when the record has so many")
    parser.add_argument("--seed", type=int, default=0, help="of kinds, moments and victims")
    parser.add_argument("--minutes", type=float, help="begin no run after so many minutes")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for a command; a busy machine needs more")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="kinds with one of these in their name")
    parser.add_argument("--turns", type=Path, help="lock this file for two minutes at a time: others have their turn")
    parser.add_argument("--record", type=Path, default=WORK / "chaos" / "faults.jsonl", help="one line per fault")
    parser.add_argument("--out", type=Path, default=RESULTS / "chaos.json", help="the result; the table lies beside it")
    options = parser.parse_args(arguments)
    kinds = [kind for kind in KINDS if not options.only or any(word in kind.name for word in options.only)]
    if not kinds:
        parser.error(f"--only {' '.join(options.only)}: the kinds are {'; '.join(kind.name for kind in KINDS)}")
    # Raylets put sockets below their temporary folder, and a socket's path may have 107 characters only.
    os.environ.setdefault("RAY_TMPDIR", tempfile.mkdtemp(prefix="ra-", dir="/tmp"))
    record, ends = Record(options.record), time.monotonic() + 60 * (options.minutes or 1e6)
    if not record.lines and options.out.exists():
        record.add(json.loads(options.out.read_text())["faults"])
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    turns = Turns(options.turns)
    arena = Arena(Task(folder, options.limit))
    code = commit()
    try:
        for number in itertools.count(record.next_run):
            if len(struck(record.lines)) >= options.faults or time.monotonic() > ends:
                break
            turns.take()
            kind = next_kind(kinds, Counter(line["kind"] for line in record.lines))
            began = time.monotonic()
            outcome = torment(arena, kind, f"run-{number}", random.Random(f"{options.seed} {number}"))
            record.add(outcome.lines(run=number, kind=kind.name, commit=code))
            shutil.rmtree(arena.out(f"run-{number}"), ignore_errors=True)
            where = ", ".join(f"{moment.stage} {moment.epoch}" for moment in outcome.faults)
            print(
                f"{number:3} {kind.name:33} {outcome.verdict:14} {outcome.starts} starts, exits {outcome.exit_codes}, "
                f"{time.monotonic() - began:.0f} s: {where}",
                flush=True,
            )
    finally:
        arena.close()
        shutil.rmtree(folder, ignore_errors=True)
    return write(record, options.seed, options.out)


class Turns:
    """A lock that is held while runs are tormented, and given back now and then."""

    def __init__(self, path: Path | None) -> None:
        self._file = path.open("a") if path else None
        self._until = 0.0
        self.take()

    def take(self) -> None:
        """Go on with this turn, or wait for the next one."""
        if self._file and time.monotonic() > self._until:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            time.sleep(1)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._until = time.monotonic() + 120


def next_kind(kinds: list[Kind], done: Counter[str]) -> Kind:
    """The one that is furthest behind its share."""
    return min(kinds, key=lambda kind: done[kind.name] / SHARES[kind.name])


def write(record: Record, seed: int, out: Path) -> int:
    """The result's file and its table; 1 when a run ended badly."""
    lines, found = record.lines, totals(record.lines)
    here = provenance()
    text = json.dumps({"provenance": here, "seed": seed, "totals": found, "faults": []}, indent=1).replace(
        '"faults": []', '"faults": [\n' + ",\n".join("  " + json.dumps(line) for line in lines) + "\n ]"
    )
    out.write_text(text + "\n")
    out.with_suffix(".md").write_text(page(lines, here))
    print(sums(lines))
    return int(any(found[name] for name in ("runs_lost", "runs_with_different_bits", "hangs")))
