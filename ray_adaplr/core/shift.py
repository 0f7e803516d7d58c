"""How far images lie from those that a network was trained on, by what its BatchNorm layers remember of those.

No labels and no source images: each layer keeps the mean and the variance of every channel. Networks without such
layers (most transformers) cannot tell, and what tells nothing here is taken for a shift.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ray_adaplr.core.feed import Images
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.predict import batchnorm_layers, predict_logits

Look: TypeAlias = Callable[[np.ndarray], object]  # shows a network the images with some sample numbers
FAMILIAR = 0.009
"""A shift below this is none. Other images of a model's own domain have at most .0079 (40 of PACS and digits), another
domain at least .0151 (68; photo→art, where nearly half of the right labels are lost): benchmarks/results/shift.json."""
ENOUGH_IMAGES = 50  # of fewer, the median over channels comes out too small
AT_MOST, AT_MOST_STRANGE = 500, 100  # images that are looked at; a large distance takes fewer


def shift_of(model: Classifier, images: Images, count: int, device: torch.device | str = "cpu") -> float | None:
    """How far the `count` images lie from the training ones; None where the model or so few images cannot tell.

    Per channel, the squared distance of its means in units of its variance, less what chance adds to it for so many
    images; of that the median over channels, and its mean over the later half of the layers. Earlier layers see
    colours and edges, which move far without any harm.
    """
    look = partial(predict_logits, model, images, device=device)
    return _distance(model, count, AT_MOST, look, lambda layer, _: layer.running_var + layer.eps)  # type: ignore[operator]


def strangeness_of(model: Classifier, count: int, look: Look) -> float | None:
    """How far `count` images lie from the training ones, as `shift_of`, but in units of the images' own variance."""
    return _distance(model, count, AT_MOST_STRANGE, look, lambda _, variance: variance.clamp_min(1e-12))


def _distance(
    model: Classifier, count: int, at_most: int, look: Look, unit: Callable[[nn.Module, Tensor], Any]
) -> float | None:
    """The distance in units that a layer and the variance of its channels among the images, [c], give, [c]."""
    samples = np.unique(np.linspace(0, count - 1, at_most).astype(np.int64))
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
        look(samples)
    medians = list[float]()
    for called, (number, means, squares) in sums.items():
        mean = means / number
        variance = squares / number - mean.square()
        distance = (mean - called.running_mean).square() - variance / (number - 1)  # type: ignore[operator]
        medians.append((distance / unit(called, variance)).median().item())
    return float(np.mean(medians)) if medians else None
