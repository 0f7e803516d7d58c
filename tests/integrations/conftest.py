"""Tiny models of other people's packages, with random weights, saved as their own tools save them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"  # before the packages are imported: no test waits for a network

CLASSES = ("ant", "bee", "cat")
SIZE = 16


@pytest.fixture(scope="session")
def pictures() -> np.ndarray:
    """Sixty images in three kinds of stripes and noise, uint8 [n, h, w, 3]; image i is of kind i % 3."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 90, (60, SIZE, SIZE, 3))
    rows, columns = np.indices((SIZE, SIZE))
    for i, image in enumerate(images):
        pattern = (rows % 4 < 2, columns % 4 < 2, (rows + columns) % 8 < 4)[i % 3]
        image += 120 * pattern[..., None]
    return images.astype(np.uint8)


def tiny(kind: str, **labels: Any) -> Any:
    """A transformers image classifier of a few thousand weights."""
    import transformers

    labels = labels or {"id2label": dict(enumerate(CLASSES)), "label2id": {name: i for i, name in enumerate(CLASSES)}}
    if kind == "vit":
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        config: Any = transformers.ViTConfig(**sizes, image_size=SIZE, patch_size=4, **labels)
    elif kind == "resnet":
        config = transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", **labels
        )
    else:
        config = transformers.ConvNextConfig(num_stages=2, hidden_sizes=[8, 16], depths=[1, 1], **labels)
    torch.manual_seed(0)
    return transformers.AutoModelForImageClassification.from_config(config).eval()


@pytest.fixture
def hugging_face_folder(tmp_path: Path) -> Callable[..., Path]:
    """Saves a tiny model with its processor, and returns the folder."""

    def make(kind: str = "vit", processor: dict[str, Any] | None = None, **labels: Any) -> Path:
        import transformers

        folder = tmp_path / kind
        tiny(kind, **labels).save_pretrained(folder)
        fed = {"size": {"height": SIZE, "width": SIZE}, "image_mean": [0.4] * 3, "image_std": [0.3] * 3}
        transformers.ViTImageProcessor(**fed, **(processor or {})).save_pretrained(folder)
        return folder

    return make
