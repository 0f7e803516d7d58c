"""A source model: plain supervised training on one labelled store, or on several as one aggregated source."""

import copy

import numpy as np

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier, ModelSpec, build
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.engine import make_engine
from ray_adaplr.errors import InputError
from ray_adaplr.stages.supervised import Lesson, Training, train
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.models import SPEC, WEIGHTS, load_model


def pretrain(
    store: ImageStore,
    out: str,
    start: ModelSpec | Classifier,
    config: Config,
    scaling: ScalingConfig,
    *,
    start_name: str = "scratch",
    force: bool = False,
    progress: Progress | None = None,
) -> Classifier:
    """Train a source model and write it to `out`; the same call again goes on, or ends at once when it is done.

    Args:
        store: labelled images.
        out: the model's folder.
        start: the architecture, or a network to begin with, which need not have a name that can be built.
        config: settings (`pretrain_*`, `batch_size`, `weight_decay`, augmentation, `seed`).
        scaling: where it runs.
        start_name: what the start is, for the record: a model of another start is not taken for this one.
        force: train again although a model is there.
        progress: who is told.

    Raises:
        InputError: when the store has no labels, or the folder holds a model trained otherwise.
    """
    progress = progress or Progress(quiet=True)
    truth = store.ground_truth()
    if truth is None:
        raise InputError(f"{', '.join(store.paths)} has no labels; a source model needs them")
    folder, settings = Folder(out), config.pretraining()
    start = copy.deepcopy(start) if isinstance(start, Classifier) else build(start, config.seed)
    notes = {"trained_on": store.fingerprint, "settings": repr(settings), "start": start_name}
    if force:
        for name in (SPEC, WEIGHTS, "checkpoints"):
            folder.delete(name)
    if folder.exists(SPEC):
        if folder.read_json(SPEC) != {**start.spec.model_dump(mode="json"), "notes": notes}:
            raise InputError(f"{out} holds a model of another kind, or trained on other data or settings; choose "
                             "another --out, or remove it")  # fmt: skip
        progress.say(f"already done: {out}")
        return load_model(out, like=start)
    progress.stage("pretrain", settings.epochs)
    lesson = Lesson(tuple(store.paths), np.array(truth), np.arange(len(store)))
    with make_engine(scaling, 1, folder.base.rsplit("/", 1)[-1]) as engine:
        training = Training(
            start, lesson, settings, engine.device, scaling.threads, folder.uri, (folder / "checkpoints").uri,
            "pretrain", notes,
        )  # fmt: skip
        for epoch, loss in train(training, engine, scaling.distill_workers, scaling.max_restarts):
            progress.step(epoch + 1, loss=f"{loss:.3f}")
    folder.delete("checkpoints")
    progress.close()
    return load_model(out, like=start)
