"""A run's images, opened as its models take them: the target's and, for guests that know a larger size, larger ones."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ray_adaplr.core.models import Classifier
from ray_adaplr.data.open import Target, as_store, each_of, is_store
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError
from ray_adaplr.stages.guests import USUAL_SIZE
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.layout import STORES
from ray_adaplr.storage.models import fingerprint
from ray_adaplr.storage.run import Run


def open_images(
    models: Sequence[nn.Module],
    target: Target | list[Target],
    out: str | Path,
    options: PrepareOptions,
    progress: Progress,
    guests: Sequence[Classifier] = (),
    guest_images: Target | list[Target] | None = None,
    force: bool = False,
) -> tuple[ImageStore, ImageStore | None]:
    """The target as one store, and the store that guests look at where it is another.

    What the options leave open follows the first model that says its size. Guests look at `guest_images` or, where
    there are none and they know a larger size or colours, at the target like that; stores stay as they are, with
    what is beside them. A size that is not the model's, a folder of somebody else's, or one with a run of other models
    (no `force`) is refused before that.
    """
    if guest_images is not None and not guests:
        raise InputError("--guest-images are for guests to look at, and there is none; name one with --guest")
    unused = sorted(options.model_fields_set - {"classes", "seed", "unlabelled"})  # which say something of a store too
    stores_among = [is_store(each) for each in each_of(target)]
    if all(stores_among) and unused:
        option = unused[0].replace("_", "-")
        raise InputError(
            f"--{option} says how pictures become a store, and the target is one already; leave it out, or name the "
            "pictures themselves"
        )
    taken = {model.spec.image_size for model in models if isinstance(model, Classifier)} - {None}
    if options.size and not options.at_most and taken - {(options.size, options.size)}:
        sizes = " and ".join("{}x{}".format(*size) for size in sorted(filter(None, taken)))
        raise InputError(f"--size {options.size}: the model takes images of {sizes}; leave --size out")
    names = next((model.spec.classes for model in models if isinstance(model, Classifier)), ())
    hashes = [fingerprint(model) for model in models if isinstance(model, Classifier)]
    known = {"source_fingerprint": " ".join(hashes), **({"classes": list(names)} if names else {})}
    Run(out).check(origin=known if len(hashes) == len(models) else {}, force=force)
    fed = next((fed for fed in map(_input_options, models) if fed.get("size")), _input_options(models[0]))
    asked, stores = options.channels, Folder(out) / STORES
    options = options.model_copy(update={name: fed[name] for name in fed.keys() - options.model_fields_set})
    before = {file.split("/")[0] for file in stores.files()}
    store = as_store(target, out, options, names, progress)
    try:
        Run(out).check(origin={"target_fingerprint": store.fingerprint}, force=force)
    except InputError:
        for made in {os.path.basename(path) for path in store.paths} - before:
            stores.delete(made)
        raise
    side = max((max(guest.spec.image_size or USUAL_SIZE) for guest in guests), default=0)
    in_colour = asked is None and any(guest.spec.channels > store.image_shape[2] for guest in guests)
    if guest_images is None and (any(stores_among) or (side <= max(store.image_shape[:2]) and not in_colour)):
        return store, None
    shown = target if guest_images is None else guest_images
    alone = len(each_of(shown)) == 1
    fed = {"size": side, "at_most": alone, "channels": (None if alone else 3) if in_colour else options.channels}
    larger = options.model_copy(update=fed)
    return store, as_store(shown, out, larger, names, progress, prefix="guests-")


def _input_options(model: nn.Module) -> dict[str, Any]:
    """How pictures become what a model takes, as far as it says so: fields of `PrepareOptions`."""
    if isinstance(model, Classifier):
        return {"size": model.spec.side, "channels": model.spec.channels, "aspect": model.spec.aspect}
    known = getattr(model, "pretrained_cfg", None) or {}
    return {"size": known["input_size"][-1]} if "input_size" in known else {}
