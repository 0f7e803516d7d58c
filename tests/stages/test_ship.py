"""`stop = "auto"`: a run ends when it stalls, ships the best labels and model by score, and says so."""

from pathlib import Path

import numpy as np
import pytest
import torch
from local_runs import LOCAL

from ray_adaplr.cli.main import main
from ray_adaplr.cli.runs import print_result
from ray_adaplr.config import Config
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.refine import LogitHistory, RefineState
from ray_adaplr.core.scores import DEFAULT_SCORE
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError
from ray_adaplr.stages.adapt import Result, RunPlan, adapt
from ray_adaplr.stages.summary import choose_model, ship_best_labels


def state_after(scores: list[float], best_labels: list[int], last_changed: list[int]) -> RefineState:
    labels = torch.tensor([0, 0, 0])
    return RefineState(
        epoch=len(scores),
        labels=labels,
        last_changed=torch.tensor(last_changed, dtype=torch.int32),
        history=LogitHistory(3, 2, 1),
        judged=[{"epoch": e, DEFAULT_SCORE: s} for e, s in enumerate(scores)],
        healthy_labels=labels,
        best_labels=torch.tensor(best_labels),
        best_confidence=torch.full((3,), 0.7),
    )


def test_the_best_epochs_labels_take_the_place_of_the_last_ones() -> None:
    state = state_after([1.0, 1.8, 1.2], best_labels=[1, 0, 1], last_changed=[2, 2, 0])
    confidence, choice = ship_best_labels(state, warmup=0, start_labels=torch.tensor([0, 0, 0]))
    assert state.labels.tolist() == [1, 0, 1]
    assert confidence.tolist() == pytest.approx([0.7] * 3)
    assert state.last_changed.tolist() == [1, -1, 0]  # nothing is dated after the epoch that is shipped
    assert (choice["epoch"], choice["labels"]) == (1, "epoch 2")  # in files from 0, for people from 1
    assert "1.800 there and 1.200 in the last epoch, 3" in choice["why_labels"]


def test_the_model_with_the_best_score_is_chosen_and_a_tie_goes_to_the_target_model() -> None:
    assert choose_model({"target_model": 1.0, "ensemble/0": 0.9, "ensemble": 1.1})["model"] == "ensemble"
    assert choose_model({"target_model": 1.0, "ensemble/0": 1.0})["model"] == "target_model"


@pytest.fixture(scope="module")
def stopped(
    digit_stores: dict[str, ImageStore], source_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Result:
    """A run that would take 200 epochs with a learning rate at which nothing moves."""
    from ray_adaplr.storage.models import load_model

    config = Config(epochs=200, lr=1e-7, lr_head=1e-7, warmup=1, warm_start="off", distill_epochs=1, n_e=2, stop="auto")
    config = config.model_copy(update={"n_a": 2, "distill_on": "all"})
    out = tmp_path_factory.mktemp("stopped") / "run"
    return adapt(RunPlan([load_model(source_folder)], digit_stores["optdigits"], str(out), config, LOCAL))


def test_a_run_that_stalls_ends_and_says_what_it_ships_and_why(
    stopped: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    refined = [line for line in stopped.metrics if line["stage"] == "refine"]
    assert len(refined) < 100
    shipped = stopped.summary["shipped"]
    assert "in the last 4 epochs" in shipped["stop"]
    assert shipped["labels"].startswith("epoch ")
    assert shipped["model"] in {"target_model", "ensemble", "ensemble/0", "ensemble/1"}
    assert set(shipped["scores"]) == {"target_model", "ensemble", "ensemble/0", "ensemble/1"}
    print_result(stopped, "result")
    said = capsys.readouterr().out
    assert shipped["why_model"] in said
    assert shipped["why_labels"] in said


def test_several_models_evaluate_as_one_ensemble(
    stopped: Result, digit_stores: dict[str, ImageStore], capsys: pytest.CaptureFixture[str]
) -> None:
    members = [f"--model={stopped.path}/ensemble/{k}" for k in range(2)]
    assert main(["evaluate", *members, "--data", digit_stores["optdigits"].paths[0]]) == 0
    assert "accuracy" in capsys.readouterr().out


def test_a_fork_of_a_judged_run_keeps_to_its_own_epochs_and_to_what_the_best_one_was_chosen_by(
    digit_stores: dict[str, ImageStore], source_model: Classifier, tmp_path: Path
) -> None:
    def run(out: str, fork: str | None = None, **changes: object) -> Result:
        config = Config(epochs=3, warmup=1, alpha=0.5, warm_start="off", n_e=2, probabilities=True, stop="auto")
        config = config.model_copy(update=changes)
        plan = RunPlan([source_model], digit_stores["optdigits"], str(tmp_path / out), config, LOCAL)
        return adapt(plan, until="refine", fork=fork)

    judged = run("judged", lr=1e-6, lr_head=1e-6).path
    table = run("all", judged, stop="epochs", epochs=5).labels
    labels, confidence = (table[name].to_numpy() for name in ("refined_label", "confidence"))
    probs = np.stack([table[f"p_{name}"].to_numpy() for name in range(10)], 1)
    np.testing.assert_allclose(probs[range(len(labels)), labels], confidence, atol=1e-3)
    for changes, words in (({"warmup": 2}, "warmup"), ({"probabilities": False}, "probabilities")):
        with pytest.raises(InputError, match=f"cannot change {words} with stop=auto"):
            run("refused", judged, epochs=5, **changes)
    assert len(run("on", judged, epochs=4).metrics) == 4


def test_without_stop_auto_all_epochs_run_and_nothing_is_chosen(straight_run: Result, small_config: Config) -> None:
    result = straight_run
    assert sum(line["stage"] == "refine" for line in result.metrics) == small_config.epochs
    assert "shipped" not in result.summary
    assert np.all(result.labels["last_changed_epoch"].to_numpy() < small_config.epochs)
