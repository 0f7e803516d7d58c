"""The accuracy benchmark: rows are made once, made again when their settings change, and never lost."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import accuracy, accuracy_table
from benchmarks.harness import Results, spread
from benchmarks.rivals import Adapted
from benchmarks.tasks import Task
from ray_adaplr.config import Config
from ray_adaplr.core.models import Classifier
from ray_adaplr.data.store import ImageStore

TASK = Task("mnist-optdigits", "mnist", "optdigits", width=8, source_epochs=2, target_limit=200)
SHORT = {"epochs": 2, "distill_epochs": 1, "warm_start_epochs": 1, "warmup": 0, "distill_on": "all"}


@pytest.fixture(scope="module")
def data(digit_stores: dict[str, ImageStore], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The domains as npz files, as the benchmark reads them; its work folder is kept between tests."""
    folder = tmp_path_factory.mktemp("data")
    for domain, split in (("mnist", "train"), ("optdigits", "train"), ("optdigits", "test")):
        store = digit_stores[domain]
        truth = store.ground_truth()
        assert truth is not None
        np.savez(folder / f"{domain}_{split}.npz", images=store.read(np.arange(len(store))), labels=truth)
    return folder


def case(data: Path, rows: Path, *again: str, rival_epochs: int = 2) -> accuracy.Case:
    """A new process's view of the task."""
    return accuracy.Case(TASK, 0, SHORT, data, data / "work", Results(rows), set(again), rival_epochs)


def test_a_row_that_is_there_is_not_made_again(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    rival = accuracy.RIVALS["shot"]
    file = tmp_path / "accuracy.json"

    def counted(model: Classifier, store: ImageStore, seed: int, epochs: int, device: str) -> Adapted:
        made.append(epochs)
        return rival(model, store, seed, epochs, device)

    monkeypatch.setitem(accuracy.RIVALS, "shot", counted)
    monkeypatch.setattr("benchmarks.harness.commit", lambda: "first")
    first = case(data, file).row("shot")
    monkeypatch.setattr("benchmarks.harness.commit", lambda: "second")
    assert case(data, file).row("shot") == first
    assert made == [2]
    case(data, file, "shot").row("shot")
    assert made == [2, 2]
    case(data, file, rival_epochs=1).row("shot")
    assert made == [2, 2, 1]
    rows = Results(file).rows
    assert [(row["epochs"], row["commit"]) for row in rows] == [(1, "second")]


@pytest.mark.usefixtures("unrendered")
def test_all_methods_give_rows_a_table_and_a_plot(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "accuracy.json"
    here = case(data, file)
    for method in accuracy.METHODS:
        here.row(method)
    results = Results(file)
    rows = {row["method"]: row for row in results.rows}
    assert set(rows) == set(accuracy.METHODS)
    assert all(0 <= row["inferred_noise"] <= 1 and row["cpu_seconds"] > 0 for row in rows.values())
    assert len({row["inferred_noise"] for row in rows.values()}) == 1
    assert set(rows["adaplr"]["cpu_seconds_by_stage"]) == {"infer", "refine", "distill"}
    assert rows["adaplr_ensemble"]["test_accuracy"] == rows["adaplr"]["ensemble_test_accuracy"]
    assert rows["adaplr_ensemble"]["cpu_seconds"] < rows["adaplr"]["cpu_seconds"]
    # Two epochs of the paper's preset make no label sure, so there is nothing to train a target model on.
    assert rows["adaplr_paper"]["test_accuracy"] is None
    assert "No target model" in rows["adaplr_paper"]["warnings"][0]
    accuracy_table.write_table(results.rows, tmp_path / "accuracy.md")
    assert (tmp_path / "accuracy.md").read_text().count("\n| ") == len(rows) + 2
    accuracy_table.plot(results.rows, tmp_path / "accuracy.png")
    assert (tmp_path / "accuracy.png").stat().st_size > 10_000


def test_two_processes_add_to_one_file(tmp_path: Path) -> None:
    here, there = Results(tmp_path / "rows.json"), Results(tmp_path / "rows.json")
    here.add({"seed": 0}, {"epochs": 3}, {"noise": 0.1})
    there.add({"seed": 1}, {"epochs": 3}, {"noise": 0.2})
    assert [row["noise"] for row in Results(tmp_path / "rows.json").rows] == [0.1, 0.2]
    assert list(json.loads((tmp_path / "rows.json").read_text())["settings"].values()) == [{"epochs": 3}]


def test_adaplr_is_cut_to_the_time_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "AT_SHOT_TIME", {"n_e": 1, "n_rl": 4})
    config = Config(n_e=3, epochs=30, distill_epochs=15, warm_start_epochs=10)
    full = {"cpu_seconds_by_stage": {"infer": 10.0, "refine": 90.0, "distill": 15.0}}
    cut = accuracy.cut_to(32.0, full, config)
    assert (cut.n_e, cut.warm_start_epochs) == (1, 10)
    expected = 10 + 30 * cut.epochs / 30 + 15 * cut.distill_epochs / 15
    assert expected == pytest.approx(32.0, abs=1.5)
    assert accuracy.cut_to(4.0, full, config).warm_start_epochs == 2


def test_spread_shows_what_is_known() -> None:
    assert spread([0.5, 0.7]) == "0.600 ± 0.141"
    assert spread([None, 0.25], 2) == "0.25"
    assert spread([None]) == "–"
