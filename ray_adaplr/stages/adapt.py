"""The whole job: infer, refine, distill, evaluate, each skipped when its result is already in the run's folder."""

import copy
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core import scores
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.refine import RefineState, confidence_of
from ray_adaplr.data.given_labels import fingerprint
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.checkpoint import Checkpoints
from ray_adaplr.engine.engine import Engine, make_engine
from ray_adaplr.engine.gauges import ProgressGauges
from ray_adaplr.errors import InputError
from ray_adaplr.report.tensorboard import BoardWriter
from ray_adaplr.stages.distill import distill_lesson, distill_start
from ray_adaplr.stages.evaluate import check_fits, evaluation
from ray_adaplr.stages.infer import infer, with_given
from ray_adaplr.stages.prior import class_prior
from ray_adaplr.stages.record import EpochRecorder
from ray_adaplr.stages.refine import EpochOutcome, new_state, refine
from ray_adaplr.stages.ship import choose_model, score_models, ship_best_labels
from ray_adaplr.stages.summary import draw_figures, summarise, write_page
from ray_adaplr.stages.supervised import Training, train
from ray_adaplr.storage.layout import (
    CHECKPOINTS,
    ENSEMBLE,
    INFERRED,
    LABELS,
    REPORT,
    SHIPPED,
    SUMMARY,
    TARGET_MODEL,
    TENSORBOARD,
)
from ray_adaplr.storage.models import load_model, save_model
from ray_adaplr.storage.run import Inferred, Result, Run

Stage = Literal["infer", "refine", "distill"]


