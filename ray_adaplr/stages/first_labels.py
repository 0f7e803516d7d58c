"""First labels: the source models', after whatever may help them without labels (BatchNorm statistics, warm start).

Each method of `Inference` is a step that one process takes; `infer.py` says which, where and when.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ray_adaplr.config import Config
from ray_adaplr.core import devices
from ray_adaplr.core.centroids import FEW_CHANGES, NOTHING_KNOWN, Outlook, Voter, kappa_of_features, vote
from ray_adaplr.core.feed import USUAL_CACHE, DeviceCache
from ray_adaplr.core.input_check import check_finite, check_images, check_logits, uneven_classes
from ray_adaplr.core.learner import Workplace
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.predict import predict_logits
from ray_adaplr.core.scores import share_different
from ray_adaplr.core.shift import FAMILIAR, shift_of
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.checkpoint import load_state, save_state
from ray_adaplr.errors import InputError, first_line
from ray_adaplr.stages.guests import features_of, judge, why_not_asked
from ray_adaplr.stages.looks import as_voter, first_look, outlook_of, predictions, sizes_of
from ray_adaplr.stages.views import LEAST_AGREEMENT, Cached, ImageSource, accepts_size, agreement_of_view, clean_logits
from ray_adaplr.stages.warm_start import (
    kept_too_few,
    soften,
    surest_kept,
    warm_start,
    with_some_target_statistics,
    with_target_statistics,
)
from ray_adaplr.storage.inferred import Inferred

TOGETHER = (
    "The targets were labelled as one: alone, each needs {} images, own guest images and no file of class shares."
)
NO_SHIFT = (
    "There is no shift: the images look like those that the source model was trained on (distance {:.4f}, below {}). "
    "Its own labels are refined, and the target model keeps most of its weights. What warm_start, diversity, "
    "keep_source and an equal prior say does not count; set on_no_shift=adapt to adapt as usual."
)
_ADAPTED = " In its place the model took over the target's BatchNorm statistics."
_AS_IT_CAME = " In its place the source model goes on unchanged."
_MENDED = 0.15
"""Cohen's kappa, by which more of a model's labels follow from its features with the target's BatchNorm statistics than
without. 150 images of PACS, 33 pairs: seven gain more, and have 8 to 19 points more right labels with them; the others
have 17 points fewer to 13 more."""
LEAST_PER_CLASS = 3  # images of each of several targets; 37 paintings of seven classes were enough
FIRST_IMAGES = 64  # enough to see a wrong normalisation; a second of a ResNet-50 on one core


@dataclass(frozen=True)
class Glance:
    """What is known of the sources and of guests before a source is warmed."""

    probs: Tensor  # of all as they came, [n, C]
    sources: list[Classifier]  # as their warm starts begin
    enlarged: bool  # whether labels are read off enlarged images
    outlook: Outlook
    warnings: list[str]
    shift: float | None  # of a single source and target; None: not known
    spared: bool = False  # there is none, and the source model is hardly changed
    asked: Sequence[int] = ()  # which of the guests are to see the images
    beside: tuple[Tensor, Voter] | None = None  # what they are judged beside: labels, [n, C], and a source's features
    guests: list[Voter] = field(default_factory=list)  # those that stay
    remarks: Sequence[str] = ()  # a sentence on each guest


@dataclass(frozen=True)
class Warmed:
    """A source model after its warm start, or as it was, with the reason."""

    model: Classifier
    dropped: str = ""  # why its warm start was, and what the run does in its place
    as_it_came: bool = False  # BatchNorm's statistics too


@dataclass(frozen=True)
class Inference:
    """How first labels are made, as it is sent to the processes that make them."""

    store_paths: Sequence[str]
    config: Config  # resolved
    device: str
    cache: DeviceCache = USUAL_CACHE
    checkpoints: str | None = None  # where the state of each warm start is kept; None keeps none
    guest_paths: Sequence[str] = ()  # stores of the same images in a size for guests; none: they look at the same ones
    shares: Tensor | None = None  # of the classes, [C], where a file holds them
    taught: bool = False  # labels are given, which say what no model knows: it is adapted, shift or not

    def by_target(self, num_classes: int) -> list["Inference"]:
        """This plan for each of several targets, where first labels are learned from the images themselves.

        The BatchNorm statistics, centroids and warm start of a mixture suit none of its parts. They stay together where
        one has too few images, where a file says which class shares they have together, and where guests look at
        stores that were cut otherwise. None is spared, since one model learns all.
        """
        sizes = [len(ImageStore.open(path)) for path in self.store_paths]
        learned = self.config.warm_start == "centroids" and self.shares is None
        larger: list[tuple[str, ...]] = [(path,) for path in self.guest_paths] or [()] * len(sizes)
        if len(sizes) == 1 or not learned or min(sizes) < LEAST_PER_CLASS * num_classes or len(larger) != len(sizes):
            return [self]
        config, pairs = self.config.model_copy(update={"on_no_shift": "adapt"}), zip(self.store_paths, larger)
        return [replace(self, store_paths=(path,), config=config, guest_paths=seen) for path, seen in pairs]

    def look(self, models: list[Classifier], guests: Sequence[Classifier]) -> Glance:
        """Look at all sources, and at the images as they are seen best."""
        config = self.config
        with devices.computing_in(config.precision):
            store, images, device = self._images()
            warnings = check_images(store.read(_first_rows(store)))
            warnings += [warning for model in models for warning in _check_input(model, store, device)]
            probs = check_finite(predictions(models, images, device), store.ids)
            single = len(models) == len(store.paths) == 1
            shift = shift_of(models[0], images.read, len(images), device) if single else None
            may_spare = config.on_no_shift == "spare" and not self.taught
            spared = may_spare and shift is not None and shift < FAMILIAR
            glance = Glance(probs, models, False, Outlook(self.shares), warnings, shift, spared)
            if spared:
                remarks = [NO_SHIFT.format(max(0, shift or 0), FAMILIAR), *(["No guest was asked."] if guests else [])]
                return replace(glance, sources=[model.to("cpu") for model in models], remarks=remarks)
            if guests or config.warm_start == "centroids":  # centroids are only as good as the labels they come from
                enlarged, sources = self._best_look(models, store, images, device)
                glance = replace(glance, enlarged=enlarged, sources=sources)
                believes = config.warm_start == "centroids" and config.prior == "auto" and config.prior_strength > 0
                if guests or believes:
                    start, own = first_look(sources, self._looks(store, images, enlarged), device, config)
                if believes:
                    glance = replace(glance, outlook=outlook_of(probs, start, own))
                if guests:
                    beside = start, own[0] if own else as_voter(sources[0], images, device)
                    refusals = [why_not_asked(guest, self._for_guests(), device) for guest in guests]
                    asked = [number for number, why in enumerate(refusals) if not why]
                    glance = replace(glance, asked=asked, beside=beside, remarks=[why for why in refusals if why])
            if self._pulls_towards_equal_classes(glance.outlook):
                warnings += uneven_classes(probs.argmax(1), probs.shape[1], models[0].spec.classes)
            return replace(glance, sources=[source.to("cpu") for source in glance.sources])

    def show(self, guest: Classifier, rows: slice, name: str) -> Iterator[np.ndarray]:
        """A guest's features of some images, kept with the run by this name; computed anew if its code was mended."""
        kept = load_state(self.checkpoints, name) if self.checkpoints else None
        with devices.computing_in(self.config.precision):
            see = partial(features_of, guest, self._for_guests(), device=devices.usable_device(self.device))
            if kept is None or not torch.allclose(kept["features"][:4], see(np.r_[rows][:4]), rtol=1e-2, atol=1e-3):
                kept = {"features": see(np.r_[rows])}
                if self.checkpoints:
                    save_state(self.checkpoints, name, kept)
        yield kept["features"].numpy()

    def invite(self, seen: Glance, names: list[str], features: list[list[np.ndarray]]) -> Glance:
        """Keep the guests that help, called `names`, by their features of each part of the images."""
        assert seen.beside
        whole = [torch.from_numpy(np.concatenate(parts)) for parts in features]
        staying, remarks = judge(names, whole, *seen.beside, self._for_guests())
        seen = replace(seen, guests=staying, remarks=[*seen.remarks, *remarks], beside=None)
        if not staying:
            return seen
        # They know other things than the sources do, however far these are believed.
        return replace(seen, outlook=replace(seen.outlook, say=NOTHING_KNOWN.say))

    def _for_guests(self) -> ImageStore:
        return ImageStore.open(*(self.guest_paths or self.store_paths))

    def warm_start(self, number: int, given: Classifier, seen: Glance) -> Iterator[int | Warmed]:
        """Warm one source, `given` as it came, and `seen` alone as the warm start begins.

        Yields each epoch's number when it is done, and last what came of it.
        """
        config, [model], voters = self.config, seen.sources, seen.guests
        with devices.computing_in(config.precision):
            store, images, device = self._images()
            warmed, looks = copy.deepcopy(model), self._looks(store, images, seen.enlarged)
            cache = images.read if isinstance(images, Cached) else None
            place = Workplace(device, torch.get_num_threads(), cache=cache)
            state = (self.checkpoints, f"warm-start-{number}") if self.checkpoints else None
            yield from warm_start(warmed, store, config, place, looks, voters, seen.outlook, state)
            after, share = predictions([warmed], images, device), 1.0
            for cold, before in self._unwarmed(given, seen, images, looks, device):
                kept = surest_kept(before, after)
                if not kept_too_few(kept, config.warm_start_trust):
                    yield Warmed(warmed.to("cpu"))
                    return
                share, last = min(share, kept.float().mean().item()), cold
            yield Warmed(
                last.model.to("cpu"),
                f"The warm start was dropped: it kept only {share:.0%} of the labels that the source model was surest "
                f"of (at least {config.warm_start_trust:.0%} are asked for), so it would have done harm.{last.dropped}",
                as_it_came=last.as_it_came,
            )

    def _unwarmed(
        self, given: Classifier, seen: Glance, images: ImageSource, looks: list[ImageSource], device: str
    ) -> Iterator[tuple[Warmed, Tensor]]:
        """What a warm start is judged beside, and gives way to: the source model and its first labels, [n, C].

        As it came, since the target's BatchNorm statistics can ruin a model (art→sketch: 54 % right, with them 39 %).
        Where they mend a poor one, it is heard as it is with them: as it came it is sure of the wrong labels.
        """
        [model], voters, outlook = seen.sources, seen.guests, seen.outlook
        if self.config.warm_start != "centroids":
            cold = with_target_statistics(model, images, device, outlook.shares)
            yield Warmed(cold, _ADAPTED if cold is not model else ""), predictions([cold], images, device)
            return
        came, own = first_look([given], looks, device, self.config)
        yield Warmed(given, _AS_IT_CAME, as_it_came=True), vote(came, [*own, *voters], outlook)
        fitted, own = first_look([model], looks, device, self.config)
        before, now = (kappa_of_features(probs, own[0].looks[0]) for probs in (came, fitted))
        if now - before >= _MENDED:
            yield Warmed(model, _ADAPTED), vote(fitted, [*own, *voters], outlook)

    def label(self, seen: Glance, warmed: list[Warmed]) -> Inferred:
        """The labels to start from, by all models as they are now."""
        config, guests, models = self.config, seen.guests, [each.model for each in warmed]
        names = [
            f"Source {number}, {each.spec.name}: " if len(models) > 1 else "" for number, each in enumerate(models, 1)
        ]
        dropped = [name + each.dropped for name, each in zip(names, warmed) if each.dropped]
        with devices.computing_in(config.precision):
            store, images, device = self._images()
            looks = self._looks(store, images, seen.enlarged)
            start, remarks = seen.probs, [*seen.remarks]
            if len(store.paths) > 1 and config.warm_start == "centroids":
                remarks.append(TOGETHER.format(LEAST_PER_CLASS * seen.probs.shape[1]))
            shares, believed = None, seen.outlook.believed
            if believed and seen.outlook.shares is not None:
                shares = seen.outlook.shares.numpy()
                changes = f"A first vote changes {FEW_CHANGES * (1 - believed):.1%} of the source model's labels"
                remarks.append(f"{changes}: its class shares count for {believed:.0%}, equal ones for the rest.")
            own: list[Voter] = []
            if config.warm_start != "off" or guests or config.flip:
                start, own = first_look(models, looks, device, config)
            as_it_came = all(each.as_it_came for each in warmed)
            outlook = replace(seen.outlook, say=seen.outlook.say / 2) if as_it_came else seen.outlook
            if voters := [*own, *guests]:
                alone = start.argmax(1)
                start = vote(start, voters, outlook)
                changed = share_different(alone, start.argmax(1))
                remarks.append(f"The vote changed {changed:.1%} of the labels that the models give by now.")
            if config.soften < 1:
                for model in models:
                    soften(model, clean_logits(model, images, device), config.soften)
            confidence, labels = seen.probs.max(1)
            return Inferred(
                labels=labels.numpy(),
                confidence=confidence.numpy(),
                start_labels=start.argmax(1).numpy(),
                models=[model.to("cpu") for model in models],
                warnings=[*seen.warnings, *dropped],
                warm=config.warm_start != "off" and not dropped,
                remarks=remarks,
                start_probs=start.numpy() if voters else None,
                shares=shares,
                as_it_came=as_it_came,
                shift=seen.shift,
                spared=seen.spared,
            )

    def _images(self) -> tuple[ImageStore, ImageSource, str]:
        """The store, its images as this process looks at them, and the device they are looked at on."""
        store, device = ImageStore.open(*self.store_paths), devices.usable_device(self.device)
        cached = self.cache.of(store.read, len(store), device)
        return store, store if cached is None else Cached(cached), device

    def _pulls_towards_equal_classes(self, outlook: Outlook) -> bool:
        """Whether anything makes a rare class larger; what expects one to be rare does not."""
        config, shares = self.config, outlook.shares
        prior_pulls = config.prior in ("uniform", "auto") and config.prior_strength > 0
        expects_rare = shares is not None and shares.min().item() < 1 / (2 * len(shares))
        return config.diversity > 0 or (not expects_rare and (prior_pulls or config.warm_start != "off"))

    def _best_look(
        self, models: list[Classifier], store: ImageStore, images: ImageSource, device: str
    ) -> tuple[bool, list[Classifier]]:
        """Whether labels are read off enlarged images, and the models with the statistics of the first size they are.

        They are where every model takes that, and its view of enlarged images foretells the labels of the usual size.
        """
        usual = [with_target_statistics(model, images, device, self.shares) for model in models]
        sizes = sizes_of(store, images, self.config)
        if sizes == [images] or not all(accepts_size(model, size, device) for model in models for size in sizes):
            return False, usual
        labels, _ = first_look(usual, [images], device, self.config)
        fitted = [with_some_target_statistics(model, sizes[0], device) for model in models]
        if min(agreement_of_view(model, sizes[0], labels, device) for model in fitted) < LEAST_AGREEMENT:
            return False, usual
        return True, fitted

    def _looks(self, store: ImageStore, images: ImageSource, enlarged: bool) -> list[ImageSource]:
        return sizes_of(store, images, self.config) if enlarged else [images]


def _first_rows(store: ImageStore) -> np.ndarray:
    return np.unique(np.linspace(0, len(store) - 1, FIRST_IMAGES).astype(np.int64))


def _check_input(model: Classifier, store: ImageStore, device: str) -> list[str]:
    """Warnings about the model's outputs on a few images, spread over the store; what cannot be right is refused."""
    try:
        logits = predict_logits(model, store.read, _first_rows(store), device)
    except (RuntimeError, AssertionError, ValueError) as error:
        if isinstance(error, InputError) or devices.advice(error):
            raise
        size = "x".join(map(str, store.image_shape[:2]))
        why = first_line(error)
        raise InputError(f"{model.spec.name} cannot take images of {size} ({why}); prepare them in its size") from error
    return check_logits(torch.from_numpy(logits), model.spec.num_classes, model.spec.classes)
