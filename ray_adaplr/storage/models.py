"""Models on disk: weights as safetensors beside `model.json`; a user's own weights (.pt, .ckpt) come in by name.

Nothing here unpickles: `.pt` files are read with `weights_only=True`, and one that needs more is refused.
"""

import copy
import hashlib
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from ray_adaplr.core.models import OWN, Classifier, ModelSpec, build, fields_of_factory, published, published_input
from ray_adaplr.errors import InputError, checked_model, counted, few, first_line
from ray_adaplr.storage.digests import blake2
from ray_adaplr.storage.folder import Folder, absolute
from ray_adaplr.storage.layout import SPEC, TARGET_MODEL, WEIGHTS


def describe(**fields: Any) -> ModelSpec:
    """A model's description; InputError for a field that makes no sense."""
    return checked_model(ModelSpec, fields, "the model's {}={!r}".format)


def save_model(folder: Folder, model: Classifier, **notes: Any) -> None:
    """Write weights, then the description, into a folder. `notes` are added to model.json for people to read."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.network.state_dict().items()}
    places = {tensor.data_ptr(): name for name, tensor in reversed(weights.items())}  # a layer may have several names
    own = {name: each if places[each.data_ptr()] == name else each.clone() for name, each in weights.items()}
    data = save_tensors(own)
    folder.write(WEIGHTS, data)
    folder.write_json(SPEC, {**model.spec.model_dump(), "notes": notes, "digest": blake2(data)})


def fingerprint(model: Classifier) -> str:
    """A short hash of a model's weights and normalisation, by which a resumed run knows its source again."""
    spec = model.spec
    digest = hashlib.blake2b(repr((spec.mean, spec.std, spec.per_image)).encode(), digest_size=8)
    for name, tensor in model.network.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def is_whole(folder: Folder) -> bool:
    """Whether a folder holds a model with the very bytes that `save_model` wrote."""
    try:
        return folder.read_json(SPEC)["digest"] == blake2(folder.read(WEIGHTS))
    except (FileNotFoundError, ValueError, AttributeError, KeyError, TypeError):
        return False


def load_model(
    path: str | Path,
    name: str | None = None,
    classes: list[str] | None = None,
    like: nn.Module | None = None,
    **spec: Any,
) -> Classifier:
    """A model folder, or a state dict in a .safetensors or .pt file, or in a Lightning checkpoint (.ckpt).

    Args:
        path: a folder written by `save_model`, a finished run for its target model, or a file.
        name: architecture of a file's weights: a torchvision name, timm/NAME, digit_cnn or package.module:function.
        classes: class names of a file's weights, in the order of its outputs.
        like: fill in a copy of this network, or of a model's; for a user's own class, which no name can build.
        **spec: other fields of `ModelSpec` for a file, e.g. normalize="imagenet".

    Raises:
        InputError: when it is not there, is damaged, needs unpickling, or does not fit the architecture.
    """
    folder = Folder(path)
    if not folder.exists(SPEC) and (folder / TARGET_MODEL).exists(SPEC):
        folder = folder / TARGET_MODEL
    if folder.exists(SPEC):
        model = _load_folder(folder, str(path), name, like)
        return check_description(model, str(path), spec.get("normalize"), classes, name)
    if not Path(path).is_file():
        raise InputError(f"there is no model at {path} (a folder with {SPEC}, or a .pt, .ckpt or .safetensors file)")
    if name is None:
        way_out = f"{path} holds weights alone; say which architecture they are of: NAME={path}"
        raise InputError(f"{way_out} (beside --source also --model NAME)", in_python=way_out)
    weights = _read_weights(Path(path))
    # Any number of classes will do to learn the head's name, whose width in the file is the right number.
    made = fields_of_factory(name, spec.get("head")) if ":" in name else {"num_classes": 2}
    named = {"num_classes": len(classes), "classes": tuple(classes)} if classes else {}
    fields = {"name": name, **made, **named, **({} if "normalize" in spec else published_input(name)), **spec}
    model = build(describe(**fields))
    weights = _of_network(weights, model.network.state_dict(), str(path))
    width = len(classes) if classes else _head_width(weights, model.head_name, str(path))
    told = {**_digit_cnn_fields(weights), **fields} if name == "digit_cnn" else fields
    if told != fields or width != model.spec.num_classes:
        model = build(describe(**{**told, "num_classes": width}))
    return _fill(model, weights, str(path))


def _load_folder(folder: Folder, path: str, name: str | None, like: nn.Module | None) -> Classifier:
    """The model of a folder that `save_model` wrote; `path` is what the user calls it."""
    try:
        fields = {key: value for key, value in folder.read_json(SPEC).items() if key not in ("notes", "digest")}
        spec = checked_model(ModelSpec, fields, "{}={!r}".format)
        weights = load_tensors(folder.read(WEIGHTS))
    except FileNotFoundError as error:
        raise InputError(f"{path} has no {WEIGHTS}; the model was not written to its end") from error
    except (ValueError, AttributeError, SafetensorError) as error:
        raise InputError(f"{path} is not a whole model folder: {first_line(error)}") from error
    if like is not None:
        network = like.network if isinstance(like, Classifier) else like
        return _fill(Classifier(copy.deepcopy(network).cpu(), spec), weights, path)
    if name and ":" in name and spec.name.startswith(OWN):
        spec = spec.model_copy(update={"name": name})
    if ":" in spec.name and name != spec.name:  # a folder from elsewhere must not name code to run
        told = f"{path} is made by {spec.name}; to run that,"
        said = f"{told} say --factory {spec.name} (adapt: --model {spec.name})"
        raise InputError(said, in_python=f"{told} give what it returns: ray_adaplr.load(folder, network=...)")
    return _fill(build(spec), weights, path)


