"""What a run is: which models are adapted to which images, where, and under which settings.

Settings that the user left open follow network and images, and all of them are checked before any work.
"""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ray_adaplr.config import PRESETS, PRIORS, Config, ScalingConfig
from ray_adaplr.core.models import Classifier, ModelSpec
from ray_adaplr.data.labels import fingerprint
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.limits import Need
from ray_adaplr.errors import InputError, few
from ray_adaplr.storage.folder import Folder, read_file
from ray_adaplr.storage.layout import RUN_FILES
from ray_adaplr.storage.models import fingerprint as fingerprint_of_model
from ray_adaplr.storage.ownership import refuse_to_remove
from ray_adaplr.storage.secrets import redacted

LARGE_NETWORK = 1_000_000  # weights; the smallest that are pretrained on ImageNet have more, a digit CNN has 26,000
READS = ("--source", "--target", "--labels", "--guest", "--guest-images")  # options that name what a run reads
LARGE_IMAGE = 48  # pixels of the shorter side


@dataclass(frozen=True)
class RunPlan:
    """One adaptation, as `adapt` carries it out; an equal plan in the same folder resumes."""

    sources: list[Classifier]  # several are fused, and member k starts from source k mod their number
    store: ImageStore  # the target's images
    out: str  # the run's folder
    config: Config
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    given: np.ndarray | None = None  # labels from a file, int64 [n] with -1 where none: all are a start, some are fixed
    source_names: Sequence[str] = ()  # what run.json calls the sources; empty: by their architectures
    command: str = ""  # the command line, for the record
    guests: Sequence[Classifier] = ()  # frozen networks that vote on the first labels
    guest_store: ImageStore | None = None  # the same images, larger, for them; None: they look at the run's own
    named: Sequence[Any] = ()  # what the user named for each of `READS`, or nothing: `force` must not remove it

    @property
    def spec(self) -> ModelSpec:
        """What all models of the run have in common."""
        return self.sources[0].spec

    @property
    def classes(self) -> list[str]:
        """Class names, as the store or else the model has them."""
        return self.store.classes or list(self.spec.classes)

    @property
    def need(self) -> Need:
        """What the run will take."""
        images = {"images": len(self.store), "classes": self.spec.num_classes, "bytes": 0.0}
        weights = sum(tensor.nbytes for tensor in self.sources[0].state_dict().values())
        return Need.of(images, self.config.n_e, self.config.n_a, self.scaling, weights)

    def origin(self) -> dict[str, Any]:
        """What run.json records beside the settings."""
        larger = {self.guest_store.fingerprint} - {self.store.fingerprint} if self.guest_store else ()
        return {
            "source": [redacted(name) for name in self.source_names] or [source.spec.name for source in self.sources],
            "source_specs": [source.spec.model_dump(exclude={"num_classes"}) for source in self.sources],
            "source_fingerprint": " ".join(map(fingerprint_of_model, self.sources)),
            "target": [redacted(path) for path in self.store.paths],
            "target_fingerprint": self.store.fingerprint,
            "unlabelled": self.store.unlabelled,
            "guest_images": [redacted(path) for path in self.guest_store.paths] if self.guest_store else [],
            "guest_fingerprint": " ".join([*map(fingerprint_of_model, self.guests), *larger]),
            "classes": self.classes,
            "num_classes": self.spec.num_classes,
            "given_labels": fingerprint(self.given),
            "prior_shares": prior_fingerprint(self.config, self.spec.num_classes),
            "command": redacted(self.command),
        }

    def borrowed_names(self) -> str:
        """A sentence where the source models do not name their classes and the target does; else empty."""
        if not self.store.classes or all(source.spec.classes for source in self.sources):
            return ""
        named = few(f"{number} {name}" for number, name in enumerate(self.store.classes))
        return (
            f"the model does not name its classes, and gets the target's by number: {named}; if its outputs mean "
            "others, name them with --classes"
        )

    def check(self, force: bool) -> None:
        """InputError where `force` would remove what the run reads, or guests look at other images than the run."""
        if force:
            named = {**dict(zip(READS, self.named)), "prior": self.config.prior_file}
            refuse_to_remove(Folder(self.out), RUN_FILES, named)
        if self.guest_store and not self.guest_store.ids.equals(self.store.ids):
            seen, own = (", ".join(store.paths) for store in (self.guest_store, self.store))
            domains = ", with the same --domain for each target" if len(self.store.paths) > 1 else ""
            raise InputError(
                f"guests would look at other images: {seen} must hold the images of {own} under the same names in the "
                f"same order; prepare both from the same files{domains}"
            )


