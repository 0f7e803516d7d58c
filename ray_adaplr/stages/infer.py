"""First labels: the source model's, after whatever may help it without labels (BatchNorm statistics, warm start)."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ray_adaplr.config import Config
from ray_adaplr.core import devices, draws
from ray_adaplr.core.augment import NUM_UNIFORMS, augment
from ray_adaplr.core.centroids import vote, whitened
from ray_adaplr.core.feed import USUAL_CACHE, DeviceCache
from ray_adaplr.core.first_look import look_at
from ray_adaplr.core.learner import Workplace
from ray_adaplr.core.looking import View, clean_view, predict_logits, reestimate_batchnorm
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.scores import share_different
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.engine import Engine
from ray_adaplr.engine.training import augmentation
from ray_adaplr.errors import InputError
from ray_adaplr.stages.guests import Invitation, invite
from ray_adaplr.stages.look import (
    LEAST_AGREEMENT,
    Cached,
    Enlarged,
    Images,
    clean_logits,
    features_and_logits,
    foretells,
    takes,
)
from ray_adaplr.stages.warm_start import leaning, soften, surest_kept, warm_start, with_target_statistics
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
        voted = inferred.vote  # with the labels of the file as one more voter
        both = None if voted is None else (voted + np.eye(voted.shape[1], dtype=np.float32)[start]) / 2
        return replace(inferred, start_labels=start, warm=False, vote=both)
    return replace(inferred, start_labels=start, fixed=known)


@dataclass(frozen=True)
class Source:
    """A source model before its warm start."""

    model: Classifier  # as it starts
    cold: Classifier | None = None  # what takes its place if the warm start does harm; None: not looked for yet
    adapted: bool = False  # whether that one has the target's BatchNorm statistics


@dataclass(frozen=True)
class Glance:
    """What is known of the sources before one of them is warmed."""

    probs: Tensor  # of all as they came, [n, C]
    sources: list[Source]
    enlarged: bool  # whether labels are read off enlarged images
    invited: Invitation
    warnings: list[str]


@dataclass(frozen=True)
class Warmed:
    """A source model after its warm start, or as it was, with the reason."""

    model: Classifier
    dropped: str = ""


@dataclass(frozen=True)
class Inference:
    """How first labels are made, as it is sent to those who make them; each method is for an engine's stream."""

    store_paths: Sequence[str]
    config: Config  # resolved
    device: str
    cache: DeviceCache = USUAL_CACHE
    checkpoints: str | None = None  # where the state of each warm start is kept; None keeps none

    def look(self, models: list[Classifier], guests: Sequence[Classifier]) -> Iterator[Glance]:
        """Look at all sources, and at the images as they are seen best."""
        config = self.config
        with devices.computing_in(config.precision):
            store, images, device = self._images()
            warnings = [warning for model in models for warning in _first_look(model, store, device)]
            probs = _predict(models, images, device, config)
            look, invited = _Look(False, models), Invitation([], [])
            if guests or config.warm_start == "centroids":  # centroids are only as good as the labels they come from
                look = _best_look(models, store, images, device, config)
            if guests:
                looks = self._looks(store, images, look.enlarged)
                invited = invite(guests, store, _start(look.models, looks, device, config)[0], device)
            sources = [Source(model.to("cpu")) for model in look.models]
            if look.usual:
                both = zip(look.models, look.usual, models)
                sources = [Source(model.to("cpu"), cold.to("cpu"), cold is not given) for model, cold, given in both]
            yield Glance(probs, sources, look.enlarged, invited, warnings)

    def warm_start(self, number: int, source: Source, enlarged: bool, guests: list[Tensor]) -> Iterator[int | Warmed]:
        """Warm one source; yields each epoch's number when it is done, and last what came of it."""
        config, model = self.config, source.model
        with devices.computing_in(config.precision):
            store, images, device = self._images()
            if config.bn_adapt:
                reestimate_batchnorm(model, images.read, np.arange(len(images)), device)
            if config.warm_start == "off":
                yield Warmed(model.to("cpu"))
                return
            warmed, looks = copy.deepcopy(model), self._looks(store, images, enlarged)
            cache = images.read if isinstance(images, Cached) else None
            place = Workplace(device, torch.get_num_threads(), cache=cache)
            kept = (self.checkpoints, warm_start_name(number)) if self.checkpoints else None
            yield from warm_start(warmed, store, config, place, looks, guests, kept)
            cold, adapted = source.cold, source.adapted
            if cold is None:
                cold = with_target_statistics(model, images, device)
                adapted = cold is not model
            before, after = (_predict([each], images, device, config) for each in (cold, warmed))
            share, at_most = surest_kept(before, after)
            if at_most >= config.warm_start_trust:
                yield Warmed(warmed.to("cpu"))
                return
            instead = " In its place the model took over the target's BatchNorm statistics." if adapted else ""
            if config.warm_start == "centroids":
                instead = " In its place the source model goes on as it came."
            yield Warmed(
                cold.to("cpu"),
                f"The warm start was dropped: it kept only {share:.0%} of the labels that the source model was surest "
                f"of (at least {config.warm_start_trust:.0%} are asked for), so it would have done harm.{instead}",
            )

    def label(self, seen: Glance, warmed: list[Warmed], given: list[Classifier]) -> Iterator[Inferred]:
        """The labels to start from, by all models as they are now; `given` are the source models as they came."""
        config, invited, models = self.config, seen.invited, [each.model for each in warmed]
        dropped = [each.dropped for each in warmed if each.dropped]
        with devices.computing_in(config.precision):
            store, images, device = self._images()
            looks = self._looks(store, images, seen.enlarged)
            start, remarks = seen.probs, [*invited.remarks]
            own: list[list[Tensor]] = []
            if config.warm_start != "off" or config.bn_adapt or invited.remarks or config.flip:
                start, own = _start(models, looks, device, config)
            if voters := [*own, *([guest] for guest in invited.features)]:
                alone = start.argmax(1)
                # The target's BatchNorm statistics and the source's make different mistakes. PACS, 150 images, labels
                # without and with the source's half, percent right: photo→sketch 44.7 and 49.3, art→sketch 54.0 and
                # 56.0. After a warm start that was kept: 71.3 and 72.0, 93.3 and 94.0, 60.0 and 59.3, 74.7 and 71.3.
                start = vote((start + seen.probs) / 2 if dropped else start, voters)
                changed = share_different(alone, start.argmax(1))
                remarks.append(f"The vote changed {changed:.1%} of the labels to start from.")
            if own:  # what trains goes on from the source: the target's statistics alone did harm to sketches
                models = [came if each.dropped else each.model for came, each in zip(given, warmed)]
            if config.soften < 1:
                for model in models:
                    soften(model, clean_logits(model, images, device), config.soften)
            confidence, labels = seen.probs.max(1)
            yield Inferred(
                labels=labels.numpy(),
                confidence=confidence.numpy(),
                start_labels=start.argmax(1).numpy(),
                models=[model.to("cpu") for model in models],
                warnings=[*seen.warnings, *dropped],
                warm=config.warm_start != "off" and not dropped,
                remarks=remarks,
                vote=start.numpy() if voters else None,
            )

    def _images(self) -> tuple[ImageStore, Images, str]:
        """The store, its images as this process looks at them, and the device they are looked at on."""
        store, device = ImageStore.open(*self.store_paths), devices.usable_device(self.device)
        cached = self.cache.of(store.read, len(store), device)
        return store, store if cached is None else Cached(cached), device

    def _looks(self, store: ImageStore, images: Images, enlarged: bool) -> list[Images]:
        return _sizes(store, images, self.config) if enlarged else [images]


