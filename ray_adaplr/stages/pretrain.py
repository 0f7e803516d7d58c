"""A source model: plain supervised training on one labelled store, or on several as one aggregated source."""

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier, ModelSpec, build
from ray_adaplr.data.labels import fingerprint
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.engine import Engine, make_engine
from ray_adaplr.engine.training import pretraining
from ray_adaplr.errors import InputError
from ray_adaplr.stages.plan import followed
from ray_adaplr.stages.precision import settled
from ray_adaplr.stages.supervised import RIGHT, Lesson, Training, train
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.layout import CHECKPOINTS, PLAN, PRECISION, SOURCE_MODEL_FILES, SPEC, TRAINING_FILES
from ray_adaplr.storage.lease import hold
from ray_adaplr.storage.models import fingerprint as fingerprint_of_model
from ray_adaplr.storage.models import is_whole, load_model
from ray_adaplr.storage.ownership import check_ours, claim, clear, refuse_to_remove


@dataclass(frozen=True)
class SourcePlan:
    """One training of a source model; an equal plan in the same folder continues with it."""

    store: ImageStore  # labelled images
    out: str  # the model's folder
    start: ModelSpec | Classifier  # an architecture, or a network to begin with, which need not have a name
    config: Config  # `pretrain_*`, `batch_size`, `weight_decay`, augmentation, `seed`
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    start_name: str = "scratch"  # for the record, and to tell `start` from a fresh network


def pretrain(plan: SourcePlan, *, force: bool = False, progress: Progress | None = None) -> Classifier:
    """Train a source model and write it to its folder; the same call again continues, or ends at once when it is done.

    InputError when the store has no labels, or the folder holds a model of another plan, trained or half trained, and
    `force` is not given.
    """
    progress = progress or Progress(quiet=True)
    store, begun, folder = plan.store, plan.start, Folder(plan.out)
    truth = store.ground_truth()
    if truth is None:
        raise InputError(f"{', '.join(store.paths)} has no labels; a source model needs them")
    start = copy.deepcopy(begun).cpu() if isinstance(begun, Classifier) else build(begun, plan.config.seed)
    config = followed(plan.config, start, store)
    notes = {
        "trained_on": store.fingerprint,
        "labels": fingerprint(np.array(truth)),
        "settings": repr((pretraining(config), config.label_smoothing)),
        "start": plan.start_name,
        **({} if plan.start_name == "scratch" else {"start_fingerprint": fingerprint_of_model(start)}),
    }
    if config.precision:
        notes["precision"] = config.precision
    wanted = {**start.spec.model_dump(mode="json"), "notes": notes}
    check_ours(folder, "model")
    if force and plan.start_name not in ("scratch", "published"):
        refuse_to_remove(folder, SOURCE_MODEL_FILES, {"--start": plan.start_name})
    if not force and _is_trained(folder, wanted):
        progress.say(f"already done: {plan.out}")
        return load_model(plan.out, like=start)
    lesson = Lesson(tuple(store.paths), np.array(truth), np.arange(len(store)), smoothing=config.label_smoothing)
    with hold(folder) as held:
        if force:
            clear(held, SOURCE_MODEL_FILES)
        elif _is_trained(held, wanted):  # by somebody who was faster
            return load_model(plan.out, like=start)
        claim(held, "model")
        progress.stage("pretrain", config.pretrain_epochs, None)
        with make_engine(plan.scaling, 1, folder.name, config.batch_size) as engine:
            checkpoints = held / CHECKPOINTS
            config, why = _settled(config, start, store, checkpoints, engine)
            if why:
                progress.say(why)
            training = Training("pretrain", start, lesson, pretraining(config), held.uri, checkpoints.uri, notes)
            checkpoints.write_json(PLAN, wanted)
            for epoch, loss in train(training, engine, plan.scaling):
                progress.step(epoch + 1, loss=f"{loss:.3f}")
        clear(held, TRAINING_FILES)
        if (right := held.read_json(SPEC)["notes"].get(RIGHT)) is not None:
            progress.say(f"right on {right:.1%} of its {len(store):,} training images in the last epoch")
    progress.close()
    return load_model(plan.out, like=start)


def _settled(config: Config, start: Classifier, store: ImageStore, kept: Folder, engine: Engine) -> tuple[Config, str]:
    """Settings with their precision, and a sentence where it was measured now; a resume takes what was measured."""
    if config.precision == "auto" and kept.exists(PRECISION):
        return config.model_copy(update={"precision": kept.read_json(PRECISION)["precision"]}), ""
    config, why = settled(config, start, store, engine)
    if why:
        kept.write_json(PRECISION, {"precision": config.precision})
    return config, why


def _is_trained(folder: Folder, wanted: dict[str, Any]) -> bool:
    """Whether this very model is there; InputError when it is another one, or a training of another one was stopped."""
    # Notes an earlier version did not write count as equal. A missing precision does not: it is the device's usual one.
    filled = {key: value for key, value in wanted["notes"].items() if key != "precision"}
    for name, begun in ((SPEC, ""), (f"{CHECKPOINTS}/{PLAN}", "the begun training of ")):
        if not folder.exists(name):
            continue
        found = {key: value for key, value in folder.read_json(name).items() if key != "digest"}
        noted = filled | found.get("notes", {})
        for note in ("ranks", RIGHT):  # which say nothing of what model it is
            noted.pop(note, None)
        if "scratch" not in (noted["start"], filled["start"]):  # then its weights tell, whatever its file is called
            noted["start"] = filled["start"]
        older = {**wanted, **found, "notes": noted}
        if older != wanted:
            raise InputError(
                f"{folder.uri} holds {begun}a model of another kind, or trained on other data or settings; choose "
                "another --out, or train it again with --force"
            )
    return folder.exists(SPEC) and is_whole(folder)  # a damaged one is trained again