def class_prior(config: Config, inferred_shares: Tensor, believed: Tensor | None = None) -> Tensor | None:
    """The class shares that the prior guard expects of the target, [C], or None when it is off.

    `inferred_shares`, [C], are those of the labels that refinement starts from; `believed` ones, [C], are for the prior
    `auto`. InputError for a prior file that is missing or does not hold one share for each class.
    """
    num_classes = len(inferred_shares)
    if config.prior == "off" or config.prior_strength == 0:
        return None
    if config.prior == "auto" and believed is not None:
        return believed
    if config.prior in ("uniform", "auto"):
        return torch.full((num_classes,), 1 / num_classes)
    if config.prior == "inferred":
        return inferred_shares.clamp_min(1e-3)
    if redacted(config.prior) != config.prior:
        raise InputError(
            f"prior={redacted(config.prior)}: keys do not belong into settings, which a run writes down; give them by "
            "the environment (AWS_ACCESS_KEY_ID, …)"
        )
    try:
        shares = torch.from_numpy(np.loadtxt(io.BytesIO(read_file(config.prior, "prior")), dtype=np.float32, ndmin=1))
    except ValueError as error:  # not numbers, or an InputError that says why it cannot be read
        why = f" ({error})" if isinstance(error, InputError) else ""
        raise InputError(
            f"prior={config.prior}: not {', '.join(PRIORS)}, nor a file of {num_classes} numbers{why}"
        ) from error
    if shares.shape != (num_classes,) or not (shares > 0).all() or not shares.isfinite().all():
        held = " x ".join(map(str, shares.shape))
        raise InputError(f"prior={config.prior} holds {held} numbers; it needs {num_classes} positive, finite ones")
    return shares / shares.sum()


def file_shares(config: Config, num_classes: int) -> Tensor | None:
    """The class shares of the prior's file, [C], where it is one."""
    return class_prior(config, torch.ones(num_classes)) if config.prior_file else None


def prior_fingerprint(config: Config, num_classes: int) -> str:
    """The fingerprint of these shares; empty where no file holds any."""
    shares = file_shares(config, num_classes)
    return fingerprint(None if shares is None else shares.numpy())


def followed(config: Config, model: Classifier, store: ImageStore) -> Config:
    """Settings with what was left open as network and images ask for it.

    A large network on RGB images of some size is taken for a pretrained one on photographs.
    """
    height, width, channels = store.image_shape
    weights = sum(parameter.numel() for parameter in model.parameters())
    return config.following(weights >= LARGE_NETWORK and channels == 3 and min(height, width) >= LARGE_IMAGE)


def spared(config: Config) -> Config:
    """The settings where there is no shift: nothing pulls labels away from what the source model says of classes."""
    prior = "inferred" if config.prior in ("uniform", "auto") else config.prior
    return config.model_copy(update={"warm_start": "off", "diversity": 0.0, "prior": prior})


def about_photographs(asked: Config, followed: Config) -> str:
    """What follows from a large network on photographs, for the user to know; empty where all was said by the user."""
    later = Config.read_by("infer") | Config.read_by("refine") | Config.read_by("distill")
    kept = {name for name in asked.model_fields_set if getattr(asked, name) == getattr(followed, name)}
    open_before, now = later - kept, json.loads(followed.model_dump_json())
    own = {name: value for name, value in PRESETS["photographs"].items() if name in open_before and now[name] == value}
    named = ", ".join(f"{name} {value}" for name, value in own.items() if name != "defaults")
    return named and f"a large network on photographs: what was left open follows the preset photographs ({named})"


def waiting_guards(config: Config) -> list[str]:
    """Warnings where somebody chose a prior or a diversity, and a kept warm start makes the guards wait."""
    why = "since the warm start was kept; set guards=on to let it act from the start."
    said = []
    if config.prior not in ("uniform", "auto", "off") and config.prior_strength > 0:
        acts_later = config.on_harm == "guard" and not config.gamma_per_class
        does = "waits for an alarm" if acts_later else "does not act"
        said.append(f"prior={redacted(config.prior)} {does}, {why}")
    if config.diversity not in (0, Config().diversity):
        said.append(f"diversity={config.diversity:g} does not act, {why}")
    return said


def without_effect(plan: RunPlan, followed: Config) -> list[str]:
    """Warnings about settings that were asked for and cannot act, or keep others from acting."""
    said, asked = [], plan.config.model_fields_set
    if followed.warmup >= followed.epochs:
        said.append(
            f"Refinement changes no label: the first change comes after warmup={followed.warmup} epochs, and there are "
            f"{followed.epochs}; set warmup below epochs."
        )
    if "keep_source" in asked and followed.keep_source and len(plan.sources) > 1:
        said.append("keep_source does not act: there are several source models to keep.")
    if "prior" in asked and followed.prior == "auto" and followed.warm_start != "centroids":
        said.append("prior=auto expects equal classes here: to believe the source's it needs warm_start=centroids.")
    if "enlarge" in asked and followed.warm_start != "centroids" and not plan.guests:
        said.append("enlarge does not act: it needs warm_start=centroids or a guest.")
    if followed.n_e > 1 and followed.augmentations == "saug" and (followed.residuals, followed.loss) != ("drl", "nel"):
        said.append(
            f"All {followed.n_e} members see the same labels and the same augmentations, so those of one source model "
            "are copies of each other; set n_e=1, or augmentations=daug."
        )
    return said


def check_settings(config: Config, num_classes: int) -> Config:
    """Settings resolved for a number of classes; InputError, before any work, for what they cannot be."""
    resolved = config.resolve(num_classes)
    class_prior(resolved, torch.ones(num_classes))
    return resolved
