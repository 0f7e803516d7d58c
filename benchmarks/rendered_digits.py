"""Digits rendered from fonts: a stand-in for Synthetic Digits (Ganin et al., 2016), which cannot be had everywhere.

    python -m benchmarks rendered_digits --fonts /usr/share/fonts --data DIR --out WITH_RENDERED

Like the original, an image shows a number of one to three digits, the middle of it being the digit to be read, in a
random font, place, turn, stroke and background colour, and blur. WITH_RENDERED gets `synth_train.npz`, `synth_test.npz`
and links to the other domains in DIR, so that `ray-adaplr paper digit5 --data WITH_RENDERED` has all five. Figures with
it are not comparable with the paper's.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from fontTools.ttLib import TTFont, TTLibError
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from benchmarks import command_line
from ray_adaplr.data.options import DIGITS
from ray_adaplr.errors import InputError

SIDE = 32  # pixels
DRAWN = 3  # times as large, so that edges are smooth
LEAST_CONTRAST = 60  # grey levels between stroke and background


def find_fonts(folder: Path) -> list[Path]:
    """The TrueType and OpenType fonts below a folder that have all ten digits."""
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".ttf", ".otf"))
    fonts = [path for path in found if _has_digits(path)]
    if not fonts:
        raise InputError(
            f"no TrueType or OpenType font with digits below {folder}; install some, or name another folder"
        )
    return fonts


def _has_digits(path: Path) -> bool:
    try:
        with TTFont(path, lazy=True) as font:
            return set(map(ord, DIGITS)) <= (font.getBestCmap() or {}).keys()
    except (TTLibError, AssertionError):
        return False


def render(fonts: Sequence[Path], count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images, uint8 [count, 32, 32, 3], and the digits that they show, int64 [count]; all classes equally often."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % len(DIGITS))
    images = np.stack([_picture(int(digit), fonts[int(rng.integers(len(fonts)))], rng) for digit in labels])
    return images, labels.astype(np.int64)


def _picture(digit: int, path: Path, rng: np.random.Generator) -> np.ndarray:
    """One digit, some with neighbours to the left and right, uint8 [32, 32, 3]."""
    side, size = SIDE * DRAWN, int(rng.integers(18, 28)) * DRAWN
    font = ImageFont.truetype(str(path), size)
    background, stroke = _colours(rng)
    mask = Image.new("L", (2 * side, 2 * side))
    draw, middle = ImageDraw.Draw(mask), mask.width // 2
    left, top, right, bottom = draw.textbbox((0, 0), str(digit), font=font)
    x, y = middle - (left + right) / 2, middle - (top + bottom) / 2
    neighbours = rng.integers(10, size=2)
    for there, place in zip(rng.random(2) < 0.4, (-1, 1)):
        if there:
            draw.text((x + place * (right - left + 2 * DRAWN), y), str(neighbours[(place + 1) // 2]), 255, font)
    draw.text((x, y), str(digit), 255, font)
    mask = mask.rotate(rng.uniform(-20, 20), Image.Resampling.BILINEAR)
    corner = middle - side // 2 + rng.integers(-3, 4, size=2) * DRAWN
    mask = mask.crop((*corner, *(corner + side)))
    picture = Image.composite(Image.new("RGB", mask.size, stroke), Image.new("RGB", mask.size, background), mask)
    picture = picture.filter(ImageFilter.GaussianBlur(rng.uniform(0, 1.2) * DRAWN))
    pixels = np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BOX), np.float32)
    return (pixels + rng.normal(0, 6, pixels.shape)).clip(0, 255).astype(np.uint8)


def _colours(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Colours of background and stroke that can be told apart."""
    while True:
        background, stroke = rng.integers(256, size=(2, 3))
        if abs(background.mean() - stroke.mean()) >= LEAST_CONTRAST:
            return tuple(background.tolist()), tuple(stroke.tolist())


def main(arguments: list[str] | None = None) -> None:
    parser = command_line("rendered_digits", __doc__)
    parser.add_argument("--fonts", type=Path, required=True, help="folder of fonts, e.g. /usr/share/fonts")
    parser.add_argument("--data", type=Path, required=True, help="folder of mnist_train.npz, svhn_train.npz, ...")
    parser.add_argument("--out", type=Path, required=True, help="a new folder for the rendered digits and the links")
    parser.add_argument("--train", type=int, default=25000, help="images to train on")
    parser.add_argument("--test", type=int, default=9000, help="images to test on")
    options = parser.parse_args(arguments)
    fonts = find_fonts(options.fonts)
    options.out.mkdir(parents=True)
    for file in sorted(options.data.glob("*_t*.npz")):
        (options.out / file.name).symlink_to(file.resolve())
    for seed, split in enumerate(("train", "test")):
        images, labels = render(fonts, getattr(options, split), seed)
        np.savez_compressed(options.out / f"synth_{split}.npz", images=images, labels=labels)
    print(f"{options.train} + {options.test} digits of {len(fonts)} fonts in {options.out}")
