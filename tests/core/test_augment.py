"""The augmentation agrees with torchvision operation by operation, and treats every sample by its own uniforms only."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torchvision.transforms.v2.functional as tv
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms import InterpolationMode

from ray_adaplr.config import Config
from ray_adaplr.core.augment import NUM_UNIFORMS, AugmentSettings, apply_plan, plan, to_float
from ray_adaplr.engine.training import augmentation

OFF = AugmentSettings()
USUAL = augmentation(Config(), Config().crop)
WARP = {"crop": (0.08, 1), "degrees": 30, "translate": 0.2, "scale": (0.7, 1.4), "shear": 20}
STRONG = AugmentSettings(
    **WARP, blur_probability=0.5, brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2, invert_probability=0.3
)
# The uniforms' places, as the layout is fixed.
PLACE_X, PLACE_Y, ANGLE, SHIFT_X, SHIFT_Y, SHEAR, BLURRED, INVERTED = 2, 3, 4, 5, 6, 8, 9, 15
BRIGHTNESS, CONTRAST, SATURATION, HUE = 11, 12, 13, 14
SHAPES = [(16, 16, 1), (32, 32, 3), (20, 33, 3), (41, 18, 1)]


def augment(images: Tensor, uniforms: Tensor, settings: AugmentSettings) -> Tensor:
    """Plan and augment at once."""
    _, height, width, channels = images.shape
    return apply_plan(images, plan(uniforms, settings, (height, width, channels)), settings)


def random_images(b: int, shape: tuple[int, int, int] = (24, 24, 3), seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (b, *shape), dtype=torch.uint8, generator=generator)


def smooth_images(b: int, shape: tuple[int, int, int]) -> Tensor:
    """Low-frequency float images: resampling errors stay in proportion to the error of the place."""
    height, width, channels = shape
    coarse = torch.rand(b, channels, 4, 4, generator=torch.Generator().manual_seed(1))
    fine = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic", align_corners=True)
    return fine.clamp(0, 1).permute(0, 2, 3, 1).contiguous()


def random_uniforms(b: int, seed: int = 0) -> Tensor:
    return torch.rand(b, NUM_UNIFORMS, generator=torch.Generator().manual_seed(seed))


def middle_uniforms(b: int = 1, **chosen: float) -> Tensor:
    """All at one half, the middle of every range, but for those chosen by the name of their place."""
    uniforms = torch.full((b, NUM_UNIFORMS), 0.5)
    for name, value in chosen.items():
        uniforms[:, globals()[name]] = value
    return uniforms


@pytest.mark.parametrize("shape", SHAPES)
def test_no_operation_gives_the_clean_image_to_the_bit(shape: tuple[int, int, int]) -> None:
    images = random_images(3, shape)
    clean = to_float(images)
    assert torch.equal(augment(images, random_uniforms(3), OFF), clean)
    assert torch.equal(clean, images.permute(0, 3, 1, 2).float() / 255)
    assert clean.is_contiguous(memory_format=torch.channels_last)


@given(
    shape=st.sampled_from(SHAPES),
    seed=st.integers(0, 1000),
    extreme=st.sampled_from([None, 0.0, 1 - 2**-24]),
    chosen=st.sampled_from([USUAL, STRONG, replace(STRONG, blur_probability=0), replace(OFF, hue=0.5)]),
)
@settings(max_examples=40)
def test_result_is_finite_float32_in_0_1_and_channels_last(
    shape: tuple[int, int, int], seed: int, extreme: float | None, chosen: AugmentSettings
) -> None:
    uniforms = random_uniforms(4, seed) if extreme is None else torch.full((4, NUM_UNIFORMS), extreme)
    result = augment(random_images(4, shape, seed), uniforms, chosen)
    height, width, channels = shape
    assert result.shape == (4, channels, height, width)
    assert result.dtype == torch.float32
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert result.isfinite().all()
    assert result.min() >= 0
    assert result.max() <= 1


def test_images_as_bytes_and_as_floats_come_out_the_same() -> None:
    images = random_images(4)
    uniforms = random_uniforms(4)
    as_floats = augment(images / 255, uniforms, STRONG)
    torch.testing.assert_close(augment(images, uniforms, STRONG), as_floats, atol=1e-6, rtol=0)


def test_inputs_are_left_as_they_were() -> None:
    for images in (random_images(2), random_images(2) / 255):
        uniforms = random_uniforms(2)
        before = images.clone(), uniforms.clone()
        for chosen in (OFF, STRONG):
            augment(images, uniforms, chosen)
        assert torch.equal(images, before[0])
        assert torch.equal(uniforms, before[1])


def test_same_uniforms_give_the_same_bits_and_no_global_random_state_is_touched() -> None:
    images, uniforms = random_images(8), random_uniforms(8)
    state = torch.get_rng_state()
    first = augment(images, uniforms, STRONG)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert torch.equal(augment(images, uniforms, STRONG), first)


@given(shape=st.sampled_from(SHAPES), seed=st.integers(0, 1000), b=st.integers(2, 37), data=st.data())
@settings(max_examples=25)
def test_a_sample_comes_out_the_same_in_whatever_batch(
    shape: tuple[int, int, int], seed: int, b: int, data: st.DataObject
) -> None:
    images, uniforms = random_images(b, shape, seed), random_uniforms(b, seed)
    chosen = torch.tensor(data.draw(st.lists(st.integers(0, b - 1), min_size=1, max_size=b)))
    whole = augment(images, uniforms, STRONG)[chosen]
    # The same bits on the CPUs tried; a vectorised sine or product elsewhere may round by its place in the batch.
    torch.testing.assert_close(augment(images[chosen], uniforms[chosen], STRONG), whole, atol=1e-5, rtol=0)


def test_batches_planned_together_come_out_as_planned_one_by_one() -> None:
    images, uniforms = random_images(32), random_uniforms(32)
    rows = plan(uniforms, STRONG, (24, 24, 3))
    for part in (slice(0, 8), slice(8, 32)):
        at_once = augment(images[part], uniforms[part], STRONG)
        torch.testing.assert_close(apply_plan(images[part], rows[part], STRONG), at_once, atol=1e-5, rtol=0)


def test_a_palette_puts_two_colours_for_black_and_white_and_leaves_the_shape() -> None:
    drawn = torch.zeros(2, 8, 8, 3, dtype=torch.uint8)
    drawn[:, :4] = 255
    uniforms = random_uniforms(2)
    uniforms[:, 16] = torch.tensor([0.2, 0.8])  # the first sample's coin falls below one half
    result = augment(drawn, uniforms, replace(OFF, palette_probability=0.5))
    white, black = result[0, :, 0, 0], result[0, :, 7, 7]
    torch.testing.assert_close(black, uniforms[0, 17:20])
    torch.testing.assert_close(white, uniforms[0, 20:23])
    assert torch.equal(result[1], to_float(drawn)[1])


def test_each_sample_gets_its_own_transform() -> None:
    images = random_images(1).expand(16, -1, -1, -1)
    result = augment(images, random_uniforms(16), USUAL).flatten(1)
    distances = torch.cdist(result, result) + torch.eye(16) * 1e9
    assert distances.min() > 0.5


def test_nothing_is_read_back_to_the_host() -> None:
    images = torch.empty(4, 20, 33, 3, dtype=torch.uint8, device="meta")  # has no values, so reading one raises
    result = augment(images, torch.empty(4, NUM_UNIFORMS, device="meta"), STRONG)
    assert result.shape == (4, 3, 20, 33)


def test_autocast_does_not_change_the_result() -> None:
    images, uniforms = random_images(4), random_uniforms(4)
    outside = augment(images, uniforms, STRONG)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(augment(images, uniforms, STRONG), outside)


@given(shape=st.sampled_from(SHAPES), data=st.data())
@settings(max_examples=30)
def test_crop_is_torchvisions_resized_crop(shape: tuple[int, int, int], data: st.DataObject) -> None:
    height, width, _ = shape
    h, w = data.draw(st.integers(height // 3, height)), data.draw(st.integers(width // 3, width - 1))
    top, left = data.draw(st.integers(0, height - h)), data.draw(st.integers(0, width - w))
    area, aspect = h * w / (height * width), w / h
    uniforms = middle_uniforms(PLACE_X=left / (width - w), PLACE_Y=top / max(1, height - h))
    images = smooth_images(1, shape)
    result = augment(images, uniforms, replace(OFF, crop=(area, area), aspect=(aspect, aspect)))
    expected = tv.resized_crop(to_float(images), top, left, h, w, [height, width], antialias=False)
    # torchvision cuts first, so its outermost half pixel of the crop repeats; here it blends with the real neighbour.
    y, x = math.ceil(0.5 * height / h), math.ceil(0.5 * width / w)
    inner = (..., slice(y, -y), slice(x, -x))
    torch.testing.assert_close(result[inner], expected[inner], atol=1e-4, rtol=0)


@given(area=st.floats(0.08, 0.999), u=st.floats(0, 0.999), place=st.floats(0, 0.999), shape=st.sampled_from(SHAPES))
@settings(max_examples=50)
def test_crop_stays_inside_the_image_and_keeps_area_and_aspect_where_they_fit(
    area: float, u: float, place: float, shape: tuple[int, int, int]
) -> None:
    height, width, _ = shape
    uniforms = middle_uniforms(PLACE_X=place, PLACE_Y=1 - place)
    uniforms[:, 1] = u
    chosen = replace(OFF, crop=(area, area))
    size_x, _, x0, _, size_y, y0 = plan(uniforms, chosen, shape)[0, :6].tolist()
    assert abs(x0) + size_x <= 1 + 1e-5
    assert abs(y0) + size_y <= 1 + 1e-5
    aspect = math.exp(math.log(3 / 4) + u * math.log(16 / 9))
    assert size_x == pytest.approx(min(1, math.sqrt(area * aspect * height / width)), abs=1e-5)
    assert size_y == pytest.approx(min(1, math.sqrt(area / aspect * width / height)), abs=1e-5)


@given(shape=st.sampled_from(SHAPES), u=st.tuples(*[st.floats(0, 0.999)] * 4), scale=st.floats(0.7, 1.5))
@settings(max_examples=30)
def test_warp_is_torchvisions_affine(
    shape: tuple[int, int, int], u: tuple[float, float, float, float], scale: float
) -> None:
    height, width, _ = shape
    chosen = replace(OFF, degrees=40, translate=0.2, shear=25, scale=(scale, scale))
    images = smooth_images(1, shape)
    result = augment(images, middle_uniforms(ANGLE=u[0], SHIFT_X=u[1], SHIFT_Y=u[2], SHEAR=u[3]), chosen)

    def expected(clean: Tensor) -> Tensor:
        # A list of float translations is used as given; torchvision's random classes round them to pixels.
        shift = [0.2 * (2 * u[1] - 1) * width, 0.2 * (2 * u[2] - 1) * height]
        angle, shear = 40 * (2 * u[0] - 1), [25 * (2 * u[3] - 1), 0.0]
        return tv.affine(clean, angle, shift, scale, shear, interpolation=InterpolationMode.BILINEAR)

    # torchvision fills with zeros from outside; only what comes from inside is comparable.
    inside = (expected(torch.ones(1, 1, height, width)) > 0.9999).expand_as(result)
    assert inside.any()
    torch.testing.assert_close(result[inside], expected(to_float(images))[inside], atol=2e-4, rtol=0)


def test_warp_works_on_the_crop() -> None:
    images = smooth_images(1, (32, 32, 1))
    uniforms = middle_uniforms(PLACE_X=0.5, PLACE_Y=0.5, ANGLE=0.9)
    both = augment(images, uniforms, replace(OFF, crop=(0.25, 0.25), aspect=(1, 1), degrees=20))
    cropped = augment(images, uniforms, replace(OFF, crop=(0.25, 0.25), aspect=(1, 1)))
    in_turn = augment(cropped.permute(0, 2, 3, 1), uniforms, replace(OFF, degrees=20))
    # Two resamplings smooth twice, and the second pads at the crop's border: the middle, and roughly.
    middle = (..., slice(8, 24), slice(8, 24))
    torch.testing.assert_close(both[middle], in_turn[middle], atol=0.01, rtol=0)


def test_a_mirror_strikes_at_its_probability_and_leaves_the_others_alone() -> None:
    images, uniforms = smooth_images(40, (12, 10, 3)), random_uniforms(40)
    result = augment(images, uniforms, replace(OFF, flip_probability=0.5))
    struck = uniforms[:, -1] < 0.5
    assert 5 < struck.sum() < 35
    clean = to_float(images)
    torch.testing.assert_close(result[struck], clean[struck].flip(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(result[~struck], clean[~struck], atol=1e-5, rtol=0)


def test_a_mirror_is_of_the_whole_warped_crop() -> None:
    images, uniforms = smooth_images(4, (16, 16, 3)), random_uniforms(4)
    warped, mirrored = (augment(images, uniforms, replace(USUAL, flip_probability=p)) for p in (0.0, 1.0))
    torch.testing.assert_close(mirrored, warped.flip(3), atol=1e-4, rtol=0)


def test_what_lies_outside_the_image_repeats_its_border() -> None:
    images = random_images(1, (10, 10, 1))
    shifted = augment(images, middle_uniforms(SHIFT_X=1.0), replace(OFF, translate=0.3))
    clean = to_float(images)
    torch.testing.assert_close(shifted[..., 3:], clean[..., :7], atol=1e-5, rtol=0)
    torch.testing.assert_close(shifted[..., :3], clean[..., :1].expand(-1, -1, -1, 3), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("shape", "taps"), [((16, 16, 1), 3), ((32, 32, 3), 5), ((64, 40, 3), 5), ((64, 64, 1), 7)])
@pytest.mark.parametrize("sigma", [0.1, 0.7, 2.0])
def test_blur_is_torchvisions_gaussian_blur(shape: tuple[int, int, int], taps: int, sigma: float) -> None:
    images = random_images(3, shape)
    result = augment(images, random_uniforms(3), replace(OFF, blur_probability=1, blur_sigma=(sigma, sigma)))
    expected = tv.gaussian_blur(to_float(images), [taps, taps], [sigma, sigma])
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=0)


def test_blur_spares_samples_at_its_probability_to_the_bit() -> None:
    images = random_images(3)
    uniforms = middle_uniforms(3)
    uniforms[:, BLURRED] = torch.tensor([0.29, 0.31, 0.0])
    result, clean = augment(images, uniforms, replace(OFF, blur_probability=0.3)), to_float(images)
    assert torch.equal(result[1], clean[1])
    assert (result[0] - clean[0]).abs().max() > 0.1
    assert (result[2] - clean[2]).abs().max() > 0.1


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("u", [0.0, 0.25, 0.9])
@pytest.mark.parametrize(
    ("name", "function"),
    [("brightness", tv.adjust_brightness), ("contrast", tv.adjust_contrast), ("saturation", tv.adjust_saturation)],
)
def test_colour_factors_are_torchvisions(name: str, function: Callable, u: float, channels: int) -> None:
    images = random_images(2, (12, 17, channels))
    result = augment(images, middle_uniforms(2, **{name.upper(): u}), replace(OFF, **{name: 0.8}))
    # torchvision's luma weights add up to 0.9999, these to 1.
    torch.testing.assert_close(result, function(to_float(images), 1 + 0.8 * (2 * u - 1)), atol=2e-4, rtol=0)


@given(u=st.floats(0, 0.999))
@settings(max_examples=20)
def test_hue_turns_i_and_q_and_keeps_the_luma(u: float) -> None:
    # Pale colours, so that no result is clamped.
    images = 0.5 + 0.1 * (smooth_images(1, (8, 8, 3)) - 0.5)
    result = augment(images, middle_uniforms(HUE=u), replace(OFF, hue=0.5)).double()
    to_yiq = torch.tensor([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]]).double()
    yiq = torch.einsum("ij,bjhw->bihw", to_yiq, to_float(images).double())
    turn = torch.tensor(-math.pi * (2 * u - 1), dtype=torch.float64)
    expected = torch.stack(
        (yiq[:, 0], yiq[:, 1] * turn.cos() - yiq[:, 2] * turn.sin(), yiq[:, 1] * turn.sin() + yiq[:, 2] * turn.cos()), 1
    )
    torch.testing.assert_close(torch.einsum("ij,bjhw->bihw", to_yiq, result), expected, atol=1e-5, rtol=0)


def test_hue_turns_the_way_of_torchvisions() -> None:
    images = torch.tensor([[0.6, 0.4, 0.4], [0.4, 0.6, 0.4], [0.4, 0.4, 0.6], [0.5, 0.5, 0.5]])[:, None, None, :]
    images = images.expand(-1, 4, 4, -1)
    result = augment(images, middle_uniforms(4, HUE=1.0), replace(OFF, hue=0.1)) - to_float(images)
    expected = tv.adjust_hue(to_float(images), 0.1) - to_float(images)
    similarity = torch.nn.functional.cosine_similarity(result.flatten(1), expected.flatten(1))
    assert (similarity[:3] > 0.3).all()  # HSV keeps the largest channel, this the luma; the way round is the same
    torch.testing.assert_close(result[3], torch.zeros(3, 4, 4), atol=1e-6, rtol=0)  # grey has no hue


@pytest.mark.parametrize("channels", [1, 3])
def test_inversion_strikes_at_its_probability_after_the_other_colour_operations(channels: int) -> None:
    images = random_images(2, (12, 12, channels))
    uniforms = middle_uniforms(2, BRIGHTNESS=0.8, CONTRAST=0.2)
    uniforms[:, INVERTED] = torch.tensor([0.1, 0.6])
    jitter = replace(OFF, brightness=0.2, contrast=0.4)
    plain, result = (augment(images, uniforms, replace(jitter, invert_probability=p)) for p in (0.0, 0.5))
    torch.testing.assert_close(result[0], 1 - plain[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(result[1], plain[1], atol=1e-6, rtol=0)
