"""Pictures of every mode, depth and orientation come out as one would see them."""

import io

import numpy as np
import pytest
from image_trees import picture
from PIL import Image

from ray_adaplr.data.pictures import UNDECODABLE, decode


def encoded(image, **options):
    file = io.BytesIO()
    image.save(file, **options)
    return file.getvalue()


def test_a_grey_picture_gives_three_equal_channels():
    result = decode(encoded(picture(0, mode="L"), format="PNG"), 16, 3)
    assert result.shape == (16, 16, 3)
    assert (result[..., 0] == result[..., 2]).all()


def test_a_palette_picture_has_the_colours_of_its_palette():
    image = Image.new("RGB", (8, 8), (200, 30, 90)).quantize(4)
    assert image.mode == "P"
    assert decode(encoded(image, format="PNG"), 8, 3)[3, 3].tolist() == [200, 30, 90]
    transparent = encoded(image, format="PNG", transparency=0)
    assert decode(transparent, 8, 3)[3, 3].tolist() == [255, 255, 255]


@pytest.mark.parametrize(("mode", "colour"), [("RGBA", (10, 20, 30, 0)), ("LA", (10, 0))])
def test_what_is_transparent_becomes_white(mode, colour):
    result = decode(encoded(Image.new(mode, (8, 8), colour), format="PNG"), 8, 3)
    assert (result == 255).all()


def test_a_cmyk_jpeg_has_the_colours_of_its_rgb_original():
    original = picture(3, (32, 32))
    wanted = np.asarray(original).astype(int)
    result = decode(encoded(original.convert("CMYK"), format="JPEG", quality=95), 32, 3)
    assert np.abs(result.astype(int) - wanted).mean() < 6


def test_sixteen_bits_are_scaled_and_not_clipped():
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    for options in ({"format": "PNG"}, {"format": "TIFF"}):
        result = decode(encoded(Image.fromarray(ramp), **options), 16, 1)[..., 0]
        assert result[0, 0] == 0
        assert result[-1, -1] == 255
        assert np.abs(result.astype(int) - ramp // 257).max() <= 1


def test_float_pictures_are_read_in_either_range():
    half = np.full((8, 8), 0.5, np.float32)
    assert decode(encoded(Image.fromarray(half), format="TIFF"), 8, 1)[0, 0, 0] == 128
    assert decode(encoded(Image.fromarray(half * 200), format="TIFF"), 8, 1)[0, 0, 0] == 100


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_wide_pixels_are_of_eight_bits_or_sixteen_by_their_values(kind):
    eight = np.arange(256).reshape(16, 16)
    for values in (eight, eight * 257):
        image = Image.fromarray(values.astype(kind))
        assert image.mode in ("I", "F")
        np.testing.assert_array_equal(decode(encoded(image, format="TIFF"), 16, 1)[..., 0], eight)


@pytest.mark.parametrize("value", [70000, 1e9, np.nan])
def test_pixels_beyond_sixteen_bits_are_refused_with_the_reason(value):
    image = Image.fromarray(np.full((8, 8), value, np.float32))
    with pytest.raises(ValueError, match=r"its pixels go up to .*; convert it to 8 or 16 bits"):
        decode(encoded(image, format="TIFF"), 8, 1)


def test_a_dark_picture_of_sixteen_bits_stays_dark():
    dark = Image.fromarray(np.full((8, 8), 200, np.uint16))
    assert decode(encoded(dark, format="PNG"), 8, 1).max() == 1


def test_exif_orientation_is_applied():
    image = Image.fromarray(
        np.repeat(np.array([[0] * 16, [255] * 16], np.uint8), 8, axis=0)
    )  # dark above, bright below
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to see it upright
    result = decode(encoded(image, format="JPEG", exif=exif, quality=95), 16, 1)[..., 0]
    assert result[:, :6].mean() > 240
    assert result[:, -6:].mean() < 15


def test_resize_keeps_the_edges_and_crop_keeps_the_proportions():
    wide = Image.fromarray(np.repeat(np.array([[0] * 8 + [255] * 16 + [0] * 8], np.uint8), 16, axis=0))
    assert decode(encoded(wide, format="PNG"), 16, 1, "resize")[8, 0, 0] == 0
    assert decode(encoded(wide, format="PNG"), 16, 1, "crop").min() == 255


def test_large_jpegs_come_out_like_the_full_decoding():
    big = picture(5, (1600, 1200))
    wanted = np.asarray(big.resize((32, 32), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(decode(encoded(big, format="JPEG"), 32, 3).astype(int) - wanted).mean() < 3


@pytest.mark.parametrize(
    "content", [b"", b"hello", encoded(picture(0), format="JPEG")[:-200]], ids=["empty", "text", "cut"]
)
def test_what_is_no_whole_picture_is_refused(content):
    with pytest.raises(UNDECODABLE):
        decode(content, 8, 3)