def infer(
    models: list[Classifier], plan: Inference, engine: Engine, guests: Sequence[Classifier] = ()
) -> Iterator[int | Inferred]:
    """Label every target image: argmax of the source models' summed logits (equations 4 and 5), then start better.

    Sources are warmed side by side. Yields the number of warm-start epochs done so far, and last what was inferred.
    """
    *_, seen = engine.stream(plan.look, models, guests)
    warmed = {i: Warmed(source.model) for i, source in enumerate(seen.sources)}
    done = dict.fromkeys(warmed, 0)
    if plan.config.bn_adapt or plan.config.warm_start != "off":
        calls = [(i, source, seen.enlarged, seen.invited.features) for i, source in enumerate(seen.sources)]
        for i, item in engine.side_by_side(plan.warm_start, calls):
            if isinstance(item, Warmed):
                warmed[i] = item
            else:
                done[i] = item + 1
                yield sum(done.values())
    yield from engine.stream(plan.label, seen, list(warmed.values()), models)


def warm_start_name(number: int) -> str:
    """What the state of a source's warm start is called among the checkpoints."""
    return f"warm-start-{number}"


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
    return look_at(torch.from_numpy(logits), model.spec.num_classes, model.spec.classes)


@dataclass(frozen=True)
class _Look:
    """How the target is looked at before anything trains."""

    enlarged: bool  # whether labels are read off enlarged images
    models: list[Classifier]  # the source models with the statistics of the first size that labels are read off
    usual: list[Classifier] | None = None  # with the statistics of the images as they are, where somebody asked


