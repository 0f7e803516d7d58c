"""Batched per-sample augmentation: crop and affine in one resampling, blur, and colour distortion in one colour matrix.

Every random choice is read from a tensor of uniforms, so what happens to a sample depends on its own row alone. All
shapes are static and no value is read back to the host, so a GPU never waits. An epoch's loop calls `plan` for many
batches and `apply_plan` for each, since the forty small operations that turn uniforms into matrices cost half as much
as the pixels (32 RGB images of 32 px on one thread: 0.5 against 1.2 ms).
Left out: antialiasing (a crop enlarges), torchvision's HSV hue and its shuffled order of the colour operations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

_UNIFORMS_OF = (9, 2, 5, 7, 1)  # sampling, blur, colour, palette, mirror
NUM_UNIFORMS = sum(_UNIFORMS_OF)
"""Uniforms a sample consumes, in the order of `AugmentSettings.ranges`; fixed, whichever operations are on."""

LUMA = (0.299, 0.587, 0.114)
_UNBLURRED_SIGMA = 1e-3  # the neighbours' weights underflow to zero: the kernel is the identity to the bit


@dataclass(frozen=True)
class AugmentSettings:
    """How strongly to augment; by default not at all: a zero (for `crop` and `scale`: `(1, 1)`) switches it off.

    Crop with affine, all colour operations, and blur are a pass over the pixels each; an idle pass costs nothing.
    """

    crop: tuple[float, float] = (1.0, 1.0)  # range of the crop's share of the area, drawn uniformly; paper: (0.08, 1)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)  # range of the crop's width / height in pixels, drawn log-uniformly
    degrees: float = 0.0  # of rotation, either way
    translate: float = 0.0  # share of the width and of the height
    scale: tuple[float, float] = (1.0, 1.0)  # range of the zoom factor
    shear: float = 0.0  # horizontal, degrees either way
    blur_probability: float = 0.0
    blur_sigma: tuple[float, float] = (0.1, 1.0)  # of the Gaussian, in pixels of the result
    brightness: float = 0.0  # factor within 1 ± this
    contrast: float = 0.0  # factor within 1 ± this, about the mean luma
    saturation: float = 0.0  # factor within 1 ± this, about each pixel's luma; RGB only
    hue: float = 0.0  # rotation of the chroma plane up to this share of the circle, either way; RGB only
    invert_probability: float = 0.0  # of the negative
    palette_probability: float = 0.0  # that black and white become two random colours
    flip_probability: float = 0.0  # of the mirror image, left for right

    @property
    def resamples(self) -> bool:
        """Whether the crop, the mirror or any part of the affine transform is on."""
        moves = self.degrees or self.translate or self.shear or self.flip_probability
        return self.crop != (1, 1) or bool(moves) or self.scale != (1, 1)

    @property
    def recolours(self) -> bool:
        """Whether any colour operation is on."""
        return bool(self.brightness or self.contrast or self.saturation or self.hue or self.invert_probability)

    def ranges(self) -> list[tuple[float, float]]:
        """What the ends 0 and 1 of each uniform stand for; the order is the layout of the uniforms."""
        angle, shear, hue = math.radians(self.degrees), math.radians(self.shear), 2 * math.pi * self.hue
        return [
            self.crop,
            (math.log(self.aspect[0]), math.log(self.aspect[1])),
            *[(-1.0, 1.0)] * 2,  # the crop's place: from the left edge to the right, from the top to the bottom
            (-angle, angle),
            *[(-2 * self.translate, 2 * self.translate)] * 2,  # along width and height, which span -1..1
            self.scale,
            (-shear, shear),
            (0.0, 1.0),  # blurred where below blur_probability
            self.blur_sigma,
            (1 - self.brightness, 1 + self.brightness),
            (1 - self.contrast, 1 + self.contrast),
            (1 - self.saturation, 1 + self.saturation),
            (-hue, hue),
            (0.0, 1.0),  # inverted where below invert_probability
            (0.0, 1.0),  # in a palette of its own where below palette_probability
            *[(0.0, 1.0)] * 6,  # that palette: what black becomes, and what white becomes
            (0.0, 1.0),  # mirrored where below flip_probability
        ]


def to_float(images: Tensor) -> Tensor:
    """The clean path: images [b, h, w, c], uint8 or float in [0, 1] → float32 [b, c, h, w] in [0, 1], channels_last."""
    return (images.float().div_(255) if images.dtype == torch.uint8 else images.float()).permute(0, 3, 1, 2)


def plan(uniforms: Tensor, settings: AugmentSettings, image_shape: tuple[int, int, int]) -> Tensor:
    """The coefficients that `apply_plan` needs, float32 [n, columns]; best made for many batches at a time.

    From uniforms in [0, 1), float32 [n, NUM_UNIFORMS], for images of shape (h, w, c). The rows may be sliced and
    indexed, the columns are for `apply_plan` alone, with the same settings.
    """
    height, width, channels = image_shape
    low, span = _scaling(settings, uniforms.device)
    drawn = torch.addcmul(low, uniforms.float(), span)  # each uniform in its own range
    parts = (part.unbind(1) for part in drawn.split(_UNIFORMS_OF, 1))
    for_sampling, for_blur, for_colour, for_palette, (mirror,) = parts
    blurred, sigma = for_blur
    sigma = torch.where(blurred < settings.blur_probability, sigma, _UNBLURRED_SIGMA)
    sampling = _sampling_matrix(for_sampling, height, width, settings.crop != (1, 1))
    if settings.flip_probability:  # the result's x runs the other way
        across = torch.where(mirror < settings.flip_probability, -1.0, 1.0)
        sampling[:, 0] *= across
        sampling[:, 3] *= across
    colour = _colour_transform(for_colour, channels, settings.invert_probability)
    palette = _palette(for_palette, channels, settings.palette_probability)
    return torch.cat((sampling, *colour, *palette, _blur_weights(sigma, _blur_radius(height, width))), 1)


def apply_plan(images: Tensor, plan_rows: Tensor, settings: AugmentSettings) -> Tensor:
    """Augment images [b, h, w, c], uint8 or float in [0, 1], by their rows of `plan`, [b, ...].

    Gives float32 [b, c, h, w] in [0, 1], channels_last. What a warp brings in from outside the image repeats the
    nearest border pixel: it continues the background of photographs, of dark digits and of white sketches alike, where
    zeros would draw black wedges; a stroke that touches the border, as in USPS, runs on by the pixel or two of the
    shift instead of being cut. Nothing outside the *crop* is padded: the warp looks at the real neighbourhood.

    Small images are cheapest some 128 at a time, to be cut into batches afterwards: 32 grey ones of 16 px cost 0.5 ms
    alone and 0.2 ms among 128.
    """
    device = images.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):  # the matrix products must stay float32
            return apply_plan(images, plan_rows, settings)
    x = to_float(images)
    _, channels, height, width = x.shape
    widths = [6, channels * channels, channels, 1, channels, channels, _blur_radius(height, width) + 1]
    sampling, colour, pull, lift, black, contrast, weights = plan_rows.split(widths, 1)
    # Blur and colour are linear, so colour may go first if the clamp comes last (contrast takes its mean before the
    # blur): the colour matrix is fast in the layout [b, c, h, w] that sampling leaves, and blur ends in channels_last.
    if settings.resamples:
        x = _resample(x, sampling.unflatten(1, (2, 3)))
    if settings.recolours:
        x = _recolour(x, colour.unflatten(1, (channels, channels)), pull[:, None], lift[:, None])
    if settings.palette_probability:
        x = torch.addcmul(black[:, :, None, None], contrast[:, :, None, None], x)
    if settings.blur_probability:
        x = _blur(x, weights)
    if settings.resamples or settings.recolours or settings.palette_probability or settings.blur_probability:
        x = x.contiguous(memory_format=torch.channels_last).clamp_(0, 1)
    return x


@lru_cache(maxsize=32)
def _scaling(settings: AugmentSettings, device: torch.device) -> tuple[Tensor, Tensor]:
    """Low ends and spans of the uniforms' ranges, [NUM_UNIFORMS] each."""
    low, high = torch.tensor(settings.ranges(), dtype=torch.float64).T
    return low.float().to(device), (high - low).float().to(device)


