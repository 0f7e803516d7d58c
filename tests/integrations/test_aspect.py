"""A model of middle squares is fed middle squares wherever it goes."""

import io

import numpy as np
import pytest
from PIL import Image

from ray_adaplr.core.models import ModelSpec
from ray_adaplr.data.pictures import decode
from ray_adaplr.integrations.serving import read_image
from ray_adaplr.integrations.transformers_folder import _processor


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("aspect", ["resize", "crop"])
def test_transformers_and_serve_make_the_squares_that_prepare_makes(channels: int, aspect: str) -> None:
    fed = {"channels": channels, "aspect": aspect, "image_size": (32, 32), "mean": (0.5,), "std": (0.5,)}
    spec = ModelSpec(num_classes=2, **fed)
    pixels = np.random.default_rng(0).integers(0, 256, (32, 48, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels).convert("RGB" if channels == 3 else "L")
    expected = decode(np.asarray(picture), 32, channels, spec.aspect)

    file = io.BytesIO()
    picture.save(file, "PNG")
    np.testing.assert_array_equal(read_image(file.getvalue(), spec, 10**6), expected)

    processed = _processor(spec)([picture], return_tensors="pt")["pixel_values"][0].numpy()
    within = 1.01 / 255 / 0.5  # a grey level: resizing rounds at another place
    np.testing.assert_allclose(processed, (expected.transpose(2, 0, 1) / 255 - 0.5) / 0.5, atol=within)
