"""How far images lie from those that a network was trained on, by what its BatchNorm layers remember of those.

No labels and no source images: each layer keeps the mean and the variance of every channel. Networks without such
layers (most transformers) cannot tell, and what tells nothing here is taken for a shift.
"""

from collections.abc import Callable
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
    found = distances(model, count, lambda samples: predict_logits(model, images, samples, device))
    return found and found[0]


def distances(
    model: Classifier, count: int, look: Callable[[np.ndarray], object], at_most: int = AT_MOST
) -> tuple[float, float] | None:
    """The distance of `shift_of`, and the same in units of the variance among the images; None as there.

    To `look` shows the network the images with some sample numbers, at most so many.
    """
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
    medians = list[list[float]]()
    for called, (number, means, squares) in sums.items():
        mean = means / number
        variance = squares / number - mean.square()
        distance = (mean - called.running_mean).square() - variance / (number - 1)  # type: ignore[operator]
        units = called.running_var + called.eps, variance.clamp_min(1e-12)  # type: ignore[operator]
        medians.append([(distance / unit).median().item() for unit in units])
    if not medians:
        return None
    remembered, among_them = np.mean(medians, 0)
    return float(remembered), float(among_them)