class Adaptation:
    """One run of the pipeline.

    Args:
        sources: the source models; several are fused, and member k starts from model k mod their number.
        store: the target images.
        run: the folder.
        config: settings, resolved for the number of classes.
        scaling: where it runs.
        progress: who is told.
        given: labels from a file, int64 [n] with -1 where none, or None.
        watch: is called with each epoch's line of metrics.jsonl, once it is written.
    """

    def __init__(
        self, sources: list[Classifier], store: ImageStore, run: Run, config: Config, scaling: ScalingConfig,
        progress: Progress, given: np.ndarray | None, watch: Callable[[dict[str, Any]], None],
    ) -> None:  # fmt: skip
        self.sources, self.store, self.run = sources, store, run
        self.config, self.scaling, self.progress = config, scaling, progress
        self.given, self.watch = given, watch
        self.num_classes = sources[0].spec.num_classes
        self.seconds: dict[str, float] = {}

    def execute(self, until: Stage) -> None:
        """Run the stages that are not done yet, up to and with `until`; drawing goes on aside while others train."""
        with ThreadPoolExecutor(1) as aside:
            with make_engine(self.scaling, self.config.n_e, self.run.name) as engine:
                inferred = self._infer(engine)
                if until != "infer":
                    self._refine(engine, inferred)
                if until == "distill":
                    figures = aside.submit(draw_figures, self.run, self.store, self.sources[0].spec)
                    self._distill(engine, inferred)
                    self._choose_model(engine, inferred)
                    scores = self._evaluate(engine)
                    summary = aside.submit(self._summarise, scores, inferred, figures)  # a local Ray takes 1.5 s to end
            if until == "distill":
                summary.result()

    def _infer(self, engine: Engine) -> Inferred:
        if not self.run.done(INFERRED):
            started = time.monotonic()
            warm = self.config.warm_start_epochs * len(self.sources) if self.config.warm_start != "off" else 0
            self.progress.stage("infer", warm + 1)
            for item in engine.stream(infer, self.sources, self.store.paths, self.config, engine.device):
                if isinstance(item, Inferred):
                    self.run.write_inferred(self.store.ids, with_given(item, self.given))
                self.progress.step(item if isinstance(item, int) else warm + 1)
            self.seconds["infer"] = time.monotonic() - started
        return self.run.read_inferred(self.sources)

    def _refine(self, engine: Engine, inferred: Inferred) -> None:
        if self.run.done(LABELS):
            return
        config = self.config
        checkpoints = Checkpoints(
            self.run.folder / CHECKPOINTS, self.scaling.checkpoint_every, self.scaling.keep_checkpoints
        )
        state = new_state(inferred.start_labels, self.num_classes, config)
        state = checkpoints.restore(state) or state
        if state.epoch:
            self.progress.say(f"resuming after epoch {state.epoch - 1}")
        guarded = config.guards == "on" or not inferred.warm
        members = config if guarded else config.model_copy(update={"diversity": 0.0})
        ensemble = engine.ensemble(members, self.store, inferred.models, checkpoints)
        shares = scores.class_shares(torch.from_numpy(inferred.start_labels), self.num_classes)
        recorder = EpochRecorder(config, shares, self.store.ground_truth())
        board, gauges = self._board(state.epoch), ProgressGauges(self.run.name)
        self.progress.stage("refine", config.epochs, state.epoch)

        def on_epoch(outcome: EpochOutcome) -> dict[str, Any]:
            line = recorder.line(outcome)
            self.run.write_metrics([*state.metrics, line])
            gauges.epoch(line)
            self.watch(line)
            if board:
                changed = np.flatnonzero((outcome.labels != outcome.before).numpy())[:36]
                board.epoch(line, outcome.confidence.numpy(), self.store.read(changed) if len(changed) else None)
            self.progress.step(
                outcome.epoch + 1, gamma=f"{line['gamma']:.3f}", reassigned=f"{line['reassigned']:.2%}",
                images_per_s=f"{line['images_per_s']:,.0f}",
            )  # fmt: skip
            return line

        prior = class_prior(config, shares)
        fixed = None if inferred.fixed is None else torch.from_numpy(inferred.fixed.copy())
        refine(ensemble, state, config, shares, prior, checkpoints, on_epoch, fixed, guarded)
        if state.stopped:
            self.progress.say(f"stopped early: {state.stopped}")
        if config.stop == "auto":
            confidence, choice = ship_best_labels(state, config.warmup, torch.from_numpy(inferred.start_labels))
            self.run.folder.write_json(SHIPPED, choice)
        else:
            confidence = confidence_of(state.labels, state.history.probabilities())
        if fixed is not None:
            confidence[fixed] = 1.0
        if board:
            board.close()
        for k, model in ensemble.models().items():
            save_model(self.run.folder / f"{ENSEMBLE}/{k}", model)
        ensemble.close()
        columns = {
            "id": self.store.ids,
            "initial_label": inferred.labels.astype(np.int32),
            "refined_label": state.labels.int().numpy(),
            "confidence": confidence.numpy(),
            "high_confidence": (confidence > config.alpha).numpy(),
            "last_changed_epoch": _last_changed(state, inferred),
        }
        self.run.write_labels(pa.table(columns))

    def _distill(self, engine: Engine, inferred: Inferred) -> None:
        if self.run.done(f"{TARGET_MODEL}/model.json"):
            return
        started = clock = time.monotonic()
        config = self.config
        table = self.run.read_labels()
        labels, confidence = table["refined_label"].to_numpy().astype(np.int64), table["confidence"].to_numpy()
        lesson = distill_lesson(self.store, labels, confidence, config)
        members = self._members(inferred)
        start = distill_start(inferred.models[0], members, min(members), config)
        settings = config.distill_training()
        self.progress.stage("distill", settings.epochs)
        folder = self.run.folder
        training = Training(
            start, lesson, settings, engine.device, self.scaling.threads, (folder / TARGET_MODEL).uri,
            (folder / CHECKPOINTS).uri, "distill",
        )  # fmt: skip
        lines = self.run.read_metrics()
        for epoch, loss in train(training, engine, self.scaling.distill_workers, self.scaling.max_restarts):
            seconds, clock = time.monotonic() - clock, time.monotonic()
            lines.append({"stage": "distill", "epoch": epoch, "loss": loss, "seconds": seconds})
            self.run.write_metrics(lines)
            self.progress.step(epoch + 1, loss=f"{loss:.3f}")
        self.seconds["distill"] = time.monotonic() - started

    def _members(self, inferred: Inferred) -> dict[int, Classifier]:
        """The trained members that are left."""
        return {
            k: load_model((self.run.folder / f"{ENSEMBLE}/{k}").uri, like=inferred.models[k % len(inferred.models)])
            for k in range(self.config.n_e)
            if self.run.done(f"{ENSEMBLE}/{k}/model.json")
        }

    def _choose_model(self, engine: Engine, inferred: Inferred) -> None:
        """With `stop = "auto"`: which of target model, ensemble and members to ship."""
        if self.config.stop != "auto" or "model" in (choice := self.run.folder.read_json(SHIPPED)):
            return
        models = {"target_model": load_model((self.run.folder / TARGET_MODEL).uri, like=self.sources[0])}
        models |= {f"{ENSEMBLE}/{k}": model for k, model in self._members(inferred).items()}
        for found in engine.stream(score_models, models, self.store.paths, engine.device):
            self.run.folder.write_json(SHIPPED, choice | choose_model(found))

    def _evaluate(self, engine: Engine) -> dict[str, Any] | None:
        """The target model's accuracy, where the store has ground truth."""
        if self.store.ground_truth() is None:
            return None
        model = load_model((self.run.folder / TARGET_MODEL).uri, like=self.sources[0])
        [scores] = engine.stream(evaluation, model, self.store, engine.device)
        return scores

    def _summarise(self, scores: dict[str, Any] | None, inferred: Inferred, figures: Future[str]) -> None:
        refining = [line for line in self.run.read_metrics() if line["stage"] == "refine"]  # of resumed parts too
        self.seconds["refine"] = sum(line["seconds"] for line in refining)
        spec = self.sources[0].spec
        summarise(self.run, self.store, spec, scores, self.config, inferred.warnings, self.seconds, figures.result())

    def _board(self, first_epoch: int) -> BoardWriter | None:
        """TensorBoard's writer; it writes to local folders only."""
        return BoardWriter(self.run.folder.path(TENSORBOARD), first_epoch) if self.run.folder.is_local else None


