"""BatchNorm's statistics are taken anew from the target: all of them, nothing else, and the same bits each time."""

import numpy as np
import pytest
import torch
from torch import nn

from ray_adaplr.core import predict
from ray_adaplr.core.learner import Learner, TrainSettings
from ray_adaplr.core.models import Classifier, ModelSpec, build
from ray_adaplr.core.objectives import supervised
from ray_adaplr.core.predict import batchnorm_layers, reestimate_batchnorm

N, C = 40, 4
IMAGES = np.random.default_rng(0).integers(0, 256, (N, 8, 8, 1), dtype=np.uint8)
SPEC = ModelSpec(num_classes=C, channels=1, width=2)
EVERYTHING = np.arange(N)


def read(index: np.ndarray) -> np.ndarray:
    return IMAGES[index]


def test_batchnorm_takes_the_statistics_of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "_BYTES_PER_PASS", 10 * 12 * 8 * 8)  # 10 images together: several batches
    model = build(SPEC)
    layer = next(m for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    momentum, weights = layer.momentum, model.head.weight.clone()
    assert reestimate_batchnorm(model, read, EVERYTHING)
    convolution = next(m for m in model.modules() if isinstance(m, nn.Conv2d))
    with torch.no_grad():
        maps = convolution(torch.from_numpy(IMAGES).permute(0, 3, 1, 2) / 255)
    torch.testing.assert_close(layer.running_mean, maps.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.running_var, maps.var((0, 2, 3)), rtol=0.05, atol=1e-4)
    assert layer.momentum == momentum
    assert not model.training
    assert torch.equal(model.head.weight, weights)


def test_batchnorm_forgets_the_source_and_gives_the_same_again() -> None:
    model, other = build(SPEC), build(SPEC)
    other.train()(torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    statistics = "network.features.1.running_mean"
    assert not torch.equal(model.state_dict()[statistics], other.state_dict()[statistics])
    for one in (model, other, other):
        reestimate_batchnorm(one, read, EVERYTHING)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def test_batchnorm_statistics_do_not_depend_on_dropout() -> None:
    norm = nn.BatchNorm2d(1)
    model = Classifier(nn.Sequential(nn.Dropout(0.5), norm, nn.Flatten(), nn.Linear(64, C)), SPEC)
    generator = torch.get_rng_state()
    reestimate_batchnorm(model, read, EVERYTHING)
    assert torch.equal(torch.get_rng_state(), generator)
    assert norm.running_mean is not None
    np.testing.assert_allclose(norm.running_mean.item(), IMAGES.mean() / 255, rtol=1e-4)


def test_frozen_layers_keep_their_statistics() -> None:
    model = build(SPEC)
    frozen, free, *_ = batchnorm_layers(model)
    frozen.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in frozen.state_dict().items()}
    settings = {"seed": 0, "epochs": 1, "batch_size": 10, "lr": 0.1, "lr_head": 0.1, "weight_decay": 0.0}
    learner = Learner(model, read, EVERYTHING, TrainSettings(**settings, schedule="constant", augment=None))
    for change in (
        lambda: reestimate_batchnorm(model, read, EVERYTHING),
        lambda: learner.train_epoch(0, supervised(EVERYTHING % C)),
    ):
        free_before = free.running_mean.clone()
        change()
        assert all(torch.equal(tensor, before[name]) for name, tensor in frozen.state_dict().items())
        assert not torch.equal(free.running_mean, free_before)


def test_a_model_without_batchnorm_is_left_alone() -> None:
    assert not reestimate_batchnorm(Classifier(nn.Sequential(nn.Flatten(), nn.Linear(64, C)), SPEC), read, EVERYTHING)
