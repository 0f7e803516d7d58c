"""Our Adam is torch's, to the bit."""

import io
import subprocess
import sys

import torch
from torch import Tensor, nn

from ray_adaplr.core.adam import Adam


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(2, 5, 3), nn.Flatten(), nn.Linear(5 * 16, 3), nn.Linear(7, 7))  # the last is idle
    return layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def groups(net: nn.Sequential) -> list[dict]:
    return [
        {"params": [*net[0].parameters(), *net[3].parameters()], "lr": 1e-2},
        {"params": list(net[2].parameters()), "lr": 1e-1},
    ]


def train(net: nn.Sequential, optimizer: Adam | torch.optim.Adam, steps: range) -> None:
    for step in steps:
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        images: Tensor = torch.rand(4, 2, 6, 6, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        net[:3](images).square().mean().backward()
        optimizer.step()


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))


def test_steps_are_those_of_torchs_fused_adam_to_the_bit() -> None:
    ours, theirs = network(), network()
    train(ours, Adam(groups(ours), 5e-4), range(5))
    train(theirs, torch.optim.Adam(groups(theirs), weight_decay=5e-4, fused=True), range(5))
    assert same(ours, theirs)


def test_going_on_from_its_state_or_from_torchs_gives_the_same_bits() -> None:
    straight = network()
    train(straight, Adam(groups(straight), 5e-4), range(6))
    for is_ours in (True, False):
        first = network()
        theirs = torch.optim.Adam(groups(first), weight_decay=5e-4, fused=True)
        optimizer = Adam(groups(first), 5e-4) if is_ours else theirs
        train(first, optimizer, range(3))
        kept = io.BytesIO()
        torch.save(optimizer.state_dict(), kept)
        kept.seek(0)
        rest = Adam(groups(first), 5e-4)
        for group in rest.param_groups:
            group["lr"] *= 0.9**3
        rest.load_state_dict(torch.load(kept, weights_only=True))
        train(first, rest, range(3, 6))
        assert same(first, straight)


def test_training_does_not_load_the_compiler() -> None:
    code = """
import sys
import numpy as np
import ray_adaplr.engine.member
from ray_adaplr.core.augment import AugmentSettings
from ray_adaplr.core.learner import Learner, TrainSettings
from ray_adaplr.core.models import ModelSpec, build
from ray_adaplr.core.objectives import supervised

read, samples = (lambda index: np.zeros((len(index), 8, 8, 3), np.uint8)), np.arange(8)
augment = AugmentSettings(crop=(0.5, 1.0), blur_probability=0.5, hue=0.05)
settings = TrainSettings(0, 1, 4, 0.1, 0.1, 0.0, "cosine", augment)
Learner(build(ModelSpec(num_classes=2)), read, samples, settings).train_epoch(0, supervised(samples % 2))
print("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
