"""The choice of the best trial: a tie is called a tie, and is no reason to change a setting."""

import json
from pathlib import Path
from typing import Any

import pytest

from ray_adaplr.config import Config
from ray_adaplr.report.sweep import SweepOutcome, sweep_page
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.layout import DIAGNOSTIC, ORACLE
from ray_adaplr.sweep.results import OWN, choose, trial_row


def row(number: int, score: float, **changes: Any) -> dict[str, Any]:
    settings = Config(**changes).resolve(10).model_dump()
    return {
        "trial": f"{number:03}",
        "settings": settings,
        "score": score,
        "epochs_run": 3,
        "error": None,
        "finished": True,
    }


def outcome(*rows: dict[str, Any]) -> SweepOutcome:
    choice = choose(list(rows), Config().resolve(10), upwards=True)
    return SweepOutcome("s", "infomax", list(rows), ["alpha"], *choice)


def test_the_one_best_trial_is_chosen() -> None:
    result = outcome(row(0, 0.1, alpha=0.5), row(1, 0.3, alpha=0.7), row(2, 0.2))
    assert (result.best["trial"], result.tied, result.chosen) == ("001", [], "trial 001")
    assert result.table().splitlines()[1].split() == ["001", "0.7", "0.3000", "3", "best"]


def test_of_trials_that_tie_the_one_nearest_to_the_sweeps_own_settings_is_chosen() -> None:
    result = outcome(row(0, 0.3, alpha=0.5), row(1, 0.30001, alpha=0.9), row(2, 0.2, alpha=0.6))
    assert (result.best["trial"], result.tied) == ("001", ["000", "001"])
    assert "nearest of those that tie" in result.chosen


def test_the_page_of_a_sweep_calls_a_tie_a_tie() -> None:
    empty = dict.fromkeys(("gamma", "agreement", DIAGNOSTIC))
    rows = [{**row(i, score, alpha=0.5 + i / 10), **empty, "lines": []} for i, score in enumerate((0.3, 0.3, 0.2))]
    result = outcome(*rows)
    page = sweep_page(result)
    assert "A tie by infomax: trials 000, 001. best.toml holds the settings of trial 000, the nearest" in page
    assert page.count("<strong>tied</strong>") == 2
    assert "<strong>best</strong>" not in page


def test_where_all_trials_tie_the_sweeps_own_settings_stay() -> None:
    assert outcome(row(0, 0.3, alpha=0.5), row(1, 0.3, alpha=0.7)).chosen == OWN


@pytest.mark.parametrize(("labels", "epoch"), [(None, 2), ("epoch 1", 1), ("epoch 2", 2)])
def test_a_trial_is_judged_by_the_epoch_that_its_labels_are_of(tmp_path: Path, labels: str | None, epoch: int) -> None:
    trial = Folder(tmp_path) / "trials/000"
    scores = [{"infomax": 1.0, "gamma": 0.1}, {"infomax": 2.0, "gamma": 0.2}, {"infomax": 1.5, "gamma": 0.3}]
    lines = [{"stage": "refine", "epoch": i, "seconds": 1, "noise": i / 4, **line} for i, line in enumerate(scores)]
    trial.write("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    if labels:
        trial.write_json("shipped.json", {"stop": "", "labels": labels, "why_labels": ""})
    row, by_truth = (trial_row(Folder(tmp_path), "000", metric, None) for metric in ("infomax", ORACLE))
    assert (row["score"], row["gamma"]) == (scores[epoch]["infomax"], scores[epoch]["gamma"])
    assert row[DIAGNOSTIC] == by_truth["score"] == 1 - epoch / 4
    assert (row["epochs_run"], row["seconds"]) == (3, 3)


def test_a_trial_has_no_score_where_the_epoch_of_its_labels_has_no_line(tmp_path: Path) -> None:
    trial = Folder(tmp_path) / "trials/000"
    line = {"stage": "refine", "epoch": 0, "seconds": 1, "noise": 0.5, "infomax": 1.0}
    trial.write("metrics.jsonl", json.dumps(line) + "\n")
    trial.write_json("shipped.json", {"stop": "", "labels": "epoch 1", "why_labels": ""})
    row = trial_row(Folder(tmp_path), "000", "infomax", None)
    assert (row["score"], row[DIAGNOSTIC], row["epochs_run"]) == (None, None, 1)
