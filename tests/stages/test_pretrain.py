"""A source model is trained once, and never passed off for another."""

from pathlib import Path

import pytest
import torch

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import ModelSpec, build
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError
from ray_adaplr.stages.pretrain import SourcePlan, pretrain

CONFIG, LOCAL = Config(pretrain_epochs=1), ScalingConfig(engine="local")
SPEC = ModelSpec(num_classes=10, channels=1, width=4)


def test_another_network_or_start_in_the_same_folder_is_refused_and_the_start_itself_is_left_alone(
    digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    store, out, start = digit_stores["optdigits"], str(tmp_path), build(SPEC)
    trained = pretrain(SourcePlan(store, out, start, CONFIG, LOCAL))
    assert all(torch.equal(a, b) for a, b in zip(start.parameters(), build(SPEC).parameters()))
    again = pretrain(SourcePlan(store, out, SPEC, CONFIG, LOCAL))
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), trained.parameters()))
    with pytest.raises(InputError, match="of another kind"):
        pretrain(SourcePlan(store, out, SPEC.model_copy(update={"width": 8}), CONFIG, LOCAL))
    with pytest.raises(InputError, match="of another kind"):
        pretrain(SourcePlan(store, out, start, CONFIG, LOCAL, start_name="ImageNet"))
