"""Chaos: faults strike real commands, a round continues where it was stopped, and a run that ends badly is seen."""

import json
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import chaos
from benchmarks.chaos import faults, task
from benchmarks.chaos.faults import KINDS, Outcome
from benchmarks.chaos.record import Record, page, table, totals
from benchmarks.chaos.task import Moment
from ray_adaplr.stages.adapt import Result


def outcome(verdict: faults.Verdict) -> Outcome:
    return Outcome([Moment("refine", 2), Moment("distill", 1)], starts=3, verdict=verdict, last_words="oh no")


def test_a_round_goes_on_after_the_last_whole_run(tmp_path: Path) -> None:
    record = Record(tmp_path / "deep" / "faults.jsonl")
    assert (record.lines, record.next_run) == ([], 0)
    record.add(outcome("same bits").lines(run=0, kind="a", commit="abc"))
    record.add(outcome("hang").lines(run=1, kind="b", commit="abc"))
    with record.path.open("a") as file:
        file.write('{"run": 2, "ki')  # cut by a kill
    again = Record(record.path)
    assert again.next_run == 2
    assert [line["stage"] for line in again.lines] == ["refine", "distill"] * 2


def test_totals_count_faults_by_line_and_verdicts_by_run() -> None:
    verdicts: list[faults.Verdict] = ["same bits", "lost", "different bits", "hang", "hang"]
    outcomes = [*map(outcome, verdicts), Outcome(starts=1, verdict="lost", last_words="before any fault")]
    lines = [line for run, each in enumerate(outcomes) for line in each.lines(run=run, kind="k", commit="abc")]
    found = {"faults": 10, "runs": 6, "runs_lost": 2, "runs_with_different_bits": 1, "hangs": 2}
    assert totals(lines) == found
    assert "| k | 10 | distill 5, refine 5 | 6 | 1 of 6 | 10 times |" in table(lines)
    written = page(lines, {"commit": "abc"})
    assert (written.count("oh no"), written.count("before any fault")) == (4, 1)


def test_every_kind_gets_its_share() -> None:
    struck: Counter[str] = Counter()
    for _ in range(200):
        struck[chaos.next_kind(KINDS, struck).name] += 1
    assert set(struck) == {kind.name for kind in KINDS}
    assert set(chaos.SHARES) == set(struck)
    assert struck["coordinator killed, in process"] >= 4 * struck["GCS killed"] > 0


def test_moments_come_in_order_and_in_every_stage() -> None:
    drawn = task.draw_moments(60, random.Random(0))
    assert drawn == sorted(drawn, key=lambda moment: moment.rank)
    assert {moment.stage for moment in drawn} == set(task.EPOCHS)


def test_a_folder_shows_how_far_its_run_has_come(straight_run: Result, tmp_path: Path) -> None:
    run = tmp_path / "run"
    seen = [task.moment_of(str(run))]
    shutil.copytree(straight_run.path, run)
    for gone in ("summary.json", "labels.parquet", "metrics.jsonl", "inferred.parquet", "config.toml"):
        seen.append(task.moment_of(str(run)))
        (run / gone).unlink()
    seen.append(task.moment_of(str(run)))
    stages = ["start", "end", "distill", "refine", "refine", "infer", "start"]
    assert [moment.stage for moment in seen] == stages
    assert seen[3].epoch == 4
    assert seen[4].epoch == 0


@pytest.mark.slow
def test_a_prepare_that_is_killed_ends_with_the_same_bits_and_a_changed_store_is_seen(tmp_path: Path) -> None:
    out = tmp_path / "chaos.json"
    words = ["--only", "prepare", "--faults", "2", "--record", str(tmp_path / "faults.jsonl"), "--out", str(out)]
    assert chaos.main(words) == 0
    written = json.loads(out.read_text())
    assert written["totals"]["faults"] == sum(line["struck"] for line in written["faults"]) >= 2
    assert written["totals"]["runs_with_different_bits"] == 0
    assert "prepare killed" in out.with_suffix(".md").read_text()
    again = [*words[:2], "--faults", "1", "--record", str(tmp_path / "new.jsonl"), *words[-2:]]
    assert chaos.main(again) == 0  # a new record begins with the faults that are written
    assert json.loads(out.read_text())["faults"] == written["faults"]

    arena = faults.Arena(task.Task(tmp_path / "task"))
    arena._bits["prepare"] = "of another store"
    kind = next(kind for kind in KINDS if kind.name == "prepare killed")
    assert faults.torment(arena, kind, "run", random.Random(0)).verdict == "different bits"
