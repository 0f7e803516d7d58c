"""First labels: the source model's, after whatever may help it without labels (BatchNorm statistics, warm start)."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ray_adaplr.config import Config
from ray_adaplr.core import devices, draws
from ray_adaplr.core.augment import NUM_UNIFORMS, augment
from ray_adaplr.core.centroids import vote, whitened
from ray_adaplr.core.first_look import look_at
from ray_adaplr.core.learner import View, clean_view, predict_logits, reestimate_batchnorm
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.scores import share_different
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.training import augmentation
from ray_adaplr.errors import InputError
from ray_adaplr.stages.guests import Invitation, invite
from ray_adaplr.stages.look import (
    LEAST_AGREEMENT,
    Enlarged,
    Images,
    both_ways,
    clean_logits,
    features_and_logits,
    foretells,
    takes,
)
from ray_adaplr.stages.warm_start import soften, surest_kept, warm_start, with_target_statistics
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


def infer(
    models: list[Classifier], store_paths: list[str], config: Config, device: str, guests: Sequence[Classifier] = ()
) -> Iterator[int | Inferred]:
    """Label every target image: argmax of the source models' summed logits (equations 3 and 4), then start better.

    Yields the number of warm-start epochs done so far, and last what was inferred.
    """
    with devices.computing_in(config.precision):
        yield from _infer(models, store_paths, config, device, guests)


def _infer(
    models: list[Classifier], store_paths: list[str], config: Config, device: str, guests: Sequence[Classifier]
) -> Iterator[int | Inferred]:
    store, device = ImageStore.open(*store_paths), devices.usable_device(device)
    warnings = [warning for model in models for warning in _first_look(model, store, device)]
    probs = _predict(models, store, device, config)
    confidence, labels = probs.max(1)
    looked: Images = store
    invited = Invitation([], [])
    if guests or config.warm_start == "centroids":  # centroids are only as good as the labels they come from
        looked, models = _best_look(models, store, device, config)
    if guests:
        invited = invite(guests, store, _start(models, looked, device, config), device)
    done, warm = 0, config.warm_start != "off"
    for i, model in enumerate(models):
        if config.bn_adapt:
            reestimate_batchnorm(model, store.read, np.arange(len(store)), device)
        if config.warm_start == "off":
            continue
        warmed = copy.deepcopy(model)
        for _ in warm_start(warmed, store, config, device, looked, invited.features):
            yield (done := done + 1)
        cold = with_target_statistics(model, store, device)
        before, after = (_predict([each], store, device, config) for each in (cold, warmed))
        kept, at_most = surest_kept(before, after)
        if at_most < config.warm_start_trust:
            warm, models[i] = False, cold
            instead = "" if cold is model else " In its place the model took over the target's BatchNorm statistics."
            warnings.append(
                f"The warm start was dropped: it kept only {kept:.0%} of the labels that the source model was surest "
                f"of (at least {config.warm_start_trust:.0%} are asked for), so it would have done harm.{instead}"
            )
        else:
            models[i] = warmed
    as_given = config.warm_start == "off" and not (config.bn_adapt or guests or config.flip)
    start, theirs, remarks = probs if as_given else _start(models, looked, device, config), None, [*invited.remarks]
    if voters := [*_own_views(models, looked, device, config), *invited.features]:
        alone = start.argmax(1)
        start, theirs = vote(start, voters)
        remarks.append(f"The vote changed {share_different(alone, start.argmax(1)):.1%} of the labels to start from.")
    if config.soften < 1:
        for model in models:
            soften(model, clean_logits(model, store, device), config.soften)
    yield Inferred(
        labels=labels.numpy(),
        confidence=confidence.numpy(),
        start_labels=start.argmax(1).numpy(),
        models=[model.to("cpu") for model in models],
        warnings=warnings,
        warm=warm,
        remarks=remarks,
        guest=None if theirs is None else theirs.numpy(),
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


def _best_look(
    models: list[Classifier], store: ImageStore, device: str, config: Config
) -> tuple[Images, list[Classifier]]:
    """The images as labels are read off them, and the models with the statistics of these.

    They are enlarged where every model takes that and its view of them foretells the labels of the usual size.
    """
    usual = [with_target_statistics(model, store, device) for model in models]
    larger = Enlarged(store, config.enlarge)
    if config.enlarge == 1 or not all(takes(model, larger, device) for model in models):
        return store, usual
    labels = _start(usual, store, device, config)
    fitted = [with_target_statistics(model, larger, device) for model in models]
    if min(foretells(model, larger, labels, device) for model in fitted) < LEAST_AGREEMENT:
        return store, usual
    return larger, fitted


def _own_views(models: list[Classifier], looked: Images, device: str, config: Config) -> list[Tensor]:
    """The models' own features, whitened, [n, 2, k] each, where they have a vote."""
    if config.warm_start != "centroids":
        return []
    seen = [features_and_logits(model, looked, device)[0] for model in models]
    return [whitened(features, models[0].spec.num_classes) for features in seen]


def _predict(models: list[Classifier], store: Images, device: str, config: Config) -> Tensor:
    """Probabilities of the models' summed logits, averaged over the views, [n, C]."""
    settings, rows = augmentation(config, config.crop), np.arange(len(store))

    def augmented(stream: np.uint64) -> View:
        def view(images: Tensor, samples: np.ndarray) -> Tensor:
            return augment(images, torch.from_numpy(draws.uniforms(stream, samples, NUM_UNIFORMS)).to(device), settings)

        return view

    views = [augmented(draws.key(config.seed, "vote", i)) for i in range(config.infer_views)]
    if config.infer_views == 1:
        views = [clean_view]
    logits = [predict_logits(model, store.read, rows, device, view=view) for model in models for view in views]
    return torch.from_numpy(np.sum(logits, axis=0) / len(views)).softmax(1)


def _start(models: list[Classifier], store: Images, device: str, config: Config) -> Tensor:
    """What refinement starts from, [n, C]: as `_predict` or, where mirror images are as good, the mean of both."""
    if not config.flip:
        return _predict(models, store, device, config)
    return torch.stack([both_ways(model, store, device) for model in models]).sum(0).softmax(1)
