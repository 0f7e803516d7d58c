"""The images of one domain before they are decoded, `Pictures`, and `decode`: one picture in, one uint8 array out.

Whatever its mode, depth or orientation, a picture comes out in the store's size.
"""

import errno
import hashlib
import importlib.util
import io
import os
import re
import stat
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.errors import InputError, first_line

Aspect = Literal["resize", "crop"]
LeftOut = tuple[str, str]  # name of a file that is not read, and why
Picture = str | Path | bytes | np.ndarray  # a file, an encoded image, or pixels [h, w] or [h, w, c]

# What Pillow raises for damaged or foreign files; SyntaxError comes from its PNG reader, the bomb from > 179 Mpixel.
UNDECODABLE = (
    *(OSError, ValueError, SyntaxError, EOFError, TypeError, LookupError, ArithmeticError, MemoryError),
    *(struct.error, NotImplementedError, Image.DecompressionBombError),
)
# Pillow goes by content, and for PostScript, whatever its name, it would start another program.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "AVIF", "HEIF", "JPEG2000")
SUFFIXES = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".jp2")
PERHAPS = (".avif", ".heic", ".heif")  # where Pillow was built with AVIF, or pillow-heif is installed
FOREIGN = (".jxl", ".svg", ".psd", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2")


def decode(picture: Picture, size: int, channels: int, aspect: Aspect = "resize") -> np.ndarray:
    """Decodes and scales one picture to uint8 [size, size, channels], grey (1) or RGB (3).

    `resize` squeezes all of the picture into the square; `crop` fits the shorter side and keeps the centre. One of
    UNDECODABLE, with the reason as its message, when the picture is damaged or no picture.
    """
    image = open_picture(picture)
    if (frames := frames_of(image)) > 1:
        raise ValueError(f"it holds {frames} pictures; save the one that is meant")
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


def pixels_of(picture: Picture | Image.Image) -> np.ndarray:
    """All pixels of a picture, upright and without transparency: uint8 [h, w] where it is grey, else [h, w, 3]."""
    image = picture if isinstance(picture, Image.Image) else open_picture(picture)
    mode = "L" if is_grey(image) else "RGB"
    return np.asarray(_eight_bit(ImageOps.exif_transpose(image)).convert(mode))


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
    return error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)


def open_picture(picture: Picture) -> Image.Image:
    """Opens a picture without decoding its pixels."""
    if isinstance(picture, np.ndarray):
        return Image.fromarray(picture.squeeze(-1) if picture.shape[2:] == (1,) else picture)
    if isinstance(picture, bytes):
        return Image.open(io.BytesIO(picture), formats=_formats())
    if not stat.S_ISREG(os.stat(picture).st_mode):  # a pipe would be waited for without end
        raise OSError(errno.EINVAL, "not a regular file")
    return Image.open(picture, formats=_formats())


def frames_of(image: Image.Image) -> int:
    """How many pictures a file holds; of those in a telephone's JPEG, such as a depth map, the first alone counts."""
    return 1 if image.format in ("JPEG", "MPO") else getattr(image, "n_frames", 1)


@lru_cache(maxsize=1)
def _formats() -> tuple[str, ...]:
    readable_suffixes()  # registers HEIF, where there is a reader
    return tuple(name for name in FORMATS if name in Image.OPEN)


def is_grey(image: Image.Image) -> bool:
    """Whether a picture has no colour, by its mode alone."""
    return image.mode in ("1", "L", "LA", "F") or image.mode.startswith("I")


def _eight_bit(image: Image.Image) -> Image.Image:
    """The same picture in an 8-bit mode without transparency; transparent pixels become white, as on paper."""
    if image.mode == "F" or image.mode.startswith("I"):  # Pillow alone would clip every value above 255
        return Image.fromarray(_grey_levels(np.asarray(image), sixteen_bits=image.mode.startswith("I;")))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB") if image.mode == "P" else image


def _grey_levels(values: np.ndarray, sixteen_bits: bool) -> np.ndarray:
    """Numbers [h, w] as uint8: floats up to 1 times 255, numbers up to 255 as they are, and up to 65535 by 257.

    Where the picture's mode tells that it has 16 bits, it stays dark if its numbers are small. ValueError beyond.
    """
    highest = values.max(initial=0)
    if not highest <= 65535:  # NaN is not either
        raise ValueError(f"its pixels go up to {highest:g}; convert it to 8 or 16 bits")
    if values.dtype.kind == "f" and highest <= 1:
        values = values * 255
    elif sixteen_bits or highest >= 255.5:
        values = values / 257
    return values.clip(0, 255).round().astype(np.uint8)


