"""A network as a folder that transformers loads alone: weights, config.json with the class names, the image processor.

That works for an architecture that came in from a Hugging Face folder, and for timm's, which transformers wraps.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, nn

from ray_adaplr.core.models import Classifier, ModelSpec
from ray_adaplr.errors import InputError


def check_transformers(model: Classifier) -> None:
    """InputError for a network that transformers cannot build, or cannot feed as its description says."""
    from transformers import PreTrainedModel

    spec = model.spec
    if not (spec.name.startswith("timm/") or isinstance(model.network, PreTrainedModel)):
        raise InputError(
            f"transformers does not know the network {spec.name}; --to hf takes timm/NAME and models that came in from "
            "a Hugging Face folder, others go with --to onnx or --to torch-export"
        )
    if spec.per_image:
        raise InputError(
            f"{spec.name} wants each image at mean 0 and deviation 1, which no image processor of transformers does; "
            "use --to onnx or --to torch-export"
        )


def write_transformers(
    network: nn.Module, spec: ModelSpec, _example: Tensor, folder: Path
) -> Callable[[np.ndarray, Tensor], Tensor]:
    """The folder, as `AutoModelForImageClassification` and `AutoImageProcessor` read it; run through both."""
    import transformers

    names = dict(enumerate(spec.class_names))
    labels: dict[str, Any] = {"id2label": names, "label2id": {name: number for number, name in names.items()}}
    transformers.utils.logging.disable_progress_bar()
    before = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    try:
        known = isinstance(network, transformers.PreTrainedModel)
        model: Any = network if known else _wrapped(network, spec, labels)
        if known:
            for name, value in labels.items():
                setattr(model.config, name, value)
            _processor(spec).save_pretrained(folder)
        model.save_pretrained(folder)
        loaded = transformers.AutoModelForImageClassification.from_pretrained(folder, local_files_only=True).eval()
        processor = transformers.AutoImageProcessor.from_pretrained(folder, local_files_only=True)
    finally:
        transformers.utils.logging.set_verbosity(before)
        transformers.utils.logging.enable_progress_bar()
    if loaded.config.id2label != names:
        raise ValueError("the class names came back changed")

    def run(raw: np.ndarray, _prepared: Tensor) -> Tensor:
        pictures = [Image.fromarray(image.squeeze(-1) if spec.channels == 1 else image) for image in raw]
        return loaded(processor(pictures, return_tensors="pt")["pixel_values"]).logits

    return run


def _wrapped(network: nn.Module, spec: ModelSpec, labels: dict[str, Any]) -> Any:
    """A timm network within transformers; its config says how it is fed, too."""
    from transformers import TimmWrapperConfig, TimmWrapperForImageClassification

    assert spec.image_size is not None
    mean, std, _ = spec.normalization
    fed = {
        "input_size": [spec.channels, *spec.image_size],
        "mean": list(mean),
        "std": list(std),
        "crop_pct": 1.0,
        "crop_mode": "center" if spec.aspect == "crop" else "squash",  # as `prepare` does
        "interpolation": "bilinear",
    }
    arguments = {"in_chans": spec.channels} if spec.channels != 3 else None
    config = TimmWrapperConfig(
        architecture=spec.name.removeprefix("timm/"), model_args=arguments, pretrained_cfg=fed, **labels
    )
    model = TimmWrapperForImageClassification(config)
    model.timm_model.load_state_dict(network.state_dict())
    return model.eval()


def _processor(spec: ModelSpec) -> Any:
    from transformers import BitImageProcessor, ViTImageProcessor

    assert spec.image_size is not None
    height, width = spec.image_size
    mean, std, _ = spec.normalization
    square, fed = {"height": height, "width": width}, {"image_mean": list(mean), "image_std": list(std), "resample": 2}
    if spec.aspect == "crop":
        return BitImageProcessor(size={"shortest_edge": height}, crop_size=square, do_convert_rgb=False, **fed)
    return ViTImageProcessor(size=square, **fed)
