"""`AdaPLR.fit` takes any module and any images, and says in one sentence what it cannot take."""

from pathlib import Path

import numpy as np
import pytest
from torch import Tensor, nn

from ray_adaplr import AdaPLR, Config, ScalingConfig
from ray_adaplr.errors import InputError

IMAGES = np.random.default_rng(0).integers(0, 256, (24, 8, 8, 1), dtype=np.uint8)
SHORT = Config(n_e=1, epochs=1, distill_epochs=1, warm_start="off")


class Perceptron(nn.Module):
    """A network without convolutions, so that nothing in it tells how many channels it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU()), nn.Linear(8, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images))


def fit(out: Path, **options: str) -> None:
    trainer = AdaPLR(SHORT, ScalingConfig(engine="local"), verbose=False)
    result = trainer.fit(Perceptron(), IMAGES, out, **options)  # type: ignore[arg-type]
    assert len(result.labels) == len(IMAGES)


def test_a_module_without_convolutions_takes_the_images_channels(tmp_path: Path) -> None:
    fit(tmp_path / "run", normalize="none")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "normalize='imagenet' is for three channels"),
        ({"normalize": "mean"}, "normalize='mean'"),
        ({"normalize": "none", "head": "hed"}, "did you mean 'head'"),
    ],
)
def test_what_a_module_cannot_be_is_told(options: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        fit(tmp_path / "run", **options)
