"""Hugging Face's image classifiers: networks with random weights by their config.json, and what they are fed.

transformers is imported when such a network is built. Code that a config names, such as `auto_map` or a hub's kernels,
is never run: those fields are dropped.
"""

from collections.abc import Sequence
from typing import Any

from torch import nn

from ray_adaplr.errors import InputError, first_line, nearest, need

HF = "hf/"  # begins the name of such a network; the rest is the config's model_type
TRANSFORMERS = ("a Hugging Face model", "hf", "transformers")  # what needs the package, its extra, and its name
# What names code to fetch, and what this package says itself: classes, and float32.
_DROPPED = ("auto_map", "quantization_config", "id2label", "label2id", "num_labels", "dtype", "torch_dtype")


def plain_config(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a config.json that describe the network, those of nested configs too."""
    return {
        name: plain_config(value) if isinstance(value, dict) else value
        for name, value in fields.items()
        if name not in _DROPPED and "attn_implementation" not in name
    }


def hugging_face_config(fields: dict[str, Any], num_classes: int, classes: Sequence[str] = ()) -> Any:
    """The config object of an image classifier; InputError for fields that make none."""
    transformers = need(*TRANSFORMERS)
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES as known

    name = str(fields.get("model_type"))
    if name not in known:
        raise InputError(f"Hugging Face has no image classifier '{name}'{nearest(name, known)}")
    names = dict(enumerate(classes)) or {number: f"LABEL_{number}" for number in range(num_classes)}
    labels = {"id2label": names, "label2id": {label: number for number, label in names.items()}}
    try:
        return transformers.CONFIG_MAPPING[name].from_dict({**plain_config(fields), **labels})
    except Exception as error:  # fields may hold anything
        raise InputError(f"the config of '{name}' makes no network ({first_line(error)}); is it whole?") from error


def hugging_face_network(config: Any) -> nn.Module:
    """A freshly initialised image classifier."""
    try:
        return need(*TRANSFORMERS).AutoModelForImageClassification.from_config(config, trust_remote_code=False)
    except Exception as error:
        raise InputError(f"the config of '{config.model_type}' makes no network ({first_line(error)})") from error


def of_processor(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """Fields of `ModelSpec` by an image processor, or its `preprocessor_config.json`; `name` is its class or that file.

    A processor normalises what it has rescaled from 0..255, as a rule to [0, 1]; a description is of images in [0, 1].
    """
    if fields.get("do_flip_channel_order"):
        raise ValueError(f"{name} swaps red and blue, which no description says; wrap the network so that it does that")
    rescaled = fields.get("do_rescale") is not False
    range_of = 255 * (fields.get("rescale_factor") or 1 / 255) if rescaled else 255.0
    range_of = 1.0 if abs(range_of - 1) < 1e-6 else range_of
    of_efficientnet = str(fields.get("image_processor_type") or name).startswith("EfficientNetImageProcessor")
    if of_efficientnet and rescaled and fields.get("rescale_offset"):
        raise ValueError(f"{name} takes 1 off after rescaling (rescale_offset), so its mean and std are other ones")
    divides_again = of_efficientnet and fields.get("include_top") is not False  # by std; its default is to do so
    normalised = fields.get("do_normalize") is not False
    if not normalised and not divides_again:
        return {} if range_of == 1 else {"mean": (0.0,), "std": (1 / range_of,)}
    if not fields.get("image_mean") or not fields.get("image_std"):
        raise ValueError(f"{name} names no image_mean and image_std")
    mean = [value if normalised else 0.0 for value in fields["image_mean"]]
    std = [value**2 if normalised and divides_again else value for value in fields["image_std"]]
    return {key: tuple(value / range_of for value in values) for key, values in (("mean", mean), ("std", std))}
