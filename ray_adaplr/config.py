"""Settings of a run: typed, frozen, flat, every rule checked here.

What changes the result is in `Config`, where and how it runs is in `ScalingConfig`; so two runs with equal `Config`
give the same bits.
"""

import difflib
import json
import sys
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ray_adaplr.core.augment import AugmentSettings
from ray_adaplr.core.learner import TrainSettings
from ray_adaplr.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


Model = TypeVar("Model", bound=BaseModel)


class Config(BaseModel):
    """All settings that change the result. The defaults are the `robust` preset; symbols are the paper's."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    seed: int = Field(0, ge=0)

    # The method (paper, section 3)
    alpha: float = Field(0.9, gt=0, lt=1, description="a label is high-confidence above this")
    n_e: int = Field(3, ge=1, description="ensemble members")
    n_rl: int | Literal["auto"] = Field("auto", description="residual labels a member; auto = floor((C-1)/n_e)")
    n_a: int = Field(10, ge=1, description="epochs the logits are averaged over")
    epochs: int = Field(60, ge=1, description="epochs of refinement")
    stop: Literal["epochs", "auto"] = Field(
        "epochs", description="auto: end when a label-free score stalls, and ship the best labels and model by it"
    )
    loss: Literal["nel", "pl"] = Field("nel", description="nel: negative (with n_rl=1 classic NL); pl: cross entropy")
    residuals: Literal["drl", "srl"] = Field("drl", description="disjoint or same residual labels for the members")
    augmentations: Literal["daug", "saug"] = Field("daug", description="different or same for the members")
    member_weights: tuple[float, ...] | None = Field(None, description="the paper's alpha^k; default all 1")
    fresh_head: bool = Field(False, description="members start with a new head instead of the source's")
    zero_fill: bool = Field(False, description="average as if empty history slots held zeros")
    logits_from: Literal["train", "clean"] = Field("train", description="the augmented pass, or a clean one after it")
    history_dtype: Literal["float16", "float32"] = "float16"

    # Guards against class extinction; all off is the paper's rule
    guards: Literal["auto", "on"] = Field(
        "auto", description="auto: prior and diversity act where no warm start was kept, the prior also after an alarm"
    )
    warmup: int = Field(3, ge=0, description="epochs before the first reassignment")
    prior: str = Field("uniform", description="expected class shares: uniform, inferred, off, or a file of numbers")
    prior_strength: float = Field(0.5, ge=0, le=1)
    gamma_per_class: bool = False
    diversity: float = Field(0.2, ge=0, description="weight of the batch-diversity term in the members' loss")
    on_harm: Literal["guard", "stop", "off"] = Field(
        "guard", description="when classes die out: go back and switch all guards on, or go back and stop"
    )
    collapse_share: float = Field(
        0.3, ge=0, lt=1, description="alarm when a class falls below this share of its inferred size or of 1/C"
    )

    # The start, before refinement
    infer_views: int = Field(
        1, ge=1, description="1: the first labels are of the clean images; more: a vote over so many augmented views"
    )
    bn_adapt: bool = Field(False, description="re-estimate BatchNorm statistics on the target before inferring")
    warm_start: Literal["off", "im"] = Field("im", description="im: information maximisation with a frozen head")
    warm_start_epochs: int = Field(10, ge=1)
    warm_start_trust: float = Field(
        0.93, ge=0, le=1, description="drop a warm start that keeps less of the source's surest tenth of labels"
    )

    # Members' training
    batch_size: int = Field(64, ge=2)
    lr: float = Field(1e-3, gt=0, description="feature extractor")
    lr_head: float = Field(1e-3, gt=0)
    weight_decay: float = Field(5e-4, ge=0)
    schedule: Literal["cosine", "constant"] = "cosine"
    compile: bool = Field(False, description="torch.compile the networks that train; for GPUs and long runs")
    crop: tuple[float, float] = Field((0.5, 1.0), description="area of the random crop")
    rotation: float = Field(10.0, ge=0, le=180, description="degrees either way")
    translation: float = Field(0.05, ge=0, le=1, description="share of the image either way")
    scaling: tuple[float, float] = (0.9, 1.1)
    shear: float = Field(5.0, ge=0, le=60, description="degrees either way")
    blur: float = Field(0.3, ge=0, le=1, description="probability of Gaussian blur")
    colour: float = Field(0.4, ge=0, le=1, description="strength of brightness, contrast and saturation changes")
    hue: float = Field(0.05, ge=0, le=0.5)
    invert: float = Field(0.0, ge=0, le=1, description="probability of the negative")
    palette: float = Field(
        0.0, ge=0, le=1, description="probability that black and white become two random colours: drawn shapes"
    )

    # The source model (pretrain)
    pretrain_epochs: int = Field(12, ge=1)
    pretrain_lr: float = Field(1e-3, gt=0)
    pretrain_augment: bool = Field(True, description="a source trained with augmentation starts the vote better")

    # The target model
    distill_epochs: int = Field(30, ge=1)
    distill_on: Literal["hcs", "all", "weighted"] = Field(
        "weighted", description="high-confidence samples, all, or all weighted by confidence"
    )
    distill_start: Literal["member", "source", "average"] = "member"
    distill_lr: float = Field(1e-3, gt=0)
    distill_crop: tuple[float, float] = (0.8, 1.0)

    @field_validator("crop", "distill_crop", "scaling")
    @classmethod
    def _ordered(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 < value[0] <= value[1]:
            raise ValueError("must be (low, high) with 0 < low <= high")
        return value

    @field_validator("crop", "distill_crop")
    @classmethod
    def _share_of_area(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[1] > 1:
            raise ValueError("is a share of the image's area, so at most 1")
        return value

    @field_validator("n_rl")
    @classmethod
    def _positive(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError("must be at least 1, or auto")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        if self.member_weights is not None and len(self.member_weights) != self.n_e:
            raise ValueError(f"member_weights has {len(self.member_weights)} values for n_e={self.n_e} members")
        return self

    @classmethod
    def load(
        cls, preset: str = "robust", file: str | Path | None = None, changes: dict[str, Any] | None = None
    ) -> "Config":
        """A preset, then a TOML file's settings over it, then single changes over both.

        Raises:
            InputError: for an unknown preset or key (with the nearest name) or a value out of range.
        """
        if preset not in PRESETS:
            raise InputError(f"there is no preset '{preset}'{_nearest(preset, PRESETS)}")
        settings: dict[str, Any] = dict(PRESETS[preset])
        for new in (_read_toml(file) if file else {}, changes or {}):
            for name in new:
                if name not in cls.model_fields:
                    raise InputError(f"there is no setting '{name}'{_nearest(name, cls.model_fields)}")
            settings |= new
        return checked_model(cls, settings)

    @classmethod
    def load_text(cls, toml: str) -> "Config":
        """Settings that `to_toml` wrote; InputError when somebody has changed them to what cannot be."""
        try:
            return cls.load(changes=tomllib.loads(toml))
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"the run's config.toml is no TOML: {error}") from error

    def resolve(self, num_classes: int) -> "Config":
        """The same with n_rl as a number, checked against the number of classes.

        Raises:
            InputError: when the members' residual labels cannot be disjoint.
        """
        shares = self.n_e if self.residuals == "drl" and self.loss == "nel" else 1
        largest = (num_classes - 1) // shares
        if num_classes < 2:
            raise InputError(f"there is {num_classes} class; adaptation needs at least 2")
        if largest < 1:
            raise InputError(f"n_e={self.n_e} needs {self.n_e} residual classes but {num_classes} classes leave "
                             f"{num_classes - 1}; use n_e<={num_classes - 1}")  # fmt: skip
        n_rl = largest if self.n_rl == "auto" else self.n_rl
        if n_rl > largest:
            raise InputError(f"n_e={self.n_e}, n_rl={n_rl} needs {shares * n_rl} residual classes but {num_classes} "
                             f"classes leave {num_classes - 1}; use n_rl<={largest}")  # fmt: skip
        return self.model_copy(update={"n_rl": n_rl})

    def to_toml(self) -> str:
        """All settings as flat TOML; unset ones are left out."""
        given = {name: value for name, value in self.model_dump().items() if value is not None}
        return "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in given.items())

    def differences(self, other: "Config") -> list[str]:
        """`name: mine -> theirs` for every setting that differs."""
        mine, theirs = self.model_dump(), other.model_dump()
        return [f"{name}: {mine[name]} -> {theirs[name]}" for name in mine if mine[name] != theirs[name]]

    def augment(self, crop: tuple[float, float]) -> AugmentSettings:
        """The augmentation's settings with the given crop area."""
        return AugmentSettings(
            crop=crop, degrees=self.rotation, translate=self.translation, scale=self.scaling, shear=self.shear,
            blur_probability=self.blur, brightness=self.colour, contrast=self.colour, saturation=self.colour,
            hue=self.hue, invert_probability=self.invert, palette_probability=self.palette,
        )  # fmt: skip

    def member_training(self) -> TrainSettings:
        """How members train during refinement."""
        return TrainSettings(
            seed=self.seed, epochs=self.epochs, batch_size=self.batch_size, lr=self.lr, lr_head=self.lr_head,
            weight_decay=self.weight_decay, schedule=self.schedule, augment=self.augment(self.crop),
            compile=self.compile,
        )  # fmt: skip

    def pretraining(self) -> TrainSettings:
        """How the source model trains."""
        return TrainSettings(
            seed=self.seed, epochs=self.pretrain_epochs, batch_size=self.batch_size, lr=self.pretrain_lr,
            lr_head=self.pretrain_lr, weight_decay=self.weight_decay, schedule="cosine",
            augment=self.augment(self.crop) if self.pretrain_augment else None, compile=self.compile,
        )  # fmt: skip

    def distill_training(self) -> TrainSettings:
        """How the target model trains."""
        return TrainSettings(
            seed=self.seed, epochs=self.distill_epochs, batch_size=self.batch_size, lr=self.distill_lr,
            lr_head=self.distill_lr, weight_decay=self.weight_decay, schedule="cosine",
            augment=self.augment(self.distill_crop), compile=self.compile,
        )  # fmt: skip