def _sampling_matrix(drawn: tuple[Tensor, ...], height: int, width: int, crops: bool) -> Tensor:
    """Where each pixel of the result looks in the image, [n, 2 * 3], in coordinates that span -1..1.

    The result is the warped crop, so a place goes back through the warp (torchvision's inverse affine matrix,
    rotating in pixels although the image need not be square) and then into the crop.
    """
    area, log_aspect, place_x, place_y, angle, shift_x, shift_y, scale, shear = drawn
    size_x = size_y = torch.ones_like(area)
    if crops:  # torchvision's RandomResizedCrop, which draws again what does not fit; clamping needs no loop
        root, stretch = area.sqrt(), (0.5 * log_aspect).exp() * math.sqrt(height / width)
        size_x, size_y = (root * stretch).clamp(max=1), (root / stretch).clamp(max=1)
    cos, sin, slope = angle.cos() / scale, angle.sin() / scale, shear.tan()
    xx, xy = size_x * (cos - slope * sin), size_x * (slope * cos + sin) * (height / width)
    yx, yy = size_y * sin * (-width / height), size_y * cos
    x0 = (1 - size_x) * place_x - xx * shift_x - xy * shift_y
    y0 = (1 - size_y) * place_y - yx * shift_x - yy * shift_y
    return torch.stack((xx, xy, x0, yx, yy, y0), 1)


