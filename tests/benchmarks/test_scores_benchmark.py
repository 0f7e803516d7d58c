"""The benchmark of label-free scores: its arithmetic, and that the default is the score it found best."""

import json
from typing import Any

import pytest

from benchmarks import RESULTS
from benchmarks import scores as benchmark
from ray_adaplr.core.scores import DEFAULT_SCORE


def row(accuracy: float, **last: float) -> dict[str, Any]:
    curves = {name: [0.0, last.get(name, 0.0)] for name in benchmark.BY_EPOCH}
    ends = {name: last.get(name, 0.0) for name in benchmark.AT_THE_END}
    curves["noise"] = [0.5, 1 - accuracy]
    return {"task": "t", "accuracy": accuracy, "changes": {}, "by_epoch": curves, "at_the_end": ends}


def test_a_score_in_the_order_of_accuracy_has_correlation_one_and_no_regret() -> None:
    rows = [row(0.9, infomax=3, entropy=1), row(0.7, infomax=2, entropy=2), row(0.4, infomax=1, entropy=0.1)]
    found = benchmark.judge(rows)["tasks"]["t"]["scores"]
    assert found["infomax"] == {"rank_correlation": pytest.approx(1), "regret": 0}
    assert found["entropy"]["regret"] == pytest.approx(0.5)  # less is better, so it picks the collapsed run


def test_trials_differ_and_the_first_is_the_preset() -> None:
    drawn = [benchmark.trial_settings("usps-mnist", number) for number in range(24)]
    assert drawn[0] == {}
    assert drawn[1:] == [benchmark.trial_settings("usps-mnist", number) for number in range(1, 24)]
    assert len({str(settings) for settings in drawn}) > 18


def test_the_default_score_is_the_winner_of_the_recorded_benchmark() -> None:
    verdict = benchmark.judge(json.loads((RESULTS / "scores.json").read_text())["rows"])
    assert len(verdict["tasks"]) >= 3
    assert all(task["trials"] >= 20 for task in verdict["tasks"].values())
    assert benchmark.ranking(verdict)[0] == DEFAULT_SCORE


def test_mixval_and_mano_do_not_beat_the_default_where_they_were_recorded() -> None:
    verdict = benchmark.judge(json.loads((RESULTS / "scores-networks.json").read_text())["rows"])
    assert len(verdict["tasks"]) >= 3
    order = benchmark.ranking(verdict)
    assert order.index(DEFAULT_SCORE) < min(order.index("mixval"), order.index("mano"))
    assert verdict["means"][DEFAULT_SCORE]["regret"] <= benchmark.SAME_REGRET
