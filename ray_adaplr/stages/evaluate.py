"""Use models on images: accuracy where the truth is known, predictions anywhere, and whether images fit a model."""

import contextlib
import contextvars
import copy
import logging
import queue
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from ray_adaplr.core.devices import accelerator_or_cpu, torch_threads, usable_device
from ray_adaplr.core.feed import Read, even_slices
from ray_adaplr.core.input_check import check_finite
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.predict import check_head, images_per_pass, predict_logits
from ray_adaplr.core.scores import class_accuracy, probability_columns
from ray_adaplr.data.open import Target, as_store
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError

log = logging.getLogger(__name__)
_BATCHES_AT_ONCE = 4  # on a CPU: each takes up to a gigabyte for a ResNet-101; further cores divide layers


def evaluate(models: Classifier | Sequence[Classifier], store: ImageStore, device: str | None = None) -> dict[str, Any]:
    """Accuracy over all images, for each class, and for each domain of a union; several models are an ensemble."""
    truth = store.ground_truth()
    if truth is None:
        raise InputError(
            "the images have no ground truth to evaluate against (folders are labels where they have the names of the "
            "model's classes); use predict, or give labelled ones"
        )
    models = _as_list(models)
    predicted, spec = _mean_logits(models, store, device).argmax(1), models[0].spec
    right = predicted == truth
    names = store.classes or spec.class_names
    by_class = class_accuracy(torch.from_numpy(predicted), torch.from_numpy(truth.copy()), spec.num_classes)
    return {
        "accuracy": float(right.mean()),
        "images": len(store),
        "per_class": dict(zip(names, by_class)),
        "per_domain": {name: float(right[store.domain_index == i].mean()) for i, name in enumerate(store.domains)},
    }


def predict(models: Classifier | Sequence[Classifier], store: ImageStore, probabilities: bool = False) -> pa.Table:
    """One row per image: id, label, class name, confidence, and if asked `p_CLASS`; several models are an ensemble."""
    models = _as_list(models)
    probs, names = torch.from_numpy(_mean_logits(models, store, None)).softmax(1), models[0].spec.class_names
    confidence, labels = probs.max(1)
    columns = {
        "id": store.ids,
        "label": labels.int().numpy(),
        "class": [names[label] for label in labels.tolist()],
        "confidence": confidence.numpy(),
    }
    return pa.table(columns | (probability_columns(probs, names) if probabilities else {}))


def _as_list(models: Classifier | Sequence[Classifier]) -> Sequence[Classifier]:
    return [models] if isinstance(models, Classifier) else models


def _mean_logits(models: Sequence[Classifier], store: ImageStore, device: str | None) -> np.ndarray:
    for model in models:
        check_fits(model, store)
    device = usable_device(device) if device else accelerator_or_cpu()
    logits = mean_logits(models, store.read, len(store), device)
    return check_finite(torch.from_numpy(logits), store.ids).numpy()


def mean_logits(models: Sequence[Classifier], read: Read, count: int, device: str) -> np.ndarray:
    """What an ensemble says of the first `count` images that `read` gives: the mean of its logits, float32 [n, C]."""
    check_together(models)
    return np.mean([_logits(model, read, count, device) for model in models], axis=0)


def check_together(models: Sequence[Classifier]) -> None:
    """InputError for models whose logits cannot be added up: they need the same classes in the same order."""
    first = models[0].spec
    for other in (model.spec for model in models[1:]):
        if other.num_classes != first.num_classes:
            raise InputError(
                f"models are added up class by class; one has {first.num_classes} classes, another {other.num_classes}"
            )
        if first.classes and other.classes and first.classes != other.classes:
            pair = next(pair for pair in zip(first.classes, other.classes) if pair[0] != pair[1])
            raise InputError(
                f"models are added up class by class; where one has '{pair[0]}', another has '{pair[1]}': give models "
                "with the same classes in the same order"
            )


