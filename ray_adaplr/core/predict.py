"""A network looks at images without learning from them: logits, features, and BatchNorm's statistics of the target."""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ray_adaplr.core import devices
from ray_adaplr.core.augment import to_float
from ray_adaplr.core.feed import Images, batches, even_slices
from ray_adaplr.core.models import OWN, Classifier
from ray_adaplr.errors import InputError

log = logging.getLogger(__name__)
View = Callable[[Tensor, np.ndarray], Tensor]  # (uint8 images on the device, sample numbers) -> float [b, c, h, w]
NAME_THE_HEAD = "name the final linear layer in Python with head=, or give the network without what wraps it"
_BYTES_PER_PASS = 80_000_000  # bytes; 512 images of 112 px, a tenth of what a ResNet-101 then takes
# On CPUs, 8 images of 144 px. With more, activations pass glibc's 32 MB and are mapped and faulted in anew each time:
# EfficientNet-Lite0 on 160 such images took 1.7 s and 3.6 s of faults at once, in eights 2.0 s and none.
_BYTES_ON_CPU = 2_000_000


def clean_view(images: Tensor, _samples: np.ndarray) -> Tensor:
    """The images as they are."""
    return to_float(images)


def predict_logits(
    model: Classifier,
    images: Images,
    samples: np.ndarray,
    device: torch.device | str = "cpu",
    batch_size: int | None = None,
    view: View = clean_view,
) -> np.ndarray:
    """Logits in evaluation mode, float32 [n, C]; of the clean images, or of what `view` makes of them.

    Fewer images are looked at together where the device's memory is too small for so many.
    """
    device, batch_size = torch.device(device), batch_size or images_per_pass(images, device)
    # Moved outside inference mode, or its weights could never be trained or BatchNorm's statistics renewed afterwards.
    model = model.to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    while True:
        try:
            with torch.inference_mode(), devices.autocast(device):
                kept = torch.empty(len(samples), model.spec.num_classes, device=device)
                slices = list(even_slices(len(samples), batch_size))
                feed = batches(images, (samples[rows] for rows in slices), device)
                for rows, seen in zip(slices, feed, strict=True):  # to the feed's end, or a stop could be lost there
                    kept[rows] = model(view(seen, samples[rows])).float()
                return kept.cpu().numpy()
        except torch.OutOfMemoryError:
            if batch_size == 1:
                raise
        batch_size //= 2
        log.warning("the GPU's memory is too small for its images: %d at a time are looked at now", batch_size)
        devices.empty_cache()


def images_per_pass(images: Images, device: torch.device | str | None) -> int:
    """How many images a network sees at once: at most 512, and `_BYTES_PER_PASS` or `_BYTES_ON_CPU` as float32 RGB.

    Without a device it is as many as an accelerator takes: where the result depends on how images are grouped.
    """
    shape = (images if isinstance(images, Tensor) else images(np.arange(1))).shape
    on_cpu = device is not None and torch.device(device).type == "cpu"
    return max(4, min(512, (_BYTES_ON_CPU if on_cpu else _BYTES_PER_PASS) // (12 * shape[1] * shape[2])))


def mirrored_view(images: Tensor, _samples: np.ndarray) -> Tensor:
    """The images, left for right."""
    return to_float(images).flip(3)


def predict_features(
    model: Classifier,
    images: Images,
    samples: np.ndarray,
    device: torch.device | str = "cpu",
    view: View = clean_view,
    batch_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """What goes into the head, float32 [n, d], and the logits, [n, C], both on the CPU."""
    caught, heard = list[Tensor](), list[Tensor]()

    def keep(_model: nn.Module, inputs: tuple[Tensor, ...], _logits: Tensor) -> None:
        if [len(each) for each in heard] != [len(inputs[0])]:
            raise InputError(f"{_head_of(model)} does not get a row of features for each image once; {NAME_THE_HEAD}")
        caught.append(heard.pop().flatten(1).float().cpu())

    forget = model.register_forward_pre_hook(lambda _model, _inputs: heard.clear())
    hear = model.head.register_forward_pre_hook(lambda _head, inputs: heard.append(inputs[0]))
    with forget, hear, model.register_forward_hook(keep):
        logits = predict_logits(model, images, samples, device, batch_size, view)
    return torch.cat(caught)[-len(samples) :], torch.from_numpy(logits)  # what a full device left undone comes first


def check_head(model: Classifier, images: np.ndarray) -> None:
    """InputError where another layer than the head gives the logits of a few images, uint8 [b, h, w, c].

    Where the logits are no layer's output, as with a temperature behind the head or a head that is only a matrix of
    weights, its width has to be theirs. A network that fails on these images is passed over: what it wants is said
    where it begins to look at them.
    """
    heard: list[tuple[nn.Module, Any]] = []
    layers = [layer for layer in model.network.modules() if isinstance(layer, nn.Linear) or layer is model.head]
    with ExitStack() as hooks, torch.inference_mode(), torch.random.fork_rng(devices=[]):
        for layer in layers:
            hooks.enter_context(layer.register_forward_hook(lambda layer, _, output: heard.append((layer, output))))
        try:
            logits = model.eval()(to_float(torch.from_numpy(images)))
        except Exception as error:  # a network is the user's own code
            if isinstance(error, InputError):
                raise
            return
    giving = [layer for layer, output in heard if isinstance(output, Tensor) and torch.equal(output, logits)]
    if giving and model.head not in giving:
        name = next(name for name, layer in model.network.named_modules() if layer is giving[-1])
        raise InputError(f"{_head_of(model)} does not give its logits, '{name}' does: in Python, say head='{name}'")
    if logits.shape[-1] != model.spec.num_classes:
        widths = f"{model.spec.num_classes} outputs for {logits.shape[-1]} logits"
        raise InputError(f"{_head_of(model)} has {widths}; {NAME_THE_HEAD}")


def _head_of(model: Classifier) -> str:
    return f"the layer '{model.head_name}', which was taken for the head of {model.spec.name.removeprefix(OWN)},"


def batchnorm_layers(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """The layers of a network that keep running statistics."""
    layers = (module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm))
    return [layer for layer in layers if layer.track_running_stats and layer.running_mean is not None]


def is_frozen(layer: nn.Module) -> bool:
    """Whether a layer has weights and none of them trains: BatchNorm's statistics then stay as they are, too."""
    weights = list(layer.parameters())
    return bool(weights) and not any(each.requires_grad for each in weights)


@torch.no_grad()
def reestimate_batchnorm(
    model: Classifier, images: Images, samples: np.ndarray, device: torch.device | str = "cpu"
) -> bool:
    """Replace BatchNorm's running statistics by the target's, in place; False when no layer has any that may change.

    The statistics depend on how the images are grouped, so here a device that is too small ends the run.
    """
    layers = [layer for layer in batchnorm_layers(model) if not is_frozen(layer)]
    if not layers:
        return False
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # cumulative average over the whole pass
    device = torch.device(device)
    model.to(device).eval()  # dropout stays off: it would draw from the global generator
    for layer in layers:
        layer.train()
    slices = even_slices(len(samples), images_per_pass(images, None))
    for seen in batches(images, (samples[rows] for rows in slices), device):
        model(to_float(seen))
    for layer, momentum in zip(layers, momenta):
        layer.momentum = momentum
    model.eval()
    return True