@lru_cache(maxsize=32)
def _pixel_centres(size: int, device: torch.device) -> Tensor:
    """Centres of a row's pixels when the row spans -1..1, [size]."""
    return (torch.arange(size, device=device) * 2 + 1) / size - 1


def _resample(x: Tensor, matrix: Tensor) -> Tensor:
    """Bilinear sampling at `matrix` [b, 2, 3] times the pixel centres."""
    height, width = x.shape[2:]
    along_x = matrix[:, :, 0:1] * _pixel_centres(width, x.device)  # [b, 2, w]
    along_y = torch.addcmul(matrix[:, :, 2:], matrix[:, :, 1:2], _pixel_centres(height, x.device))  # [b, 2, h]
    # All x in one plane, all y in another: grid_sample reads that a fifth faster, and affine_grid costs twice as much
    # as the sampling itself (0.57 against 0.24 ms for 32 images of 32 px on one thread).
    grid = along_x[:, :, None, :] + along_y[:, :, :, None]  # [b, 2, h, w]
    return F.grid_sample(x, grid.permute(0, 2, 3, 1), padding_mode="border", align_corners=False)


@lru_cache(maxsize=32)
def _colour_basis(channels: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Luma weights [c], and the matrices of luma, chroma, and a quarter turn of chroma in YIQ, [3, c * c]."""
    if channels == 1:
        return torch.ones(1, device=device), torch.tensor([[1.0], [0.0], [0.0]], device=device)
    luma = torch.tensor(LUMA, dtype=torch.float64)
    to_yiq = torch.tensor([LUMA, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312)], dtype=torch.float64)
    turn = torch.tensor([[0, 0, 0], [0, 0, 1], [0, -1, 0]], dtype=torch.float64)
    basis = torch.stack((luma.expand(3, 3), torch.eye(3) - luma, to_yiq.inverse() @ turn @ to_yiq))
    return luma.float().to(device), basis.flatten(1).float().to(device)


def _colour_transform(drawn: tuple[Tensor, ...], channels: int, invert_probability: float) -> tuple[Tensor, ...]:
    """Brightness, contrast, saturation, hue, inversion, in this order, as `matrix @ x + pull @ mean(x) + lift`.

    matrix is [n, c * c], pull [n, c], lift [n, 1].
    """
    brightness, contrast, saturation, hue, invert = drawn
    luma, basis = _colour_basis(channels, brightness.device)
    inverted = (invert < invert_probability).float()
    brightness = brightness * (1 - 2 * inverted)
    gain = brightness * contrast
    chroma = gain * saturation
    matrix = (torch.stack((gain, chroma * hue.cos(), chroma * hue.sin()), 1)[:, :, None] * basis).sum(1)
    # Contrast moves towards the mean luma, a grey, which saturation and hue leave alone.
    return matrix, (brightness - gain)[:, None] * luma, inverted[:, None]


def _palette(drawn: tuple[Tensor, ...], channels: int, probability: float) -> tuple[Tensor, Tensor]:
    """What black becomes, [n, c], and how far from it white lies, [n, c]; 0 and 1 for a sample that keeps its own."""
    chance, *colours = drawn
    own = (chance < probability).float()[:, None]
    black, white = torch.stack(colours[:3], 1)[:, :channels], torch.stack(colours[3:], 1)[:, :channels]
    return own * black, 1 - own + own * (white - black)


def _recolour(x: Tensor, matrix: Tensor, pull: Tensor, lift: Tensor) -> Tensor:
    """`matrix @ x + pull @ mean(x) + lift` of every pixel; [b, c, c], [b, 1, c], [b, 1, 1]."""
    flat = x.flatten(2)  # [b, c, h * w]
    offset = torch.baddbmm(lift, pull, flat.mean(2, keepdim=True))
    return torch.baddbmm(offset, matrix, flat).view(x.shape)


def _blur_radius(height: int, width: int) -> int:
    """Taps on either side of the blur's centre: a kernel of a tenth of the image, as in SimCLR, at least 3 taps."""
    return max(1, round(0.05 * min(height, width)))


def _blur_weights(sigma: Tensor, radius: int) -> Tensor:
    """Gaussian weights of the taps at distance 0..radius, [n, radius + 1]; each but the first occurs twice."""
    weights = torch.exp(-0.5 * (torch.arange(radius + 1, device=sigma.device) / sigma[:, None]) ** 2)
    return weights / (2 * weights.sum(1, keepdim=True) - 1)


@lru_cache(maxsize=32)
def _reflected_shifts(size: int, radius: int, device: torch.device) -> Tensor:
    """For each distance 0..radius the matrix that adds up the two neighbours there, [radius + 1, size * size]."""
    shifts, at = torch.zeros(radius + 1, size, size), torch.arange(size)
    for tap in range(-radius, radius + 1):
        source = size - 1 - (size - 1 - (at + tap).abs()).abs()  # reflected at both ends
        shifts[abs(tap), at, source] += 1
    return shifts.flatten(1).to(device)


def _blur(x: Tensor, weights: Tensor) -> Tensor:
    """Blur along both axes, borders reflected, each sample by its own weights [b, radius + 1].

    A banded matrix for each axis: a batched product costs the same for any number of taps, at 32 px a third of a
    grouped convolution with three. Columns are mixed in the layout [b, c, h, w], rows in [b, h, w, c].
    """
    b, c, height, width = x.shape
    radius = weights.shape[1] - 1
    across = (weights @ _reflected_shifts(width, radius, x.device)).view(b, width, width)
    down = across  # built once for a square image
    if height != width:
        down = (weights @ _reflected_shifts(height, radius, x.device)).view(b, height, height)
    x = torch.bmm(x.reshape(b, c * height, width), across.transpose(1, 2)).view(b, c, height, width)
    x = torch.bmm(down, x.permute(0, 2, 3, 1).reshape(b, height, width * c))
    return x.view(b, height, width, c).permute(0, 3, 1, 2)
