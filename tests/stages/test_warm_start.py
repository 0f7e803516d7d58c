"""The warm start: what it trains on, what it may not touch, and what a model looks like afterwards."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.learner import Workplace
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.objectives import unsureness
from ray_adaplr.core.predict import reestimate_batchnorm
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError
from ray_adaplr.stages import warm_start as module
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.stages.views import Enlarged, ImageSource, clean_logits, features_and_logits
from ray_adaplr.stages.warm_start import (
    LEANING_SHARE,
    soften,
    warm_start,
    with_some_target_statistics,
    with_target_statistics,
)


@pytest.fixture
def model(source_model: Classifier) -> Classifier:
    return copy.deepcopy(source_model)


@pytest.fixture
def store(digit_stores: dict[str, ImageStore]) -> ImageStore:
    return digit_stores["optdigits"]


@pytest.mark.parametrize("kind", ["im", "centroids"])
def test_a_warm_start_makes_images_and_classes_tell_more_of_each_other_and_leaves_the_head_alone(
    kind: str, model: Classifier, store: ImageStore
) -> None:
    before, head = clean_logits(model, store, "cpu"), copy.deepcopy(model.head.state_dict())
    config = Config(warm_start=kind, warm_start_epochs=4)
    assert list(warm_start(model, store, config, Workplace(), [store], [])) == [0, 1, 2, 3]
    assert unsureness(clean_logits(model, store, "cpu")) < unsureness(before) - 0.1
    assert all(torch.equal(head[name], value) for name, value in model.head.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_head_that_was_frozen_stays_so_after_a_warm_start(model: Classifier, store: ImageStore) -> None:
    model.head.requires_grad_(False)
    list(warm_start(model, store, Config(warm_start_epochs=1), Workplace(), [store], []))
    assert not any(parameter.requires_grad for parameter in model.head.parameters())


def test_a_linear_probe_is_adapted_without_a_warm_start_and_the_user_is_told(
    model: Classifier, store: ImageStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.requires_grad_(False)
    model.head.requires_grad_(True)
    config = Config(epochs=1, distill_epochs=1, n_e=2)
    plan = RunPlan([model], store, str(tmp_path / "run"), config, ScalingConfig(engine="local"))
    result = adapt(plan, progress=Progress())
    [warning] = [each for each in result.summary["warnings"] if "warm start" in each]
    assert warning.startswith("The warm start is left out: it trains all but the head")
    assert warning in capsys.readouterr().err
    adapt(plan, progress=Progress())
    assert "already done" in capsys.readouterr().err
    convolution = "network.features.0.weight"
    assert torch.equal(result.classifier.state_dict()[convolution], model.state_dict()[convolution])
    assert not torch.equal(result.classifier.head.weight, model.head.weight)


def test_a_model_that_is_frozen_altogether_is_refused_before_any_work(
    model: Classifier, store: ImageStore, tmp_path: Path
) -> None:
    model.requires_grad_(False)
    plan = RunPlan([model], store, str(tmp_path / "run"), Config(), ScalingConfig(engine="local"))
    with pytest.raises(InputError, match=r"all weights of the model digit_cnn are frozen; call requires_grad_\(True\)"):
        adapt(plan)
    assert not (tmp_path / "run").exists()


def test_the_vote_looks_in_every_second_epoch_and_at_all_sizes_by_turns(
    model: Classifier, store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, seen = [Enlarged(store, 1.25), store], []

    def noted(model: Classifier, images: ImageSource, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(sizes.index(images))
        return features_and_logits(model, images, *others)

    monkeypatch.setattr(module, "features_and_logits", noted)
    config = Config(warm_start="centroids", warm_start_epochs=5)
    for epoch in warm_start(model, store, config, Workplace(), sizes, []):
        assert len(seen) == epoch // 2 + 1
    assert seen == [0, 1, 0]


def test_softening_lowers_the_confidence_to_so_much_above_chance_and_keeps_every_label(
    model: Classifier, store: ImageStore
) -> None:
    logits = clean_logits(model, store, "cpu")
    soften(model, logits, 0.1)
    softened = clean_logits(model, store, "cpu")
    assert softened.softmax(1).amax(1).mean().item() == pytest.approx(0.1 + 0.1 * 0.9, abs=0.01)
    assert torch.equal(softened.argmax(1), logits.argmax(1))
    again = copy.deepcopy(model.head.weight)
    soften(model, softened, 0.9)  # less sure than that already
    torch.testing.assert_close(model.head.weight, again)


def test_the_targets_statistics_are_taken_as_far_as_images_and_classes_tell_more_of_each_other(
    model: Classifier, store: ImageStore
) -> None:
    before = copy.deepcopy(model.state_dict())
    chosen, target = with_target_statistics(model, store, "cpu"), copy.deepcopy(model)
    reestimate_batchnorm(target, store.read, np.arange(len(store)))
    found = [unsureness(clean_logits(each, store, "cpu")) for each in (chosen, model, target)]
    assert found[0] <= min(found) + 1e-5
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_leaning_model_has_a_little_of_the_targets_statistics(model: Classifier, store: ImageStore) -> None:
    target = copy.deepcopy(model)
    reestimate_batchnorm(target, store.read, np.arange(len(store)))
    means = [
        torch.cat([value for name, value in each.state_dict().items() if name.endswith("running_mean")])
        for each in (model, with_some_target_statistics(model, store, "cpu"), target)
    ]
    torch.testing.assert_close(means[1], torch.lerp(means[0], means[2], LEANING_SHARE))


def test_a_network_without_batchnorm_stays_as_it_is(store: ImageStore) -> None:
    from ray_adaplr.core.models import ModelSpec

    plain = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(256, 10))
    network = Classifier(plain, ModelSpec(name="own/plain", num_classes=10, channels=1, head="1"))
    assert with_target_statistics(network, store, "cpu") is network
    assert with_some_target_statistics(network, store, "cpu") is network


def test_the_targets_statistics_are_chosen_by_the_class_shares_that_are_expected(
    model: Classifier, store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor | None] = []

    def noted(logits: torch.Tensor, shares: torch.Tensor | None) -> torch.Tensor:
        seen.append(shares)
        return unsureness(logits, shares)

    monkeypatch.setattr(module, "unsureness", noted)
    shares = torch.full((10,), 0.1)
    with_target_statistics(model, store, "cpu", shares)
    assert len(seen) == 4
    assert all(each is shares for each in seen)
