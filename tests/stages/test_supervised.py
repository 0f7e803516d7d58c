"""What the target model starts from."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier, ModelSpec, build
from ray_adaplr.data.store import ImageStore
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.stages.supervised import distill_start, starting_members
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
    plan = RunPlan(sources, digit_stores["optdigits"], str(tmp_path / "run"), config, ScalingConfig(engine="local"))
    adapt(plan, until="refine")
    (tmp_path / "run/ensemble/0/model.json").unlink()  # a member that was lost
    (tmp_path / "run/ensemble/2/model.json").unlink()
    result = adapt(plan)
    width = 12 if start == "source" else 8
    assert result.classifier.spec.width == load_model(tmp_path / "run").spec.width == width
    assert result.summary["target"] is not None