def adapt(
    sources: list[Classifier],
    store: ImageStore,
    out: str,
    config: Config,
    scaling: ScalingConfig | None = None,
    *,
    given: np.ndarray | None = None,
    until: Stage = "distill",
    force: bool = False,
    fork: str | None = None,
    source_names: list[str] | None = None,
    command: str = "",
    progress: Progress | None = None,
    watch: Callable[[dict[str, Any]], None] = lambda line: None,
) -> Result:
    """Adapt source models to unlabelled images; the same call again goes on where an earlier one stopped.

    Args:
        sources: one or more source models with the same classes.
        store: target images.
        out: the run's folder.
        config: settings.
        scaling: where and how it runs.
        given: labels from a file, int64 [n] with -1 where none: all are a start, some are fixed.
        until: the last stage to run.
        force: start anew in a folder that holds another run.
        fork: another run, to go on from under these settings.
        source_names: what to call the sources in run.json.
        command: the command line, for the record.
        progress: who is told.
        watch: is called with each refining epoch's line of metrics.jsonl, once it is written.
    """
    progress = progress or Progress(quiet=True)
    for source in sources:
        check_fits(source, store)
        if source.spec.num_classes != sources[0].spec.num_classes:
            raise InputError("the source models do not have the same number of classes; they cannot be fused")
    if len(store) < 2:
        raise InputError(f"{store.paths[0]} holds {len(store)} image(s); there is nothing to adapt to")
    config = config.resolve(sources[0].spec.num_classes)
    class_prior(config, torch.ones(sources[0].spec.num_classes))  # a bad prior file is told now
    run = Run(out)
    origin = {
        "source": source_names or [source.spec.name for source in sources],
        "target": store.paths,
        "target_fingerprint": store.fingerprint,
        "classes": store.classes or list(sources[0].spec.classes),
        "given_labels": fingerprint(given),
        "command": command,
    }
    with run.locked():
        if force:
            run.clear()
        if fork:
            run.fork(fork, config, origin)
        run.begin(config, origin)
        if run.done(SUMMARY):
            progress.say(f"already done: {run.folder.uri} (--force does it again)")
            if not run.done(REPORT):  # killed between the two
                write_page(run)
        else:
            scaling = scaling or ScalingConfig()
            Adaptation(copy.deepcopy(sources), store, run, config, scaling, progress, given, watch).execute(until)
    progress.close()
    return Result(run, sources[0])


def _last_changed(state: RefineState, inferred: Inferred) -> np.ndarray:
    """Epoch of each label's last change, int32 [n]: -1 never, 0 also for what only the warm start changed."""
    by_warm_start = np.where(inferred.start_labels != inferred.labels, 0, -1)
    return np.maximum(state.last_changed.numpy(), by_warm_start).astype(np.int32)
