"""Settings of a run: typed, frozen, flat, every rule checked here.

What changes the result is in `Config`, where and how it runs is in `ScalingConfig`; presets are in `presets.toml`. Each
setting carries its meaning, its range and the stages that read it. No torch here, so that `--help` answers at once.
"""

import contextlib
import json
import os
import sys
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from ray_adaplr.errors import Checked, InputError, checked_model, nearest, option

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PRIORS = ("uniform", "auto", "inferred", "off")  # what `prior` may be besides a file
STAGES = ("pretrain", "infer", "refine", "distill")
_ALL = "pretrain infer refine distill"


def _setting(default: Any, stages: str, meaning: str, **rules: Any) -> Any:
    """A field that says which stages read it."""
    return option(default, meaning, json_schema_extra={"stages": [*stages.split()]}, **rules)


class Config(Checked):
    """All settings that change the result. The defaults are the `robust` preset; symbols are the paper's."""

    seed: int = _setting(0, _ALL, "seed of every random draw", ge=0, lt=2**63)
    defaults: Literal["auto", "photographs", "plain"] = _setting(
        "auto", _ALL, "preset for settings left open; auto: photographs for a large network on photographs"
    )

    # The method (paper, section 3)
    alpha: float = _setting(0.9, "refine distill", "a label is high-confidence above this", gt=0, lt=1)
    n_e: int = _setting(3, "refine distill", "ensemble members", ge=1, le=1000)
    n_rl: Annotated[int, Field(ge=1)] | Literal["auto"] = _setting("auto", "refine", "residual labels per member")
    n_a: int = _setting(10, "refine", "epochs the logits are averaged over", ge=1, le=1000)
    epochs: int = _setting(60, "refine", "epochs of refinement", ge=1, le=10**6)
    stop: Literal["epochs", "auto"] = _setting(
        "epochs", "refine distill", "auto: end when a label-free score stalls, and ship the best labels and model by it"
    )
    loss: Literal["nel", "pl"] = _setting("nel", "refine", "nel: negative ensemble learning; pl: cross entropy")
    residuals: Literal["auto", "drl", "srl"] = _setting(
        "auto", "refine", "residual labels of the members: drl disjoint, srl the same; auto: srl where classes are few"
    )
    augmentations: Literal["daug", "saug"] = _setting("daug", "refine", "augmentations: daug one each, saug shared")
    member_weights: tuple[float, ...] | None = _setting(None, "refine", "weights of votes, one per member; default: 1")
    fresh_head: bool = _setting(False, "refine", "members start with a new head instead of the source's")
    zero_fill: bool = _setting(False, "refine", "average as if empty history slots held zeros")
    average: Literal["logits", "probabilities"] = _setting("logits", "refine", "what is averaged over the epochs")
    logits_from: Literal["train", "clean"] = _setting("train", "refine", "votes from the training pass or a clean one")
    probabilities: bool = _setting(False, "refine", "write the probability of every class into the files of labels")

    # Guards against class extinction; all off is the paper's rule
    guards: Literal["auto", "on"] = _setting(
        "auto", "refine", "auto: prior and diversity act where no warm start was kept, the prior also after an alarm"
    )
    warmup: int = _setting(3, "refine", "epochs before the first reassignment", ge=0)
    prior: str = _setting("uniform", "infer refine", "class shares: uniform, auto, inferred, off or FILE", min_length=1)
    prior_strength: float = _setting(0.5, "infer refine", "0 ignores the prior, 1 corrects fully", ge=0, le=1)
    gamma_per_class: bool = _setting(False, "refine", "a threshold for each class instead of one for all")
    diversity: float = _setting(0.2, "infer refine", "weight of the batch-diversity term in the members' loss", ge=0)
    on_harm: Literal["guard", "stop", "off"] = _setting(
        "guard", "refine distill", "when classes die out: go back and guard each class, or go back and stop"
    )
    on_no_shift: Literal["spare", "adapt"] = _setting(
        "spare", "infer", "where images look like the source's own: change its model little, or as usual"
    )
    collapse_share: float = _setting(0.3, "refine", "alarm below this share of a class's first size or 1/C", ge=0, lt=1)

    # The start, before refinement
    warm_start: Literal["off", "im", "centroids"] = _setting(
        "im", "infer", "im: information maximisation, head frozen; centroids: beside it a vote of the images' features"
    )
    warm_start_epochs: int = _setting(10, "infer", "epochs of the warm start", ge=1)
    warm_start_lr: float | None = _setting(None, "infer", "learning rate of the warm start; default: lr", gt=0)
    warm_start_trust: float = _setting(0.93, "infer", "drop a warm start that keeps fewer sure labels", ge=0, le=1)
    enlarge: tuple[Annotated[float, Field(ge=1, le=4)], ...] = _setting(
        (1.0,), "infer", "with centroids or a guest, first labels come from images enlarged by these", min_length=1
    )
    soften: float = _setting(1.0, "infer", "how sure members start at most: 0 is chance, 1 as it is", gt=0, le=1)

    # Training of all networks; lr, lr_head and schedule are the members' and the warm start's
    batch_size: int = _setting(64, _ALL, "images per step", ge=2, le=2**20)
    lr: float = _setting(1e-3, "infer refine", "learning rate of the feature extractor", gt=0)
    lr_head: float = _setting(1e-3, "infer refine", "learning rate of the head", gt=0)
    weight_decay: float = _setting(5e-4, _ALL, "decay of the weights towards zero", ge=0)
    schedule: Literal["cosine", "constant"] = _setting("cosine", "infer refine", "course of the learning rate")
    precision: Literal["fp32", "bf16", "fp16", "auto"] | None = _setting(
        None, _ALL, "what networks compute in; auto: the faster, by a measurement; default: bf16 on GPUs made for it"
    )
    compile: bool = _setting(False, _ALL, "torch.compile the networks that train; for GPUs and long runs")
    crop: tuple[float, float] = _setting((0.5, 1.0), "pretrain infer refine", "share of the area that a crop keeps")
    rotation: float = _setting(10.0, _ALL, "largest rotation, in degrees either way", ge=0, le=180)
    translation: float = _setting(0.05, _ALL, "largest shift, as a share of the image, either way", ge=0, le=1)
    zoom: tuple[float, float] = _setting((0.9, 1.1), _ALL, "smallest and largest scale factor")
    shear: float = _setting(5.0, _ALL, "largest shear, in degrees either way", ge=0, le=60)
    blur: float = _setting(0.3, _ALL, "probability of Gaussian blur", ge=0, le=1)
    colour: float = _setting(0.4, _ALL, "strength of brightness, contrast and saturation changes", ge=0, le=1)
    hue: float = _setting(0.05, _ALL, "strength of hue changes", ge=0, le=0.5)
    invert: float = _setting(0.0, _ALL, "probability of the negative", ge=0, le=1)
    palette: float = _setting(0.0, _ALL, "probability that black and white become random colours", ge=0, le=1)
    flip: float = _setting(0.0, _ALL, "probability of the mirror image, left for right", ge=0, le=1)

    # The source model
    pretrain_epochs: int = _setting(12, "pretrain", "epochs of the source model", ge=1)
    pretrain_lr: float = _setting(1e-3, "pretrain", "learning rate of the source model", gt=0)
    pretrain_augment: bool = _setting(True, "pretrain", "augment the source's images: its first labels are then better")
    label_smoothing: float = _setting(0.0, "pretrain", "share of each label spread over all classes", ge=0, lt=1)

    # The target model
    distill_epochs: int = _setting(30, "distill", "epochs of the target model", ge=1)
    distill_on: Literal["hcs", "all", "weighted", "soft"] = _setting(
        "weighted", "distill", "high-confidence samples, all, all by confidence, or soft: sharpened probabilities"
    )
    distill_start: Literal["member", "source", "average"] = _setting("member", "distill", "what the target starts from")
    keep_source: float = _setting(0.0, "distill", "if fewer labels than this changed, keep source weights", ge=0, lt=1)
    distill_lr: float = _setting(1e-3, "distill", "learning rate of the target model", gt=0)
    distill_crop: tuple[float, float] = _setting((0.8, 1.0), "distill", "share that a crop keeps for the target model")
    _quick: dict[str, Any] = PrivateAttr({})  # what came from the preset quick alone, and `following` may replace

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch_for_a_number(cls, value: Any, info: Any) -> Any:
        parts = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(part, bool) for part in parts) and cls.model_fields[info.field_name].annotation is not bool:
            raise ValueError("true and false are not values of this setting")
        return value

    @field_validator("prior")
    @classmethod
    def _found_from_any_folder(cls, value: str) -> str:
        return value if value in PRIORS or "://" in value else os.path.abspath(os.path.expanduser(value))

    @field_validator("crop", "distill_crop", "zoom")
    @classmethod
    def _ordered(cls, value: tuple[float, float], info: Any) -> tuple[float, float]:
        if not 0 < value[0] <= value[1]:
            raise ValueError("must be (low, high) with 0 < low <= high")
        if value[1] > 1 and info.field_name != "zoom":
            raise ValueError("is a share of the image's area, so at most 1")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        if self.member_weights is not None and len(self.member_weights) != self.n_e:
            raise ValueError(f"member_weights has {len(self.member_weights)} values for n_e={self.n_e} members")
        if self.distill_on == "soft" and not self.probabilities:
            raise ValueError("distill_on=soft learns from the written probabilities; set probabilities=true")
        if self.average == "probabilities" and self.zero_fill:
            raise ValueError("zero_fill=true: probabilities averaged with zeros do not sum to one; set average=logits")
        if self.average == "probabilities" and min(self.member_weights or (1,)) <= 0:
            raise ValueError(
                f"member_weights={self.member_weights}: average=probabilities needs weights above 0; set average=logits"
            )
        return self

    @classmethod
    def read_by(cls, stage: str) -> set[str]:
        """The names of the settings that a stage reads."""
        fields = cls.model_fields.items()
        return {name for name, field in fields if stage in field.json_schema_extra["stages"]}  # type: ignore

    @classmethod
    def load(
        cls, preset: str = "robust", file: str | Path | None = None, changes: dict[str, Any] | None = None
    ) -> "Config":
        """A preset, then a TOML file's settings over it, then single changes over both.

        InputError for an unknown preset or key (with the nearest name) or a value out of range.
        """
        if preset not in PRESETS:
            raise InputError(f"there is no preset '{preset}'{nearest(preset, PRESETS)}")
        settings: dict[str, Any] = dict(PRESETS[preset])
        for name, value in (given := {**(read_toml(file) if file else {}), **(changes or {})}).items():
            if name not in cls.model_fields:
                raise InputError(f"there is no setting '{name}'{nearest(name, cls.model_fields)}")
            settings[name] = value
        config = checked_model(cls, settings)
        config._quick = {k: v for k, v in PRESETS[preset].items() if preset == "quick" and k not in given}
        return config

    @classmethod
    def load_text(cls, toml: str) -> "Config":
        """Settings that `to_toml` wrote; InputError when somebody has changed them to what cannot be."""
        return cls.load(changes={"defaults": "plain", **read_toml("the run's config.toml", toml.encode())})

    def following(self, photographs: bool) -> "Config":
        """The same with every setting that nobody set as network and images ask for it, unless `defaults` says it.

        What would contradict a setting that somebody did set does not follow; what only the preset quick set does.
        """
        if self.defaults == "auto" and not photographs:
            return self.model_copy(update={"defaults": "plain"})
        if self.defaults == "plain":
            return self
        own = self.model_fields_set - {name for name, value in self._quick.items() if getattr(self, name) == value}
        found = type(self)(**{**self.model_dump(include=own), "defaults": "photographs"})
        for name, value in PRESETS["photographs"].items():
            if name not in found.model_fields_set:
                with contextlib.suppress(InputError):  # a rule of `_consistent`
                    found = type(self)(**found.model_dump(include=found.model_fields_set), **{name: value})
        return found

    def as_decided(self, earlier: "Config") -> "Config":
        """The same with an earlier run's precision, where this leaves it open: a resume does not measure again."""
        is_open = self.precision in (None, "auto") and earlier.precision is not None
        return self.model_copy(update={"precision": earlier.precision}) if is_open else self

    def resolve(self, num_classes: int) -> "Config":
        """The same with n_rl as a number and residuals as drl or srl, checked against the number of classes.

        InputError when the members' residual labels cannot be disjoint although that was asked for.
        """
        if num_classes < 2:
            raise InputError(f"there is {num_classes} class; adaptation needs at least 2")
        residuals = self.residuals
        if residuals == "auto":
            residuals = "drl" if self.n_e < num_classes else "srl"
        shares = self.n_e if residuals == "drl" and self.loss == "nel" else 1
        largest = (num_classes - 1) // shares
        if largest < 1:
            raise InputError(
                f"n_e={self.n_e} needs {self.n_e} residual classes but {num_classes} classes leave {num_classes - 1}; "
                f"set residuals=srl, or use n_e<={num_classes - 1}"
            )
        n_rl = largest if self.n_rl == "auto" else self.n_rl
        if n_rl > largest:
            raise InputError(
                f"n_e={self.n_e}, n_rl={n_rl} needs {shares * n_rl} residual classes but {num_classes} classes leave "
                f"{num_classes - 1}; use n_rl<={largest}"
            )
        return self.model_copy(update={"n_rl": n_rl, "residuals": residuals})

    def remark(self, num_classes: int) -> str:
        """What `resolve` chooses for few classes, for the user to know; empty where the choice is the usual one."""
        if self.loss == "pl" or self.residuals != "auto" or self.n_e < num_classes or self.augmentations == "saug":
            return ""
        return (
            f"{num_classes} classes leave too few residual labels for {self.n_e} members to have their own: all get "
            "the same ones, and differ by their augmentations"
        )

    @property
    def prior_file(self) -> str:
        """The file that `prior` names; empty where it is one of `PRIORS`."""
        return "" if self.prior in PRIORS else self.prior

    def ends_by(self, what: str) -> bool:
        """Whether "harm", or a "score" that stalls, may end refinement early; a reason of old checkpoints, "", may."""
        return {"harm": self.on_harm != "off", "score": self.stop == "auto"}.get(what, True)

    def to_toml(self) -> str:
        """All settings as flat TOML; unset ones are left out."""
        given = {name: value for name, value in self.model_dump().items() if value is not None}
        return "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in given.items())

    def differences(self, other: "Config") -> dict[str, str]:
        """The settings that differ, by name, each as `name: mine -> theirs`; not what my file is too old for."""
        mine, theirs = self.model_dump(), other.model_dump()
        held = {name for name in mine if mine[name] is None} | (self.model_fields_set or mine.keys())
        changed = [name for name in mine if name in held and mine[name] != theirs[name]]
        return {name: f"{name}: {mine[name]} -> {theirs[name]}" for name in changed}