def _logits(model: Classifier, read: Read, count: int, device: str) -> np.ndarray:
    """Logits of all images, float32 [n, C], from all accelerators of this process, or from all its cores.

    Batches side by side keep cores busier than layers that are divided, and they are the batches of one core alone, so
    the numbers are the same. A pool of threads, since the kernels let go of Python's lock: processes, or Ray's, would
    take longer to start than most predictions.
    """
    threads = torch.get_num_threads()
    places = [device] * min(threads, _BATCHES_AT_ONCE)
    if device != "cpu":
        places = [f"{device}:{i}" for i in range(torch.accelerator.device_count())]
    slices = list(even_slices(count, images_per_pass(read, device)))
    if min(len(places), len(slices)) == 1:
        return predict_logits(model, read, np.arange(count), device)
    idle: queue.SimpleQueue[tuple[Classifier, str]] = queue.SimpleQueue()
    for place in places[: len(slices)]:
        idle.put((_alias(model), place))

    def look(rows: slice) -> np.ndarray:
        network, place = idle.get()
        try:
            return predict_logits(network, read, np.arange(rows.start, rows.stop), place, rows.stop - rows.start)
        finally:
            idle.put((network, place))

    each = max(1, threads // len(places))
    pool = ThreadPoolExecutor(len(places), initializer=torch.set_num_threads, initargs=(each,))
    with torch_threads(each), pool:
        contexts = [contextvars.copy_context() for _ in slices]  # a thread's own knows no precision
        return np.concatenate(list(pool.map(lambda context, rows: context.run(look, rows), contexts, slices)))


def _alias(model: Classifier) -> Classifier:
    """The same network with the same memory under its weights, to be moved and called in another thread."""
    tensors = [*model.parameters(), *model.buffers()]
    own = {id(tensor): copy.copy(tensor) for tensor in tensors}
    return copy.deepcopy(model, own)  # type: ignore[arg-type]


@contextlib.contextmanager
def images_for(
    models: Sequence[Classifier], data: Target | list[Target], unlabelled: bool = False
) -> Iterator[ImageStore]:
    """Images of any kind as the models take them; what is made of them is gone afterwards.

    What had to be left out is said. A model that does not say its input's size is fed images as they are, and that is
    said; InputError where they have several sizes.
    """
    spec = models[0].spec
    options = PrepareOptions(size=spec.side, channels=spec.channels, aspect=spec.aspect, unlabelled=unlabelled)
    with tempfile.TemporaryDirectory() as made:
        store = as_store(data, made, options, spec.classes or None)
        if any(path.startswith(made) for path in store.paths) and (words := store.left_out_words()):
            log.warning("%s", words)
        if not spec.image_size:
            size = "x".join(map(str, store.image_shape[:2]))
            log.warning("the model does not say which size it takes; it is fed %s, the size of the images", size)
        yield store


def fitted(model: Classifier, store: ImageStore) -> Classifier:
    """A copy on the CPU, in float32, described as the images are; InputError where these or the head do not fit."""
    model = copy.deepcopy(model).cpu().float()
    check_head(model, store.read(np.arange(min(2, len(store)))))
    check_fits(model, store)
    known = {
        "image_size": store.image_shape[:2],
        "classes": model.spec.classes or tuple(store.classes),
        "aspect": store.aspect or model.spec.aspect,
    }
    model.spec = model.spec.model_copy(update=known)
    return model


def check_fits(model: Classifier, store: ImageStore) -> None:
    """InputError for images the model was not made for, by their size or class names; a warning by their aspect."""
    size = store.image_shape[:2]
    if model.spec.image_size and tuple(model.spec.image_size) != size:
        raise InputError(
            f"the model was trained on images of {model.spec.image_size} but {store.paths[0]} has {size}; "
            f"prepare it with --size {model.spec.image_size[0]}"
        )
    if store.classes and len(store.classes) != model.spec.num_classes:
        raise InputError(
            f"the model has {model.spec.num_classes} classes but {store.paths[0]} names {len(store.classes)}; "
            "prepare it with the model's class list"
        )
    if store.classes and model.spec.classes and tuple(store.classes) != tuple(model.spec.classes):
        pair = next((m, s) for m, s in zip(model.spec.classes, store.classes) if m != s)
        raise InputError(
            f"the model's class '{pair[0]}' is '{pair[1]}' in {store.paths[0]}; prepare it with the model's class list"
        )
    if (model.spec.aspect, store.aspect) == ("crop", "resize"):  # the other way round, somebody asked for it
        log.warning(
            "the model takes the middle square of a picture, but whole pictures were squeezed into %s; "
            "unless they were squares, prepare it with --aspect crop",
            store.paths[0],
        )
