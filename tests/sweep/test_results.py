"""The choice of the best trial: a tie is called a tie, and is no reason to change a setting."""

from typing import Any

from ray_adaplr.config import Config
from ray_adaplr.report.sweep import SweepOutcome, sweep_page
from ray_adaplr.storage.layout import DIAGNOSTIC
from ray_adaplr.sweep.results import OWN, choose


def row(number: int, score: float, **changes: Any) -> dict[str, Any]:
    settings = Config(**changes).resolve(10).model_dump()
    return {"trial": f"{number:03}", "settings": settings, "score": score, "epochs": 3, "error": None, "finished": True}


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