def _best_look(models: list[Classifier], store: ImageStore, images: Images, device: str, config: Config) -> _Look:
    """Enlarged, where every model takes that and its view of them foretells the labels of the usual size."""
    usual = [with_target_statistics(model, images, device) for model in models]
    as_it_is, sizes = _Look(False, usual, usual), _sizes(store, images, config)
    if sizes == [images] or not all(takes(model, size, device) for model in models for size in sizes):
        return as_it_is
    labels, _ = _start(usual, [images], device, config)
    fitted = [leaning(model, sizes[0], device) for model in models]
    if min(foretells(model, sizes[0], labels, device) for model in fitted) < LEAST_AGREEMENT:
        return as_it_is
    return _Look(True, fitted, usual)


def _sizes(store: ImageStore, images: Images, config: Config) -> list[Images]:
    """The images in the sizes of `enlarge`."""
    return [images if factor == 1 else Enlarged(store, factor) for factor in config.enlarge]


def _predict(models: list[Classifier], images: Images, device: str, config: Config) -> Tensor:
    """Probabilities of the models' summed logits, averaged over the views, [n, C]."""
    settings, rows = augmentation(config, config.crop), np.arange(len(images))

    def augmented(stream: np.uint64) -> View:
        def view(seen: Tensor, samples: np.ndarray) -> Tensor:
            return augment(seen, torch.from_numpy(draws.uniforms(stream, samples, NUM_UNIFORMS)).to(device), settings)

        return view

    views = [augmented(draws.key(config.seed, "vote", i)) for i in range(config.infer_views)]
    if config.infer_views == 1:
        views = [clean_view]
    logits = [predict_logits(model, images.read, rows, device, view=view) for model in models for view in views]
    return torch.from_numpy(np.sum(logits, axis=0) / len(views)).softmax(1)


def _start(
    models: list[Classifier], sizes: Sequence[Images], device: str, config: Config
) -> tuple[Tensor, list[list[Tensor]]]:
    """What refinement starts from, [n, C], and each model's own features, whitened, [n, v, k] per size, if they vote.

    The first is as `_predict` or, where mirror images are as good or features vote, the mean over ways and sizes.
    """
    votes = config.warm_start == "centroids"
    if not (votes or config.flip):
        return _predict(models, sizes[0], device, config), []
    mirrored = (False, True) if config.flip else (False,)
    probs, own = [], [[] for _ in models]  # type: ignore[var-annotated]
    for images in sizes:
        features, logits = zip(*(features_and_logits(model, images, device, mirrored) for model in models))
        probs.append(torch.stack(logits).sum(0).softmax(1))
        for views, seen in zip(own, features if votes else ()):
            views.append(whitened(seen, models[0].spec.num_classes))
    return torch.stack(probs).mean(0), own if votes else []