@dataclass(frozen=True)
class Pictures:
    """Where the images of a domain are, in a fixed order."""

    ids: list[str]  # unique name of each image: its relative path, or its row number
    images: Sequence[Picture] | np.ndarray  # files, encoded bytes, or pixels
    labels: np.ndarray | None  # true classes, int64 [n], where they are known
    classes: list[str]  # their names, [] when unknown
    domain: str
    split: str | None = None  # name of the published split, where there is one
    left_out: tuple[LeftOut, ...] = ()  # files that were found and are not among the images

    def __len__(self) -> int:
        return len(self.ids)

    def subset(self, rows: np.ndarray) -> "Pictures":
        """The images at `rows` only, in that order."""
        if isinstance(self.images, np.ndarray):
            images: Sequence[Picture] | np.ndarray = self.images[rows]
        elif isinstance(self.images, list):
            images = [self.images[row] for row in rows]
        else:
            images = Rows(self.images, rows)
        labels = None if self.labels is None else self.labels[rows]
        return replace(self, ids=[self.ids[row] for row in rows], images=images, labels=labels)

    def digest(self) -> str:
        """Checksum of names, labels and contents (of files: their sizes), by which a restart knows its own work."""
        digest = hashlib.sha256("\n".join(self.ids).encode())
        digest.update(b"" if self.labels is None else np.ascontiguousarray(self.labels).tobytes())
        if isinstance(self.images, np.ndarray):
            digest.update(np.ascontiguousarray(self.images).data)
        elif isinstance(self.images, list):
            digest.update(np.array([_size_and_time(file)[0] for file in self.images]).tobytes())
        return digest.hexdigest()

    def changed(self) -> str:
        """Checksum of when the images' files were changed: one that was edited may have its earlier size."""
        images = self.images.images if isinstance(self.images, Rows) else self.images
        files = images if isinstance(images, list) else getattr(images, "files", [])
        times = np.array([_size_and_time(file)[1] for file in files], np.int64)
        return hashlib.sha256(times.tobytes()).hexdigest() if files else ""

    def source(self) -> str:
        """Checksum of where images with these names are: a folder, or a table, its column, and the files it names."""
        table = self.images.images if isinstance(self.images, Rows) else self.images
        digest = hashlib.sha256(repr(getattr(table, "known", "")).encode())
        first = list(self._paths(range(min(8, len(self)))))  # a table holds images, or paths, and rarely both
        every = self._paths(range(len(self))) if first and not isinstance(table, list) else first[:1]
        for path in every:
            digest.update(repr((os.path.abspath(path), _size_and_time(path))).encode())
        return digest.hexdigest()

    def _paths(self, rows: Sequence[int]) -> Iterator[str]:
        """The images at some rows that are files."""
        for row in rows:
            with suppress(ValueError):  # an empty cell
                if isinstance(image := self.images[row], str):
                    yield image

    def _looks(self, rows: Sequence[int]) -> Iterator[Image.Image]:
        """The pictures at some rows, without their pixels, as far as they can be opened."""
        for row in rows:
            with suppress(*UNDECODABLE):
                yield open_picture(self.images[row])

    def shape(self, options: PrepareOptions) -> tuple[int, int, int]:
        """The shape of the decoded images: as asked for, else as 64 of them have it, and grey where all are.

        InputError for several sizes.
        """
        spread = np.unique(np.linspace(0, len(self) - 1, 64).astype(int)).tolist()
        looks = [(image.size, is_grey(image)) for image in self._looks(spread)]
        sizes = {size for size, _ in looks}
        grey = bool(looks) and all(grey for _, grey in looks)
        if grey and options.channels is None and not isinstance(self.images, np.ndarray):
            # A few with colours among many grey ones must keep them. The headers of 10,000 JPEGs take 1 s, decoding
            # them 3 s (96 px) to 21 s (500 px); where the 64 have colours, as most do, there is nothing to look for.
            grey = all(map(is_grey, self._looks(range(len(self)))))
        channels = options.channels or (1 if grey else 3)
        if size := options.side([max(both) for both in sizes]):
            return size, size, channels
        if not sizes:
            raise InputError(f"no image of {self.domain} can be opened; check that these are images, and see --size")
        sides = sorted({side for both in sizes for side in both})
        if len(sides) > 1:
            raise InputError(
                f"the images of {self.domain} have sides from {sides[0]} to {sides[-1]} pixels and a store has squares"
                " of one size; choose one with --size, best that of the model's training images"
            )
        return sides[0], sides[0], channels


def _size_and_time(file: Picture) -> tuple[int, int]:
    if isinstance(file, bytes | np.ndarray):  # a Dataset's in memory
        return zlib.crc32(file if isinstance(file, bytes) else file.tobytes()), 0
    try:
        about = os.stat(file)
    except (OSError, ValueError):  # rejected with its reason when it is decoded
        return -1, -1
    return about.st_size, about.st_mtime_ns


class Rows(Sequence[Picture]):
    """A selection of pictures that stays unread until asked for."""

    def __init__(self, images: Sequence[Picture], rows: np.ndarray):
        self.images: Sequence[Picture] = images.images if isinstance(images, Rows) else images
        self.rows: np.ndarray = images.rows[rows] if isinstance(images, Rows) else rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self.images[self.rows[index]]


def row_ids(count: int) -> list[str]:
    """Row numbers as ids, all of one width so that they sort."""
    width = len(str(count - 1))
    return [f"{row:0{width}d}" for row in range(count)]


def domain_and_split(name: str) -> tuple[str, str | None]:
    """Reads `clipart_train` as the domain clipart and its split train."""
    match = re.fullmatch(r"(.+?)[_-](train|test|val|validation|list)", name)
    if not match:
        return name, None
    return match[1], None if match[2] == "list" else match[2]


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """One sentence for whatever goes wrong while a foreign file is read: there is no end to the ways."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{path} cannot be read as {kind} ({first_line(error)}); make or fetch it again") from error
