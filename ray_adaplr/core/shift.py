"""How far images lie from those that a network was trained on, by what its BatchNorm layers remember of those.

No labels and no source images: each layer keeps the mean and the variance of every channel. Networks without such
layers (most transformers) cannot tell, and what tells nothing here is taken for a shift.
"""

from contextlib import ExitStack

import numpy as np
import torch
from torch import Tensor, nn

from ray_adaplr.core.feed import Images
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.predict import batchnorm_layers, predict_logits

FAMILIAR = 0.009
"""A shift below this is none. Other images of a model's own domain have at most .0079 (40 of PACS and digits), another
domain at least .0151 (68; photo→art, where nearly half of the right labels are lost): benchmarks/results/shift.json."""
ENOUGH_IMAGES = 50  # of fewer, the median over channels comes out too small
AT_MOST = 500  # images that are looked at


def shift_of(model: Classifier, images: Images, count: int, device: torch.device | str = "cpu") -> float | None:
    """How far the `count` images lie from the training ones; None where the model or so few images cannot tell.

    Per channel, the squared distance of its means in units of its variance, less what chance adds to it for so many
    images; of that the median over channels, and its mean over the later half of the layers. Earlier layers see
    colours and edges, which move far without any harm.
    """
    samples = np.unique(np.linspace(0, count - 1, AT_MOST).astype(np.int64))
    layers = batchnorm_layers(model)
    layers = layers[len(layers) // 2 :]
    trained = all(layer.running_mean.any() for layer in layers)  # type: ignore[union-attr]
    if len(samples) < ENOUGH_IMAGES or not layers or not trained:
        return None
    sums: dict[nn.Module, list[Tensor]] = {}  # of the images' means per channel, and of their squares, [c] each

    def add(layer: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        seen = (inputs[0] if inputs else named["input"]).float()
        means = seen.flatten(2).mean(2) if seen.ndim > 2 else seen  # [b, c]
        found = [torch.full_like(means[0], len(means)), means.sum(0), means.square().sum(0)]
        sums[layer] = [a + b for a, b in zip(sums[layer], found)] if layer in sums else found

    with ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(layer.register_forward_pre_hook(add, with_kwargs=True))
        predict_logits(model, images, samples, device)
    return float(np.mean([_distance(layer, *found) for layer, found in sums.items()])) if sums else None


def _distance(layer: nn.Module, number: Tensor, means: Tensor, squares: Tensor) -> float:
    mean = means / number
    by_chance = (squares / number - mean.square()) / (number - 1)
    distance = (mean - layer.running_mean).square() - by_chance  # type: ignore[operator, arg-type]
    return (distance / (layer.running_var + layer.eps)).median().item()  # type: ignore[operator]
