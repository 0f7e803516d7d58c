"""Our augmentation against kornia's on a batch and torchvision's on single images: the same operations and ranges.

All begin with uint8 pixels and end with float images ready for the network, on one thread, with a draw of its own for
every image. Ours draws for the whole epoch at once, as members do, and that is part of its time.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import v2

from benchmarks.measure import Measurement, ratios, seconds_in_turn
from ray_adaplr.core import draws
from ray_adaplr.core.augment import NUM_UNIFORMS, AugmentSettings, apply_plan, plan

IMAGES, BATCH, SIDE = 512, 32, 32
OURS = AugmentSettings(
    crop=(0.5, 1.0),
    degrees=10.0,
    translate=0.05,
    scale=(0.9, 1.1),
    shear=5.0,
    blur_probability=0.5,
    brightness=0.3,
    contrast=0.3,
    saturation=0.3,
    hue=0.05,
)


def against_rivals() -> list[Measurement]:
    rivals: dict[str, tuple[Callable[[np.ndarray], object] | None, float]] = {
        "kornia's": (kornia_epoch(), 2.0),
        "torchvision's on PIL images": (torchvision_epoch, 5.0),
    }
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, SIDE, SIDE, 3), dtype=np.uint8)
    rows = []
    for rival, (their_epoch, goal) in rivals.items():
        name = f"our augmentation ÷ {rival}, images/s ({SIDE} px, batches of {BATCH})"
        if their_epoch is None:
            note = "skipped: kornia is not installed (pip install 'ray-adaplr[bench]')"
            rows.append(Measurement(name, None, None, goal, True, note=note))
            continue
        ours, theirs = seconds_in_turn(partial(our_epoch, pixels), partial(their_epoch, pixels))
        rows.append(Measurement.of(name, ratios(theirs, ours), goal, higher_is_better=True))
    return rows


def our_epoch(pixels: np.ndarray) -> None:
    uniforms = torch.from_numpy(draws.uniforms(draws.key(0, "augment"), np.arange(IMAGES), NUM_UNIFORMS))
    rows = plan(uniforms, OURS, (SIDE, SIDE, 3))
    for start in range(0, IMAGES, BATCH):
        apply_plan(torch.from_numpy(pixels[start : start + BATCH]), rows[start : start + BATCH], OURS)


def kornia_epoch() -> Callable[[np.ndarray], None] | None:
    try:
        import kornia.augmentation as K
    except ImportError:
        return None
    operations = torch.nn.Sequential(
        K.RandomResizedCrop((SIDE, SIDE), scale=OURS.crop, ratio=OURS.aspect),
        K.RandomAffine(OURS.degrees, (OURS.translate,) * 2, OURS.scale, OURS.shear, padding_mode="border", p=1.0),
        K.RandomGaussianBlur((3, 3), OURS.blur_sigma, p=OURS.blur_probability),
        K.ColorJitter(OURS.brightness, OURS.contrast, OURS.saturation, OURS.hue, p=1.0),
    )

    def epoch(pixels: np.ndarray) -> None:
        for start in range(0, IMAGES, BATCH):
            operations(torch.from_numpy(pixels[start : start + BATCH]).permute(0, 3, 1, 2).float().div_(255))

    return epoch


def torchvision_operations(settings: AugmentSettings, side: int) -> v2.Compose:
    """A PIL image to a float tensor [c, h, w] in [0, 1]."""
    return v2.Compose(
        [
            v2.RandomResizedCrop(side, scale=settings.crop, ratio=settings.aspect),
            v2.RandomAffine(settings.degrees, (settings.translate,) * 2, settings.scale, settings.shear),
            v2.RandomApply([v2.GaussianBlur(3, settings.blur_sigma)], settings.blur_probability),
            v2.ColorJitter(settings.brightness, settings.contrast, settings.saturation, settings.hue),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )


def torchvision_epoch(pixels: np.ndarray) -> None:
    operations = torchvision_operations(OURS, SIDE)
    for start in range(0, IMAGES, BATCH):
        torch.stack([operations(Image.fromarray(image)) for image in pixels[start : start + BATCH]])
