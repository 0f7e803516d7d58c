"""First labels: the source model's, after whatever may help it without labels (BatchNorm statistics, warm start)."""

import copy
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ray_adaplr.config import Config
from ray_adaplr.core import devices, draws
from ray_adaplr.core.augment import NUM_UNIFORMS, augment
from ray_adaplr.core.first_look import look_at
from ray_adaplr.core.learner import (
    Learner,
    View,
    Workplace,
    clean_view,
    predict_logits,
    reestimate_batchnorm,
)
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.objectives import information_maximisation
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError
from ray_adaplr.storage.run import Inferred

FIRST_IMAGES = 64  # enough to see a wrong normalisation; a second of a ResNet-50 on one core


def with_given(inferred: Inferred, given: np.ndarray | None) -> Inferred:
    """Start from labels of a file, int64 [n] with -1 where none.

    A label for every image is another method's output, to be refined; labels for some images are a person's
    corrections and stay as they are.
    """
    if given is None:
        return inferred
    known = given >= 0
    start = np.where(known, given, inferred.start_labels)
    if known.all():
        return replace(inferred, start_labels=start, warm=False)
    return replace(inferred, start_labels=start, fixed=known)


def infer(models: list[Classifier], store_paths: list[str], config: Config, device: str) -> Iterator[int | Inferred]:
    """Label every target image: argmax of the source models' summed logits (equations 3 and 4).

    Yields the number of warm-start epochs done so far, and last what was inferred.
    """
    store, device = ImageStore.open(*store_paths), devices.usable_device(device)
    warnings = [warning for model in models for warning in _first_look(model, store, device)]
    confidence, labels = _predict(models, store, device, config).max(1)
    done, warm = 0, config.warm_start != "off"
    for i, model in enumerate(models):
        if config.bn_adapt:
            reestimate_batchnorm(model, store.read, np.arange(len(store)), device)
        if config.warm_start == "im":
            warmed = copy.deepcopy(model)
            for _ in warm_start(warmed, store, config, device):
                yield (done := done + 1)
            reestimate_batchnorm(model, store.read, np.arange(len(store)), device)
            kept = surest_kept(_predict([model], store, device, config), _predict([warmed], store, device, config))
            if kept < config.warm_start_trust:
                warm = False
                warnings.append(
                    f"The warm start was dropped: it kept only {kept:.0%} of the labels that the source model was "
                    f"surest of (at least {config.warm_start_trust:.0%} are asked for), so it would have done harm."
                )
            else:
                models[i] = warmed
    as_given = config.warm_start == "off" and not config.bn_adapt
    start_labels = labels if as_given else _predict(models, store, device, config).argmax(1)
    yield Inferred(
        labels=labels.numpy(),
        confidence=confidence.numpy(),
        start_labels=start_labels.numpy(),
        models=[model.to("cpu") for model in models],
        warnings=warnings,
        warm=warm,
    )


def _first_look(model: Classifier, store: ImageStore, device: str) -> list[str]:
    """Warnings about the model's outputs on a few images, spread over the store; what cannot be right is refused."""
    rows = np.unique(np.linspace(0, len(store) - 1, FIRST_IMAGES).astype(np.int64))
    try:
        logits = predict_logits(model, store.read, rows, device)
    except (RuntimeError, AssertionError, ValueError) as error:
        if isinstance(error, InputError) or devices.advice(error):
            raise
        size = "x".join(map(str, store.image_shape[:2]))
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{model.spec.name} cannot take images of {size} ({why}); prepare them in its size") from error
    return look_at(torch.from_numpy(logits), model.spec.num_classes)


def surest_kept(before: Tensor, after: Tensor, share: float = 0.1) -> float:
    """A label-free check of a warm start: the share of the source's surest labels that it leaves as they were.

    Measured on six digit pairs, sure ones = the surest tenth after BatchNorm re-estimation: .97 to 1.0 where
    information maximisation helped (gains of .09 to .36), .85 to .88 where it did harm.

    Args:
        before: the source model's probabilities, [n, C].
        after: the warmed model's, [n, C].
        share: how many count as surest.
    """
    confidence, labels = before.max(1)
    surest = confidence.argsort(descending=True, stable=True)[: max(1, int(share * len(labels)))]
    return (labels[surest] == after[surest].argmax(1)).float().mean().item()


def _predict(models: list[Classifier], store: ImageStore, device: str, config: Config) -> Tensor:
    """Probabilities of the models' summed logits, averaged over the views, [n, C]."""
    settings, rows = config.augment(config.crop), np.arange(len(store))

    def augmented(stream: np.uint64) -> View:
        def view(images: Tensor, samples: np.ndarray) -> Tensor:
            return augment(images, torch.from_numpy(draws.uniforms(stream, samples, NUM_UNIFORMS)).to(device), settings)

        return view

    views = [augmented(draws.key(config.seed, "vote", i)) for i in range(config.infer_views)]
    if config.infer_views == 1:
        views = [clean_view]
    logits = [predict_logits(model, store.read, rows, device, view=view) for model in models for view in views]
    return torch.from_numpy(np.sum(logits, axis=0) / len(views)).softmax(1)


def warm_start(model: Classifier, store: ImageStore, config: Config, device: str) -> Iterator[int]:
    """Information maximisation on the clean target images with the head frozen, in place (SHOT's first gain)."""
    settings = replace(config.member_training(), epochs=config.warm_start_epochs, augment=None)
    head = list(model.head.parameters())
    for parameter in head:
        parameter.requires_grad_(False)
    learner = Learner(model, store.read, np.arange(len(store)), settings, place=Workplace(device))
    for epoch in range(config.warm_start_epochs):
        learner.train_epoch(epoch, information_maximisation)
        yield epoch
    for parameter in head:
        parameter.requires_grad_(True)