class ScalingConfig(Checked):
    """Where a run works: what each member gets. Of this, `threads`, ranks and `deterministic` change the bits."""

    engine: Literal["ray", "local"] = option("ray", "local: members one after another in this process")
    address: str | None = option(None, "a running cluster; default: $RAY_ADDRESS, else a local Ray")
    gpus_per_member: float | None = option(
        None, "GPUs of each member: a share of one, or 2, 3, …; default: an equal share", ge=0
    )
    ranks_per_member: int | None = option(
        None, "processes that train a member together; default: one, or one per GPU of the member", ge=1
    )
    cpus_per_member: float | None = option(None, "cores per member; default: equal shares, at most 1", gt=0)
    threads: int = option(1, "torch threads of a CPU member; another number gives other bits", ge=1, le=1024)
    device_cache: Literal["auto", "on", "off"] = option(
        "auto", "keep the images on the device; auto: on a GPU, if they take at most a fifth of its memory"
    )
    deterministic: bool = option(False, "on accelerators, kernels that always give the same bits; slower")
    checkpoint_every: int = option(1, "epochs between checkpoints; 0 writes none", ge=0)
    keep_checkpoints: int | None = option(
        None, "checkpoints to keep for good; default: two, which go when the run has ended", ge=1
    )
    placement_timeout: float = option(60.0, "seconds to wait for the members' resources", gt=0)
    wait_for_nodes: float | None = option(
        None, "seconds to wait for an autoscaler's nodes; needs gpus_per_member or cpus_per_member", gt=0
    )
    epoch_timeout: float | None = option(
        None, "seconds until a silent member is hung; default: 6 hours, then 20 times the slowest", gt=0
    )
    max_restarts: int = option(3, "restarts of one member before it counts as lost", ge=0)
    max_lost_members: int = option(0, "members that the run may lose and continue without", ge=0)
    distill_workers: int | None = option(
        None, "ranks that train the source or the target model; default: as many as a member has", ge=1
    )

    @model_validator(mode="after")
    def _possible(self) -> "ScalingConfig":
        gpus, ranks = self.gpus_per_member or 0, self.ranks_per_member
        if gpus > 1 and gpus != int(gpus):
            raise ValueError(f"gpus_per_member={gpus:g}: a member has a share of one GPU, or several whole ones")
        if gpus and ranks is not None and ranks != max(1, gpus):
            raise ValueError(
                f"ranks_per_member={ranks}, gpus_per_member={gpus:g}: each rank has a GPU of its own; leave one out"
            )
        if self.engine == "local" and max(gpus, ranks or 1, self.distill_workers or 1) > 1:
            raise ValueError("several GPUs or ranks for a model need Ray, engine=local is one process; use engine=ray")
        if self.wait_for_nodes and self.gpus_per_member is None and self.cpus_per_member is None:
            raise ValueError("wait_for_nodes needs gpus_per_member or cpus_per_member: nodes to come cannot be counted")
        return self


def _read_presets() -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """The presets' settings, and what each is for."""
    tables = tomllib.loads(resources.files(__package__).joinpath("presets.toml").read_text(encoding="utf-8"))
    about = {name: table.pop("about") for name, table in tables.items()}
    settings: dict[str, dict[str, Any]] = {}
    for name, table in tables.items():
        base = table.pop("based_on", None)
        settings[name] = {**settings.get(base, {}), **table}
    return settings, about


PRESETS, ABOUT_PRESETS = _read_presets()


def read_toml(file: str | Path, content: bytes | None = None) -> dict[str, Any]:
    """A TOML file's settings, where its `content` is not given from the disk; InputError when there are none."""
    try:
        return tomllib.loads((Path(file).read_bytes() if content is None else content).decode())
    except FileNotFoundError as error:
        raise InputError(f"there is no config file {file}") from error
    except OSError as error:
        raise InputError(f"cannot read the config file {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{file} is not TOML: {error}") from error