def check_description(
    model: Classifier, path: str, normalize: str | None, classes: list[str] | None = None, name: str | None = None
) -> Classifier:
    """The model, which says itself what it is, takes and tells apart: a user may repeat that and add names of classes.

    InputError where the user denies it.
    """
    spec = model.spec
    if name not in (None, spec.name):
        raise InputError(
            f"{path} holds a {spec.name}, not a {name}; leave that name out, or of several models give it to the one "
            f"that it is for: {name}=FILE"
        )
    if normalize is not None:
        said = describe(num_classes=spec.num_classes, channels=spec.channels, normalize=normalize)
        if said.normalization != spec.normalization:
            raise InputError(f"{path} says itself what it is fed, {spec.input}; leave --normalize out")
    if classes and spec.classes and tuple(classes) != spec.classes:
        raise InputError(f"{path} says itself what its classes are, {few(spec.classes)}; leave --classes out")
    if classes and len(classes) != spec.num_classes:
        raise InputError(f"{path} tells {spec.num_classes} classes apart and --classes names {len(classes)}")
    if classes:
        model.spec = spec.model_copy(update={"classes": tuple(classes)})
    return model


def absolute_model_name(wanted: str | Path | nn.Module) -> str:
    """What a user calls a model, as any folder finds it: its absolute path, or its name; of a module, its class's."""
    if isinstance(wanted, nn.Module):
        return type(wanted).__name__
    if os.path.exists(os.path.expanduser(wanted)):
        return absolute(wanted)
    name, _, file = str(wanted).partition("=")
    return f"{name}={absolute(file)}" if os.path.exists(os.path.expanduser(file)) else str(wanted)


def load_start(spec: ModelSpec, start: str, seed: int) -> Classifier:
    """A network with a fresh head; its other weights are from a file, a model's folder, or the `published` ones."""
    model, place = build(spec, seed), Path(start.removeprefix(f"{spec.name}="))
    file = place / WEIGHTS if (place / SPEC).is_file() else place
    weights = published(spec.name).state_dict() if start == "published" else _read_weights(file)
    expected = model.network.state_dict()
    fresh = {key: value for key, value in expected.items() if key.startswith(f"{model.head_name}.")}
    weights = _of_network(weights, set(expected) - set(fresh), start)
    return _fill(model, {**weights, **fresh}, start)


def _read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise InputError(f"there is no file of weights {path}")
    try:
        if path.suffix == ".safetensors":
            state: Any = load_tensors(path.read_bytes())
        else:
            state = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # a damaged file raises whatever its bytes lead to
        why = "holds more than tensors, and code in a file is not run" if "weights_only" in str(error) else "is damaged"
        raise InputError(f"{path} {why}; save it with torch.save(model.state_dict(), ...) or as safetensors") from error
    for wrapper in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    if not isinstance(state, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items()):
        raise InputError(f"{path} is not a state dict of tensors; save it with torch.save(model.state_dict(), ...)")
    return {key.removeprefix("module."): value for key, value in state.items()}


def _of_network(weights: dict[str, Tensor], expected: Collection[str], path: str) -> dict[str, Tensor]:
    """The weights without the prefix that a wrapper (a LightningModule's `model.`) gave them; as they are without one.

    A training loop's own tensors, of its loss or its metrics, stay behind.
    """
    first = next(iter(expected))
    prefixes = {key.removesuffix(first) for key in weights if key.endswith(first)}
    found = sorted(prefix for prefix in prefixes if all(prefix + key in weights for key in expected))
    if len(found) > 1 and found[0]:
        raise InputError(
            f"{path} holds {len(found)} networks of this kind, below {' and '.join(map(repr, found))}; save the one "
            "that is meant with torch.save(network.state_dict(), ...)"
        )
    prefix = found[0] if found else ""
    return {key.removeprefix(prefix): tensor for key, tensor in weights.items() if key.startswith(prefix)}


def _digit_cnn_fields(weights: dict[str, Tensor]) -> dict[str, int]:
    """Width and channels of a digit CNN, by its first convolution; nothing of weights that are none of its."""
    first = weights.get("features.0.weight")  # [width, channels, 3, 3]
    return {} if first is None or first.dim() != 4 else dict(zip(("width", "channels"), first.shape))


def _head_width(weights: dict[str, Tensor], head: str, path: str) -> int:
    weight = weights.get(f"{head}.weight")
    if weight is None or weight.dim() == 0:
        raise InputError(f"{path} has no '{head}.weight' to count its classes by; is it another architecture?")
    return len(weight)


def _fill(model: Classifier, weights: dict[str, Tensor], path: str) -> Classifier:
    """Load weights into the network after a look at what does not fit."""
    expected = model.network.state_dict()
    missing = sorted(set(expected) - set(weights))
    if missing:
        raise InputError(
            f"{path} lacks {counted(len(missing), 'weight')} of {model.spec.name}, e.g. '{missing[0]}'; is it another "
            "architecture?"
        )
    for key, tensor in expected.items():
        if weights[key].shape != tensor.shape:
            if key.startswith(f"{model.head_name}."):
                raise InputError(
                    f"the head of {path} has {len(weights[key])} outputs but there are "
                    f"{model.spec.num_classes} classes; give the class list it was trained with"
                )
            raise InputError(
                f"{path}: '{key}' has shape {tuple(weights[key].shape)}, {model.spec.name} wants {tuple(tensor.shape)}"
            )
        if not torch.isfinite(weights[key].float()).all():
            raise InputError(f"{path}: '{key}' holds NaN or infinite values; the model is of no use")
    model.network.load_state_dict({key: weights[key] for key in expected})
    return model
