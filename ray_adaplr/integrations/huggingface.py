"""A Hugging Face image classifier, in a folder or on the hub, as a model of this package.

Classes come from `id2label`, size, mean and std from the image processor's file. No code of a folder is run, and
pickled weights are read as tensors alone.
"""

import json
from pathlib import Path
from typing import Any

import torch

from ray_adaplr.core.hugging_face import HF, TRANSFORMERS, hugging_face_config, of_processor, plain_config
from ray_adaplr.core.models import Classifier, find_head, normalization
from ray_adaplr.errors import InputError, first_line, need
from ray_adaplr.storage.models import check_description, describe

CONFIG, PROCESSOR = "config.json", "preprocessor_config.json"
_FILES = [CONFIG, PROCESSOR, "*.safetensors", "*.safetensors.index.json"]


def is_hugging_face(folder: str | Path) -> bool:
    """Whether a folder holds a transformers model."""
    file = Path(folder) / CONFIG
    return file.is_file() and "model_type" in _fields(file)


def read_hugging_face(folder: str | Path, classes: list[str] | None = None, normalize: str | None = None) -> Classifier:
    """The image classifier of a folder that `save_pretrained` wrote.

    `classes` are names for a model that calls its classes LABEL_0, LABEL_1, ...; `normalize` is for a folder without
    the processor's file. InputError when it is no image classifier, lacks weights, or does not say how it is fed.
    """
    fields = _fields(Path(folder) / CONFIG)
    names = _class_names(fields) or classes or []
    count = len(names or fields.get("id2label") or ()) or 2
    config = hugging_face_config(fields, count, names)
    transformers = need(*TRANSFORMERS)
    transformers.utils.logging.disable_progress_bar()
    try:
        network, told = transformers.AutoModelForImageClassification.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # told instead, in one sentence
        )
    except Exception as error:  # a foreign folder may hold anything
        raise InputError(f"{folder} cannot be read as a Hugging Face model ({first_line(error)})") from error
    finally:
        transformers.utils.logging.enable_progress_bar()
    if lost := sorted(map(str, [*told["missing_keys"], *told["mismatched_keys"]])):
        raise InputError(
            f"{folder} lacks {len(lost)} weights of an image classifier with {count} classes, e.g. {lost[0]}; "
            "give a model that was trained to classify, with its own classes"
        )
    spec = {
        "name": HF + config.model_type,
        "num_classes": count,
        "classes": tuple(names),
        "channels": getattr(config, "num_channels", 3),
        "head": find_head(network),
        "config": plain_config(fields),
        **_input(Path(folder), fields, normalize),
    }
    model = Classifier(network, describe(**spec)).to(memory_format=torch.channels_last)
    return check_description(model, str(folder), None, classes)


def download(name: str) -> str:
    """The folder of a hub's model in the hub's own cache; of its files those that are no code."""
    hub = need(f"hf:{name}", "hf", "huggingface_hub")
    try:
        return hub.snapshot_download(name, allow_patterns=_FILES)
    except Exception as error:  # no network, no such name, no right to read it: each has its own kind
        raise InputError(
            f"hf:{name} is no folder here and cannot be had from the hub ({first_line(error)}); give a folder that "
            "save_pretrained wrote"
        ) from error


def _fields(file: Path) -> dict[str, Any]:
    try:
        fields = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file} cannot be read ({first_line(error)}); a Hugging Face model has one") from error
    if not isinstance(fields, dict):
        raise InputError(f"{file} holds no fields; a Hugging Face model's has the key model_type")
    return fields


def _class_names(fields: dict[str, Any]) -> list[str]:
    """The names of `id2label` in order, those that occur twice with their number; [] for LABEL_0, LABEL_1, ..."""
    try:
        by_number = {int(number): str(name) for number, name in (fields.get("id2label") or {}).items()}
        names = [by_number[number] for number in range(len(by_number))]
    except (AttributeError, ValueError, KeyError) as error:
        raise InputError(f"id2label does not name the classes 0, 1, 2, ... ({first_line(error)})") from error
    return [] if names == [f"LABEL_{number}" for number in range(len(names))] else told_apart(names)


def told_apart(names: list[str]) -> list[str]:
    """Class names with their number behind those that occur twice, as ImageNet's cranes."""
    return [f"{name} ({number})" if names.count(name) > 1 else name for number, name in enumerate(names)]


def _input(folder: Path, fields: dict[str, Any], normalize: str | None) -> dict[str, Any]:
    """Size, mean, std and whether the middle is cropped, by the processor's file; the size else by the config."""
    file, timm = folder / PROCESSOR, fields.get("pretrained_cfg")
    if isinstance(timm, dict) and {"mean", "std", "input_size"} <= timm.keys():  # timm's network, wrapped
        fed = normalization(normalize) if normalize else {key: tuple(timm[key]) for key in ("mean", "std")}
        squeezed = timm.get("crop_mode") == "squash"  # its other ways keep the picture's proportions
        return {**fed, "image_size": tuple(timm["input_size"][1:]), "aspect": "resize" if squeezed else "crop"}
    if normalize is None and not file.is_file():
        raise InputError(f"{folder} has no {PROCESSOR}, so its mean and std are not known; say them with --normalize")
    processor = _fields(file) if file.is_file() else {}
    try:
        fed = normalization(normalize) if normalize else of_processor(processor, str(file))
    except ValueError as error:
        raise InputError(f"{error}; say them with --normalize") from error
    cropped = processor.get("do_center_crop") and processor.get("crop_size")
    size = cropped or processor.get("size") or fields.get("image_size")
    keeps_proportions = cropped or (isinstance(size, dict) and "shortest_edge" in size)
    if isinstance(size, dict):
        size = size.get("shortest_edge") or [size.get("height"), size.get("width")]
    height, width = size if isinstance(size, list | tuple) else (size, size)
    if height != width:
        raise InputError(f"{folder} takes images of {height}x{width} pixels; stores hold squares alone")
    aspect = "crop" if keeps_proportions else "resize"
    return {**fed, "image_size": (height, width) if height else None, "aspect": aspect}
