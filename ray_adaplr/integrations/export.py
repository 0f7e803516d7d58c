"""A model for other tools: ONNX, torch.export, or a folder for transformers, each tried before it is handed over.

What is written takes what the network takes: float images [batch, channels, height, width], normalised as the
description in it says, in batches of any size. The tool that it is for runs it on 32 images, and it has to agree.
"""

import copy
import os
import shutil
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from ray_adaplr.core.augment import to_float
from ray_adaplr.core.models import Classifier, ModelSpec
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError, RunFailed, first_line, nearest, need
from ray_adaplr.integrations.cleanlab_table import write_cleanlab
from ray_adaplr.integrations.formats import FORMATS, MADE_BY, Format
from ray_adaplr.stages.result import unguarded
from ray_adaplr.storage.folder import Folder, parent_of
from ray_adaplr.storage.layout import ORIGIN, SHIPPED, SPEC, TARGET_MODEL
from ray_adaplr.storage.models import load_model
from ray_adaplr.storage.ownership import own_file
from ray_adaplr.storage.run import Run

TOLERANCE = 1e-4  # most that a logit may differ from the original's
IMAGES = 32
_ALONE = 1  # of the images, in a batch of its own: the batch's size must not be fixed


def export(folder: str | Path, to: str, out: str | Path, load: Callable[[str], Classifier] = load_model) -> str:
    """Write the model of a run, or of a model folder, or a run's labels for another tool; returns what was done.

    `load` reads a model folder; for a network of the user's own class. InputError for a folder without a model, a
    package that is missing, or an `out` that is somebody else's. RunFailed where the network cannot be written that
    way, or what was written does not agree; nothing is left.
    """
    if to == "cleanlab":
        return write_cleanlab(folder, out)
    if to not in FORMATS:
        raise InputError(f"--to {to}: there is no such format{nearest(to, [*FORMATS, 'cleanlab'])}")
    form = FORMATS[to]
    need(f"--to {to}", form.extra, *form.packages)
    _check_out(out, form)
    place, run = _find_model(folder)
    model = load(place.uri)
    spec = model.spec
    if spec.image_size is None:
        raise InputError(f"{place.uri} does not say the size of its images; write image_size into its {SPEC}")
    form.check(model)
    images, which = _trial_images(run, spec)
    with tempfile.TemporaryDirectory() as made:
        part = Path(made) / f"model{form.suffix}"
        difference = _write_and_try(model, form, part, images)
        if not difference <= TOLERANCE:
            raise RunFailed(
                f"the {to} model's logits differ by {difference:.2g} from the original's on {which}, "
                f"where {TOLERANCE:g} is the most; nothing was written"
            )
        _put(part, out)
    tool = form.packages[-1]
    said = [
        f"exported {place.uri}: {out}",
        f"  takes float32 [batch, {spec.channels}, {spec.image_size[0]}, {spec.image_size[1]}]: {spec.input}",
        f"  {tool} {version(tool)} ran it on {which}: logits differ by {difference:.1e} at most",
        *_other_choice(place, run),
    ]
    return "\n".join(said)


def _write_and_try(model: Classifier, form: Format, part: Path, images: np.ndarray) -> float:
    """Write the network, run what was written, and return the largest difference of a logit."""
    unguarded(model.cpu().eval().network)
    network = copy.deepcopy(model.network).to(memory_format=torch.contiguous_format)
    with torch.no_grad():
        prepared = model.prepare(to_float(torch.from_numpy(images))).contiguous()
        expected = model(to_float(torch.from_numpy(images)))
        try:
            run = form.write(network, model.spec, prepared[:2], part)
            batches = (slice(None, _ALONE), slice(_ALONE, None))
            found = torch.cat([run(images[rows], prepared[rows]) for rows in batches])
        except Exception as error:  # a network that a format cannot hold fails in whatever way its tool likes
            raise RunFailed(f"{model.spec.name} cannot be written that way ({first_line(error)})") from error
    return (found.float() - expected).abs().max().item() if found.shape == expected.shape else float("nan")


def _find_model(folder: str | Path) -> tuple[Folder, Run | None]:
    """The model's folder, and the run that it belongs to as far as there is one."""
    place = Folder(folder)
    if (place / TARGET_MODEL).exists(SPEC):
        return place / TARGET_MODEL, Run(folder)
    if place.exists(ORIGIN):
        raise InputError(f"{folder} is a run without a target model yet; let `adapt` come to its end")
    above = parent_of(place.uri)[0]
    for parent in (above, parent_of(above.uri)[0]):  # of target_model/, and of ensemble/0/
        if parent.exists(ORIGIN):
            return place, Run(parent.uri)
    return place, None


def _trial_images(run: Run | None, spec: ModelSpec) -> tuple[np.ndarray, str]:
    """32 images, uint8 [32, h, w, c], and in words which: of the run's target, or made up where it is not to be had."""
    assert spec.image_size is not None
    why = "its folder belongs to no run"
    if run is not None:
        try:
            store = ImageStore.open(*run.origin().get("target", ()))
            if store.image_shape[:2] == spec.image_size:
                rows = np.unique(np.linspace(0, len(store) - 1, IMAGES).astype(int))
                return _in_channels(store.read(rows), spec.channels), f"{len(rows)} of the run's target images"
            why = "the run's images have another size now"
        except (InputError, OSError, TypeError):
            why = "the run's target images are not there"
    shape = (IMAGES, *spec.image_size, spec.channels)
    made = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    return made, f"{IMAGES} images made from a fixed seed ({why})"


def _in_channels(images: np.ndarray, channels: int) -> np.ndarray:
    """Grey images for a network that takes grey, RGB ones for one that takes RGB, uint8 [n, h, w, channels]."""
    if images.shape[-1] == channels:
        return images
    return images.repeat(3, -1) if channels == 3 else images.mean(-1, keepdims=True).round().astype(np.uint8)


def _other_choice(place: Folder, run: Run | None) -> list[str]:
    """A line where a run with `stop = "auto"` found another of its models better."""
    if run is None or place.name != TARGET_MODEL or not run.done(SHIPPED):
        return []
    chosen = run.folder.read_json(SHIPPED).get("model", TARGET_MODEL)
    return [] if chosen == TARGET_MODEL else [f"  by its label-free score the run would rather ship {chosen}"]


def _check_out(out: str | Path, form: Format) -> None:
    """Refuse an `out` of another ending, or one that holds what this command did not write; changes nothing."""
    if form.suffix:
        if Path(parent_of(out)[1]).suffix != form.suffix:
            raise InputError(f"--out {out}: this format is one file; let its name end in {form.suffix}")
        own_file(out, form.start, MADE_BY.encode())
        return
    folder = Folder(out)
    if folder.info().is_file or folder.files():
        raise InputError(f"--out {out} is there already; choose a new or empty folder")


def _put(part: Path, out: str | Path) -> None:
    """Put a file, or a folder with its files, where it belongs: whole, or not at all."""
    if part.is_file():
        folder, name = parent_of(out)
        folder.write(name, part.read_bytes())
        return
    folder = Folder(out)
    if not folder.is_local:
        for file in sorted(part.iterdir(), key=lambda file: file.name == "config.json"):  # without it, nothing loads
            folder.write(file.name, file.read_bytes())
        return
    target = Path(folder.base)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".part-") as beside:
        os.replace(shutil.copytree(part, Path(beside) / "whole"), target)
