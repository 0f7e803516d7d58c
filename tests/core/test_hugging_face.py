"""What an image processor of transformers does to images is what a description of it does."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ray_adaplr.core.hugging_face import of_processor
from ray_adaplr.core.models import ModelSpec, build
from ray_adaplr.errors import InputError
from ray_adaplr.integrations.sources import open_model

transformers = pytest.importorskip("transformers")
KINDS = [name for name in dir(transformers) if name.startswith(("ViTImageProcessor", "EfficientNetImageProcessor"))]
FED = {
    "size": {"height": 8, "width": 8},
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.47853944, 0.4732864, 0.47434163],  # google/efficientnet-b0's
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "more", [{}, {"include_top": False}, {"do_normalize": False}, {"do_rescale": False}, {"rescale_factor": 1 / 127.5}]
)
def test_a_processors_description_feeds_what_the_processor_feeds(
    kind: str, more: dict[str, Any], tmp_path: Path
) -> None:
    processor = getattr(transformers, kind)(**FED, **more)
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), np.uint8)
    expected = torch.as_tensor(np.stack(processor(list(images))["pixel_values"])).float()
    processor.save_pretrained(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    for fields, name in ((json.loads(file.read_text()), str(file)), (vars(processor), kind)):
        model = build(ModelSpec(num_classes=3, width=1, **of_processor(fields, name)))
        fed = model.prepare(torch.from_numpy(images).permute(0, 3, 1, 2) / 255)
        torch.testing.assert_close(fed, expected, atol=1e-3, rtol=1e-4)


def test_a_processor_that_shifts_what_it_has_rescaled_is_refused_where_that_is_done(tmp_path: Path) -> None:
    fields = {"image_processor_type": "EfficientNetImageProcessor", "rescale_offset": True, **FED}
    with pytest.raises(ValueError, match=r"takes 1 off after rescaling \(rescale_offset\)"):
        of_processor(fields, "preprocessor_config.json")
    plain = of_processor({**fields, "rescale_offset": False, "do_rescale": False}, "preprocessor_config.json")
    assert of_processor({**fields, "do_rescale": False}, "preprocessor_config.json") == plain
    network = {"image_size": 8, "width_coefficient": 0.1, "depth_coefficient": 0.1, "hidden_dim": 128}
    config = transformers.EfficientNetConfig(**network)
    transformers.EfficientNetForImageClassification(config).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(fields))
    with pytest.raises(InputError, match=r"its mean and std are other ones; say them with --normalize"):
        open_model(tmp_path)
