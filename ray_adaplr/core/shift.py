"""How far images lie from those that a network was trained on, by what its BatchNorm layers remember of those.

No labels and no source images: each layer keeps the mean and the variance of every channel. Networks without such
layers (most transformers) cannot tell, and what tells nothing here is taken for a shift.
"""

from collections.abc import Callable, Iterable
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
AT_MOST_STRANGE = 100  # enough for a large distance


def shift_of(model: Classifier, images: Images, count: int, device: torch.device | str = "cpu") -> float | None:
    """How far the `count` images lie from the training ones; None where the model or so few images cannot tell.

    Per channel, the squared distance of its means in units of its variance, less what chance adds to it for so many
    images; of that the median over channels, and its mean over the later half of the layers. Earlier layers see
    colours and edges, which move far without any harm.
    """
    found = _statistics(model, count, AT_MOST, lambda samples: predict_logits(model, images, samples, device))
    return _mean(distance / (layer.running_var + layer.eps) for layer, distance, _ in found)  # type: ignore[operator]


def strangeness_of(model: Classifier, count: int, look: Callable[[np.ndarray], object]) -> float | None:
    """How far `count` images lie from the training ones, as `shift_of`, but in units of the variance among the images.

    Above 1 they have more in common with one another than with what the network knows. To `look` shows the network
    those with some sample numbers.
    """
    found = _statistics(model, count, AT_MOST_STRANGE, look)
    return _mean(distance / variance.clamp_min(1e-12) for _, distance, variance in found)


def _mean(channels: Iterable[Tensor]) -> float | None:
    medians = [each.median().item() for each in channels]
    return float(np.mean(medians)) if medians else None


def _statistics(
    model: Classifier, count: int, at_most: int, look: Callable[[np.ndarray], object]
) -> list[tuple[nn.Module, Tensor, Tensor]]:
    """The later half of the BatchNorm layers, each with two figures per channel, [c].

    The squared distance of the images' mean from the remembered one, less what chance adds to it, and the variance of
    the images' means. Nothing where the model or so few images cannot tell.
    """
    samples = np.unique(np.linspace(0, count - 1, at_most).astype(np.int64))
    layers = batchnorm_layers(model)
    layers = layers[len(layers) // 2 :]
    trained = all(layer.running_mean.any() for layer in layers)  # type: ignore[union-attr]
    if len(samples) < ENOUGH_IMAGES or not layers or not trained:
        return []
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
    return [(layer, *_distance_and_variance(layer, *found)) for layer, found in sums.items()]


def _distance_and_variance(layer: nn.Module, number: Tensor, means: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    mean = means / number
    variance = squares / number - mean.square()
    return (mean - layer.running_mean).square() - variance / (number - 1), variance  # type: ignore[operator]
