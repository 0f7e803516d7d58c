"""What the target model starts from, and what it learns."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from local_runs import LOCAL

from ray_adaplr.config import Config
from ray_adaplr.core.models import Classifier, ModelSpec, build
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.stages.supervised import distill_lesson, distill_start, mixed, share_of_source, starting_members
from ray_adaplr.storage.models import load_model

AVERAGE = Config(distill_start="average")


@pytest.mark.parametrize(
    ("left", "num_sources", "chosen"),
    [
        ([0, 1, 2], 1, [0, 1, 2]),
        ([0, 1, 2], 2, [0, 2]),
        ([1, 2, 3], 2, [1, 3]),
        ([1, 2], 2, [2]),
        ([1, 2, 4], 3, [1, 4]),
        ([0, 1, 2], 3, [0]),
        ([0], 2, [0]),
    ],
)
def test_the_most_members_that_share_a_start_are_averaged(left: list[int], num_sources: int, chosen: list[int]) -> None:
    assert starting_members(left, num_sources, AVERAGE) == chosen
    assert starting_members(left, num_sources, Config(distill_start="member")) == left[:1]
    assert starting_members(left, num_sources, Config(distill_start="source")) == []
    members = {k: build(ModelSpec(num_classes=3, width=2 + k % num_sources), seed=k) for k in left}
    average = distill_start(members[left[0]], members, AVERAGE, num_sources)
    expected = torch.stack([members[k].head.weight for k in chosen]).mean(0)
    torch.testing.assert_close(average.head.weight, expected)


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize("start", ["average", "member", "source"])
def test_sources_of_different_architectures_are_adapted_and_the_target_model_is_read_as_it_was_written(
    start: Any, source_model: Classifier, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    wider = build(source_model.spec.model_copy(update={"width": 12}))
    config = Config(epochs=1, warm_start="off", distill_epochs=1, n_e=3, distill_start=start, stop="auto")
    sources = [wider, source_model]
    plan = RunPlan(sources, digit_stores["optdigits"], str(tmp_path / "run"), config, LOCAL)
    adapt(plan, until="refine")
    (tmp_path / "run/ensemble/0/model.json").unlink()  # a member that was lost
    (tmp_path / "run/ensemble/2/model.json").unlink()
    result = adapt(plan)
    width = 12 if start == "source" else 8
    assert result.classifier.spec.width == load_model(tmp_path / "run").spec.width == width
    assert result.summary["target"] is not None


def test_the_fewer_labels_changed_the_more_of_the_source_stays() -> None:
    shares = [share_of_source(changed, Config(keep_source=0.25)) for changed in (0.0, 0.05, 0.25, 0.9)]
    assert shares == pytest.approx([1, 0.8, 0, 0])
    assert share_of_source(0.0, Config()) == 0
    one, other = (build(ModelSpec(num_classes=3, width=2), seed=seed) for seed in (0, 1))
    torch.testing.assert_close(mixed(one, other, 0.25).head.weight, 0.75 * one.head.weight + 0.25 * other.head.weight)


@pytest.mark.usefixtures("unrendered")
def test_a_target_model_that_had_little_to_learn_is_near_the_source(
    source_model: Classifier, digit_stores: dict[str, ImageStore], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def distance(**changes: Any) -> float:
        config = Config(epochs=1, warm_start="off", distill_epochs=1, n_e=1, **changes)
        plan = RunPlan([source_model], digit_stores["mnist"], str(tmp_path / f"{len(changes)}"), config, LOCAL)
        head = adapt(plan, progress=Progress()).classifier.head.weight
        return (head - source_model.head.weight).norm().item()

    free, held = distance(), distance(keep_source=0.5)  # one epoch changes no label
    assert "0% of the labels changed: the target model keeps 100% of the source's weights" in capsys.readouterr().err
    assert held == 0 < free


def soft_lesson(labels: list[int], probs: list[list[float]], went_back: bool) -> np.ndarray:
    columns = {f"p_{i}": np.array(column, np.float16) for i, column in enumerate(zip(*probs))}
    table = pa.table({"refined_label": labels, "confidence": [0.5] * len(labels), **columns})
    store: Any = type("Store", (), {"paths": ["store"]})
    return distill_lesson(store, table, Config(distill_on="soft", probabilities=True), went_back).labels


def test_after_an_alarm_no_class_stands_above_the_label_in_what_is_learned() -> None:
    probs = [[0.7, 0.2, 0.1], [0.1, 0.9, 0.0], [1.0, 0.0, 0.0]]
    labels = [0, 2, 1]
    usual, after_alarm = (soft_lesson(labels, probs, went_back) for went_back in (False, True))
    assert usual.argmax(1).tolist() == [0, 1, 0]
    np.testing.assert_array_equal(usual[0], after_alarm[0])
    assert (after_alarm[range(3), labels] == after_alarm.max(1)).all()
    np.testing.assert_allclose(after_alarm.sum(1), 1, atol=1e-6)


@pytest.mark.usefixtures("unrendered")
def test_a_run_that_went_back_teaches_the_labels_it_went_back_to(
    source_model: Classifier, digit_stores: dict[str, ImageStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []

    def noted(store: ImageStore, table: pa.Table, config: Config, went_back: bool) -> Any:
        told.append(went_back)
        return distill_lesson(store, table, config, went_back)

    monkeypatch.setattr("ray_adaplr.stages.supervised.distill_lesson", noted)
    usual = Config(epochs=2, warmup=0, warm_start="off", distill_epochs=1, n_e=2, probabilities=True, distill_on="soft")
    for alarm, on_harm in (([4], "guard"), ([4], "stop"), ([4], "off"), ([], "guard")):
        monkeypatch.setattr("ray_adaplr.stages.refine.class_collapse", lambda *_, alarm=alarm: alarm)
        config, out = usual.model_copy(update={"on_harm": on_harm}), tmp_path / f"{len(told)}"
        adapt(RunPlan([source_model], digit_stores["optdigits"], str(out), config, LOCAL))
    assert told == [True, True, False, False]
