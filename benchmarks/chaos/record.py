"""The record of all faults: one JSON line each, so that a stopped round goes on, and the table made of it."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from ray_adaplr.errors import counted

Line = dict[str, Any]


class Record:
    """A file with one line per fault.

    Args:
        path: the file; it need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    @property
    def lines(self) -> list[Line]:
        """All faults so far; a last line that was cut by a kill is left out."""
        if not self.path.exists():
            return []
        whole = self.path.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    @property
    def next_run(self) -> int:
        """The number of the first run that is not in the file."""
        return max((line["run"] for line in self.lines), default=-1) + 1

    def add(self, lines: list[Line]) -> None:
        """The faults of one run, written at once: half a run never counts."""
        with self.path.open("a") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))


def struck(lines: list[Line]) -> list[Line]:
    """The lines of faults; the others tell of a run that ended before any struck."""
    return [line for line in lines if line["struck"]]


def totals(lines: list[Line]) -> dict[str, int]:
    """Faults and runs in all, and how many runs ended badly in each way."""
    verdicts = Counter({line["run"]: line["verdict"] for line in lines}.values())
    return {
        "faults": len(struck(lines)),
        "runs": len({line["run"] for line in lines}),
        "runs_lost": verdicts["lost"],
        "runs_with_different_bits": verdicts["different bits"],
        "hangs": verdicts["hang"],
    }


def sums(lines: list[Line]) -> str:
    """The totals in one sentence."""
    found = totals(lines)
    bad = ("runs_lost", "runs_with_different_bits", "hangs")
    return f"{found['faults']} faults in {found['runs']} runs: " + ", ".join(
        f"{found[name]} {name.replace('_', ' ')}" for name in bad
    )


def table(lines: list[Line]) -> str:
    """One line per kind of fault, with the stages it met, and one for all."""
    text = ["| fault | faults | where they struck | runs | ended with the same bits | command given again |"]
    text += ["| --- | --- | --- | --- | --- | --- |"]
    for kind in dict.fromkeys(line["kind"] for line in lines):
        of_kind = [line for line in lines if line["kind"] == kind]
        stages = Counter(line["stage"] for line in struck(of_kind))
        text.append(_row(kind, of_kind, ", ".join(f"{stage} {count}" for stage, count in sorted(stages.items()))))
    return "\n".join([*text, _row("all", lines, "")])


def _row(name: str, lines: list[Line], where: str) -> str:
    runs = {line["run"]: line for line in lines}
    same = sum(run["verdict"] == "same bits" for run in runs.values())
    again = sum(run["starts"] - 1 for run in runs.values())
    return (
        f"| {name} | {len(struck(lines))} | {where} | {len(runs)} | {same} of {len(runs)} | {counted(again, 'time')} |"
    )


def page(lines: list[Line], provenance: Line) -> str:
    """The Markdown page."""
    bad = {line["run"]: line for line in lines if line["verdict"] != "same bits"}.values()
    commits = ", ".join(dict.fromkeys(line["commit"] for line in lines)) or provenance["commit"]
    text = ["# Faults in real runs", "", f"{sums(lines)} (commits: {commits}).", "", table(lines), ""]
    if bad:
        text += ["## Runs that ended badly", ""]
        text += [f"- run {line['run']}, {line['kind']}: {line['verdict']}. {line['last_words']}" for line in bad]
        text.append("")
    return "\n".join(text)
