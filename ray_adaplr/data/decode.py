"""One image file in, one uint8 array of the store's size out, whatever its mode, depth or orientation."""

import errno
import importlib.util
import io
import os
import stat
import struct
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from ray_adaplr.errors import first_line

Aspect = Literal["resize", "crop"]
Picture = str | Path | bytes | np.ndarray  # a file, an encoded image, or pixels [h, w] or [h, w, c]

# What Pillow raises for damaged or foreign files; SyntaxError comes from its PNG reader, the bomb from > 179 Mpixel.
UNDECODABLE = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    TypeError,
    LookupError,
    ArithmeticError,
    MemoryError,
    struct.error,
    NotImplementedError,
    Image.DecompressionBombError,
)
# Pillow goes by content, and for PostScript, whatever its name, it would start another program.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "AVIF", "HEIF", "JPEG2000")
SUFFIXES = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".jp2")
PERHAPS = (".avif", ".heic", ".heif")  # where Pillow was built with AVIF, or pillow-heif is installed
FOREIGN = (".jxl", ".svg", ".psd", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2")


def decode(picture: Picture, size: int, channels: int, aspect: Aspect = "resize") -> np.ndarray:
    """Decodes and scales one picture to uint8 [size, size, channels].

    Args:
        picture: what to decode.
        size: side of the square result.
        channels: 1 (grey) or 3 (RGB).
        aspect: `resize` squeezes all of the picture into the square; `crop` fits the shorter side, keeps the centre.

    Raises:
        UNDECODABLE: the picture is damaged or no picture; the message is the reason.
    """
    image = open_picture(picture)
    # JPEG can decode at 1/2, 1/4, 1/8 size; twice the wanted size loses nothing visible and saves most of the time.
    image.draft(None, (2 * size, 2 * size))
    ImageOps.exif_transpose(image, in_place=True)
    image = _eight_bit(image)
    mode = "L" if channels == 1 else "RGB"
    image = image if image.mode == mode else image.convert(mode)
    if aspect == "crop":
        image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
    elif image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(size, size, channels)


@lru_cache(maxsize=1)
def readable_suffixes() -> tuple[str, ...]:
    """Suffixes of the image files that this Pillow reads."""
    if importlib.util.find_spec("pillow_heif"):
        import pillow_heif

        pillow_heif.register_heif_opener()
    formats = Image.registered_extensions()
    return SUFFIXES + tuple(suffix for suffix in PERHAPS if formats.get(suffix) in Image.OPEN)


def why_undecodable(error: BaseException) -> str:
    """Why a picture was rejected, in words that do not depend on the machine."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return first_line(error)


def open_picture(picture: Picture) -> Image.Image:
    """Opens a picture without decoding its pixels."""
    if isinstance(picture, np.ndarray):
        return Image.fromarray(picture.squeeze(-1) if picture.shape[2:] == (1,) else picture)
    if isinstance(picture, bytes):
        return Image.open(io.BytesIO(picture), formats=_formats())
    if not stat.S_ISREG(os.stat(picture).st_mode):  # a pipe would be waited for without end
        raise OSError(errno.EINVAL, "not a regular file")
    return Image.open(picture, formats=_formats())


@lru_cache(maxsize=1)
def _formats() -> tuple[str, ...]:
    readable_suffixes()  # registers HEIF, where there is a reader
    return tuple(name for name in FORMATS if name in Image.OPEN)


def is_grey(image: Image.Image) -> bool:
    """Whether a picture has no colour, by its mode alone."""
    return image.mode in ("1", "L", "LA", "F") or image.mode.startswith("I")


def _eight_bit(image: Image.Image) -> Image.Image:
    """The same picture in an 8-bit mode without transparency; transparent pixels become white, as on paper."""
    if image.mode.startswith("I"):  # 16-bit grey; Pillow alone would clip every value above 255
        values = np.asarray(image).astype(np.int64)
        return Image.fromarray(((values.clip(0, 65535) + 128) // 257).astype(np.uint8))
    if image.mode == "F":
        values = np.asarray(image)
        scale = 255 if values.max(initial=0) <= 1 else 1
        return Image.fromarray((values * scale).clip(0, 255).round().astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB") if image.mode == "P" else image
