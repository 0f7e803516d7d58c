"""Hugging Face's image classifiers as networks: built from the fields of their config.json, with random weights.

transformers is imported when such a network is built. Code that a config names, such as `auto_map` or a hub's kernels,
is never run: those fields are dropped.
"""

from collections.abc import Sequence
from typing import Any

from torch import nn

from ray_adaplr.errors import InputError, first_line, nearest, need

HF = "hf/"  # begins the name of such a network; the rest is the config's model_type
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
    transformers = need_transformers()
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
        return need_transformers().AutoModelForImageClassification.from_config(config, trust_remote_code=False)
    except Exception as error:
        raise InputError(f"the config of '{config.model_type}' makes no network ({first_line(error)})") from error


def need_transformers() -> Any:
    """The package; InputError with the way to get it."""
    return need("a Hugging Face model", "hf", "transformers")