class ScalingConfig(BaseModel):
    """Where a run works: what each member gets. Changes the speed, never the result."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    engine: Literal["ray", "local"] = Field("ray", description="local: members one after another in this process")
    address: str | None = Field(None, description="a running cluster; default: start a local Ray")
    gpus_per_member: float | None = Field(None, ge=0, description="default: an equal share of what there is, at most 1")
    wait_for_nodes: float | None = Field(
        None, gt=0, description="seconds to wait for nodes that an autoscaler brings; needs gpus_ or cpus_per_member"
    )
    cpus_per_member: float | None = Field(None, gt=0)
    threads: int = Field(1, ge=1, description="torch threads of a CPU member; part of what fixes the bits")
    device_cache: Literal["auto", "on", "off"] = Field(
        "auto", description="keep the images on the device; auto: on a GPU of which they fill a fifth at most"
    )
    checkpoint_every: int = Field(1, ge=0, description="epochs between checkpoints; 0 writes none")
    keep_checkpoints: int = Field(2, ge=1)
    placement_timeout: float = Field(60.0, gt=0, description="seconds to wait for the members' resources")
    epoch_timeout: float | None = Field(None, gt=0, description="seconds after which a silent member counts as hung")
    max_restarts: int = Field(3, ge=0, description="restarts of one member before it counts as lost")
    max_lost_members: int = Field(0, ge=0, description="members the run may lose and go on without")
    distill_workers: int | None = Field(
        None, ge=1, description="data-parallel workers of pretrain and distill; default: every free GPU, on CPUs one"
    )

    @model_validator(mode="after")
    def _possible(self) -> "ScalingConfig":
        if (self.gpus_per_member or 0) > 1:
            raise ValueError(
                f"gpus_per_member={self.gpus_per_member:g}: a member trains on one GPU at most; use 1 and a smaller "
                "batch_size, or a smaller network"
            )
        if self.wait_for_nodes and self.gpus_per_member is None and self.cpus_per_member is None:
            raise ValueError("wait_for_nodes needs gpus_per_member or cpus_per_member: nodes to come cannot be counted")
        return self

    @classmethod
    def checked(cls, **settings: Any) -> "ScalingConfig":
        """From command-line values; InputError for one out of range."""
        return checked_model(cls, settings)


_PAPER: dict[str, Any] = dict(
    warmup=0, prior="off", prior_strength=0.0, gamma_per_class=False, diversity=0.0, batch_size=32, lr=1e-5,
    lr_head=1e-4, schedule="constant", crop=(0.08, 1.0), fresh_head=True, zero_fill=True, bn_adapt=False,
    warm_start="off", on_harm="stop", distill_lr=1e-4, distill_crop=(0.08, 1.0), distill_on="hcs",
    distill_start="source",
)  # fmt: skip

PRESETS: dict[str, dict[str, Any]] = {
    "robust": {},
    "quick": {"epochs": 10, "distill_epochs": 5},
    "paper": {**_PAPER, "epochs": 750, "distill_epochs": 200},
    "digit5": {**_PAPER, "epochs": 750, "distill_epochs": 200},
    "digit5-multi-source": {**_PAPER, "epochs": 300, "distill_epochs": 200},
    "pacs": {**_PAPER, "epochs": 200, "distill_epochs": 200},
    "pacs-multi-source": {**_PAPER, "epochs": 100, "distill_epochs": 200},
    "visda": {**_PAPER, "epochs": 150, "distill_epochs": 25},
    "domainnet": {**_PAPER, "epochs": 40, "distill_epochs": 100},
    "domainnet-hard": {**_PAPER, "epochs": 100, "distill_epochs": 100},
}


def parse_setting(text: str) -> tuple[str, Any]:
    """`key=value` from the command line; the value is read as JSON, else taken as a word."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set {text}: write it as key=value, e.g. --set alpha=0.9")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def checked_model(kind: type[Model], settings: dict[str, Any]) -> Model:
    """A model of these settings; InputError with one sentence for the first that is out of range."""
    try:
        return kind(**settings)
    except ValidationError as error:
        first = error.errors()[0]
        where = str(first["loc"][0]) if first["loc"] else ""
        what = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{where}={settings.get(where)!r}: {what[:1].lower()}{what[1:]}" if where else what) from error


def _read_toml(file: str | Path) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(file).read_text())
    except FileNotFoundError as error:
        raise InputError(f"there is no config file {file}") from error
    except OSError as error:
        raise InputError(f"cannot read the config file {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is not TOML: {error}") from error


def _nearest(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean '{near[0]}'?" if near else f"; known are {', '.join(known)}"
