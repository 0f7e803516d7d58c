"""The whole job: infer, refine, distill, evaluate, each skipped when its result is already in the run's folder."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import Tensor

from ray_adaplr.config import Config
from ray_adaplr.core import devices, scores
from ray_adaplr.core.learner import check_trainable
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.refine import RefineState, confidence_of, high_confidence
from ray_adaplr.data.progress import Progress
from ray_adaplr.engine.checkpoint import Checkpoints, DamagedCheckpoint
from ray_adaplr.engine.engine import Engine, make_engine
from ray_adaplr.engine.limits import check_memory_and_disk
from ray_adaplr.engine.training import distill_training
from ray_adaplr.errors import InputError, counted
from ray_adaplr.stages import summary as ending
from ray_adaplr.stages import supervised
from ray_adaplr.stages.evaluate import check_together, evaluate, fitted
from ray_adaplr.stages.first_labels import Inference
from ray_adaplr.stages.infer import infer, with_given
from ray_adaplr.stages.plan import (
    RunPlan,
    about_photographs,
    check_settings,
    class_prior,
    file_shares,
    followed,
    spared,
    waiting_guards,
    without_effect,
)
from ray_adaplr.stages.precision import settled
from ray_adaplr.stages.record import Audience, EpochListeners, Tracked, Tracker, Watch, nobody
from ray_adaplr.stages.refine import Rules, new_state, refine
from ray_adaplr.stages.result import Result
from ray_adaplr.stages.warm_start import why_none
from ray_adaplr.storage.fork import Fork
from ray_adaplr.storage.inferred import Inferred
from ray_adaplr.storage.layout import CHECKPOINTS, CONFIG, ENSEMBLE, INFERRED, SHIPPED, SUMMARY, TARGET_MODEL
from ray_adaplr.storage.metrics import MetricsLog
from ray_adaplr.storage.models import SPEC, load_model, save_model
from ray_adaplr.storage.run import Run

__all__ = ["Result", "RunPlan", "Stage", "adapt"]

Stage = Literal["infer", "refine", "distill"]


class Adaptation:
    """One run of the pipeline by a plan whose settings are resolved for the number of classes."""

    def __init__(self, plan: RunPlan, run: Run, audience: Audience) -> None:
        self.plan, self.run, self.audience = plan, run, audience
        self.config, self.store, self.progress = plan.config, plan.store, audience.progress

    def execute(self, until: Stage, warnings: list[str]) -> None:
        """Run the stages that are not done yet, up to and with `until`; drawing goes on aside while others train.

        The summary gets these warnings beside its own.
        """
        with ThreadPoolExecutor(1) as aside:
            with make_engine(self.plan.scaling, self.config.n_e, self.run.name, self.config.batch_size) as engine:
                self._settle_precision(engine)
                self._note_computed_with(engine)
                inferred = self._infer(engine)
                if until != "infer":
                    self._refine(engine, inferred)
                if until == "distill":
                    figures = aside.submit(ending.draw_figures, self.plan, self.run)
                    self._distill(engine, inferred)
                    self._choose_model(engine, inferred)
                    scores = self._evaluate(engine)
                    waits = waiting_guards(self.config) if self._guards_wait(inferred) else []
                    warnings = [*warnings, *inferred.warnings, *waits, *self.changed, *engine.heard]
                    # A local Ray takes 1.5 s to end.
                    summary = aside.submit(self._summarise, scores, warnings, inferred, figures)
            if until == "distill":
                summary.result()

    def _settle_precision(self, engine: Engine) -> None:
        """Decide what is open, before anything is computed; config.toml then says it to a resume and to everybody."""
        config, why = settled(self.config, self.plan.sources[0], self.store, engine)
        if why:
            self.progress.say(why)
        if config != self.config:
            self.run.write_config(config)
            self.config, self.plan = config, replace(self.plan, config=config)

    def _note_computed_with(self, engine: Engine) -> None:
        """Say it when a resumed run has other threads, ranks or another kind of device: its bits may be others.

        A member's process is asked for its device, so that one which cannot be used ends the run at its start.
        """
        scaling = self.plan.scaling
        device: dict[str, str | bool] = {"device": "cpu"}
        if engine.device != "cpu":
            asked = (engine.device, self.config.precision)
            device = engine.ask(devices.conditions, *asked, does="checks its device")
        ranks = {"ranks_per_member": engine.ranks, "distill_workers": supervised.workers(engine, scaling)}
        self.changed = self.run.note_computed_with(**device, threads=scaling.threads, **ranks)
        for sentence in self.changed:
            self.progress.say(sentence)

    def _infer(self, engine: Engine) -> Inferred:
        sources = self.plan.sources
        if not self.run.done(INFERRED):
            started = time.monotonic()
            kept = (self.run.folder / CHECKPOINTS).uri if self.plan.scaling.checkpoint_every else None
            larger = self.plan.guest_store.paths if self.plan.guest_store else ()
            shares, taught = file_shares(self.config, self.plan.spec.num_classes), self.plan.given is not None
            plan = Inference(self.store.paths, self.config, engine.device, engine.cache, kept, larger, shares, taught)
            starts = len(sources) * len(plan.by_target(self.plan.spec.num_classes))
            warm = starts * self.config.warm_start_epochs if self.config.warm_start != "off" else 0
            steps = warm + 2  # with a first look and the labels: epochs alone tell how long the others take
            self.progress.stage("infer", steps, None)
            found = infer(sources, plan, engine, self.plan.guests, lambda done: self.progress.step(done + 1))
            self.run.write_inferred(self.store.ids, with_given(found, self.plan.given))
            self.progress.step(steps)
            self.run.note_infer_seconds(time.monotonic() - started)
            for remark in found.remarks:
                self.progress.say(remark)
        inferred = self.run.read_inferred(sources)
        if inferred.spared:
            self.config = spared(self.config)
            self.plan = replace(self.plan, config=self.config)
        return inferred

    def _refine(self, engine: Engine, inferred: Inferred) -> None:
        """From the newest checkpoint, or from the inferred labels, to labels.parquet."""
        if self.run.has_labels():
            return
        config, scaling, rules = self.config, self.plan.scaling, self._rules(inferred)
        checkpoints = Checkpoints(self.run.folder / CHECKPOINTS, scaling.checkpoint_every, scaling.keep_checkpoints)
        members = config if rules.guarded else config.model_copy(update={"diversity": 0.0})
        ensemble = None
        while ensemble is None:
            state = new_state(inferred.start_labels, self.plan.spec.num_classes, config)
            state = checkpoints.restore(state) or state
            try:
                ensemble = engine.ensemble(members, self.store, inferred.models, checkpoints)
            except DamagedCheckpoint as damage:  # found by the member that has read it
                checkpoints.pass_over(damage)
        with EpochListeners(self.plan, self.run, self.audience, state, rules.inferred_shares) as on_epoch:
            refine(ensemble, state, rules, checkpoints, on_epoch)
        confidence = self._final_labels(state, rules, inferred)
        for k, model in ensemble.models().items():
            save_model(self.run.folder / f"{ENSEMBLE}/{k}", model)
        ensemble.close()
        self.run.write_labels(self._label_table(state, rules, confidence, inferred))

    def _guards_wait(self, inferred: Inferred) -> bool:
        """Where a warm start was kept, the guards wait for an alarm, unless they are to act always."""
        return self.config.guards == "auto" and inferred.warm

    def _rules(self, inferred: Inferred) -> Rules:
        """What decides about labels."""
        shares = scores.class_shares(torch.from_numpy(inferred.start_labels), self.plan.spec.num_classes)
        fixed = None if inferred.fixed is None else torch.from_numpy(inferred.fixed.copy())
        start_probs = None if inferred.start_probs is None else torch.from_numpy(inferred.start_probs.copy())
        believed = None if inferred.shares is None else torch.from_numpy(inferred.shares)
        prior, guarded = class_prior(self.config, shares, believed), not self._guards_wait(inferred)
        return Rules(self.config, shares, prior, fixed, guarded, start_probs)

    def _final_labels(self, state: RefineState, rules: Rules, inferred: Inferred) -> Tensor:
        """Settle on the last epoch's labels or, with `stop = "auto"`, on the best one's; returns their confidence."""
        if self.config.stop == "auto":
            first = torch.from_numpy(inferred.start_labels)
            confidence, choice = ending.ship_best_labels(state, self.config.warmup, first)
            self.run.folder.write_json(SHIPPED, choice)
        else:
            confidence = confidence_of(state.labels, rules.soft_labels(state.history))
        if rules.fixed is not None:
            confidence[rules.fixed] = 1.0
        return confidence

    def _label_table(self, state: RefineState, rules: Rules, confidence: Tensor, inferred: Inferred) -> pa.Table:
        """The table of labels.parquet; a last change of -1 is never, 0 also what only the warm start changed."""
        by_warm_start = np.where(inferred.start_labels != inferred.labels, 0, -1)
        names = pa.array(self.store.classes or self.plan.spec.class_names, pa.string())
        columns = {
            "id": self.store.ids,
            "initial_label": inferred.labels.astype(np.int32),
            "initial_class": names.take(pa.array(inferred.labels)),
            "refined_label": state.labels.int().numpy(),
            "refined_class": names.take(pa.array(state.labels.numpy())),
            "confidence": confidence.numpy(),
            "high_confidence": high_confidence(confidence, self.config.alpha).numpy(),
            "last_changed_epoch": np.maximum(state.last_changed.numpy(), by_warm_start).astype(np.int32),
        }
        if self.config.probabilities:
            best = state.best_probabilities if self.config.stop == "auto" else None  # a fork brings along those it had
            probs = rules.soft_labels(state.history) if best is None else best
            if rules.fixed is not None:
                probs[rules.fixed] = F.one_hot(state.labels[rules.fixed], probs.shape[1]).to(probs.dtype)
            columns |= scores.probability_columns(probs, names.to_pylist())
        return pa.table(columns)

    def _distill(self, engine: Engine, inferred: Inferred) -> None:
        clock, config, folder = time.monotonic(), self.config, self.run.folder
        log, settings = MetricsLog(folder), distill_training(config, inferred.as_it_came)
        told = log.has({"stage": "distill", "epoch": settings.epochs - 1})
        if self.run.has_target_model() and (told or not (folder / CHECKPOINTS).exists("distill.pt")):
            return  # else the state tells of epochs that no line is of
        table = self.run.read_labels()
        went_back = config.on_harm != "off" and any(line.get("collapsed") for line in self.run.read_metrics())
        lesson = supervised.distill_lesson(self.store, table, config, went_back)
        start = supervised.distill_start(inferred.models[0], self._members(inferred), config, len(inferred.models))
        self.progress.stage("distill", settings.epochs, None)
        places = (folder / TARGET_MODEL).uri, (folder / CHECKPOINTS).uri
        kept = self._kept(table, inferred.spared)
        training = supervised.Training("distill", start, lesson, settings, *places, kept=kept)
        for epoch, loss in supervised.train(training, engine, self.plan.scaling):
            seconds, clock = time.monotonic() - clock, time.monotonic()
            line = {"stage": "distill", "epoch": epoch, "loss": loss, "seconds": seconds}
            if log.has(line):  # from before a kill
                continue
            log.append(line)
            log.close()  # no checkpoint holds lines that are not in the file yet
            self.audience.track(line)
            self.progress.step(epoch + 1, loss=f"{loss:.3f}")

    def _kept(self, table: pa.Table, spared: bool) -> tuple[Classifier, float] | None:
        """The source model and how much of it the target model keeps, if anything."""
        changed = float(np.mean(table["initial_label"].to_numpy() != table["refined_label"].to_numpy()))
        share = supervised.KEPT_WITHOUT_SHIFT if spared else supervised.share_of_source(changed, self.config)
        if len(self.plan.sources) > 1 or not share:
            return None
        self.progress.say(
            f"{changed:.0%} of the labels changed: the target model keeps {share:.0%} of the source's weights"
        )
        return self.plan.sources[0], share

    def _members(self, inferred: Inferred) -> dict[int, Classifier]:
        """The trained members that are left."""
        return {
            k: load_model((self.run.folder / f"{ENSEMBLE}/{k}").uri, like=inferred.models[k % len(inferred.models)])
            for k in _members_left(self.run, self.config)
        }

    def _target_model(self) -> Classifier:
        like = _target_like(self.plan, self.run, self.config)
        return load_model((self.run.folder / TARGET_MODEL).uri, like=like)

    def _choose_model(self, engine: Engine, inferred: Inferred) -> None:
        """With `stop = "auto"`: which of target model, ensemble and members to ship."""
        if self.config.stop != "auto" or "model" in (choice := self.run.folder.read_json(SHIPPED)):
            return
        models = {TARGET_MODEL: self._target_model()}
        models |= {f"{ENSEMBLE}/{k}": model for k, model in self._members(inferred).items()}
        asked = (self.config.precision, ending.score_models, models, self.store.paths, engine.device)
        found = engine.ask(devices.called_in, *asked, does="scores the models")
        self.run.folder.write_json(SHIPPED, choice | ending.choose_model(found))

    def _evaluate(self, engine: Engine) -> dict[str, Any] | None:
        """The target model's accuracy, where the store has ground truth."""
        if self.store.ground_truth() is None:
            return None
        asked = (self.config.precision, evaluate, self._target_model(), self.store, engine.device)
        return engine.ask(devices.called_in, *asked, does="evaluates the target model")

    def _summarise(
        self, scores: dict[str, Any] | None, warnings: list[str], inferred: Inferred, figures: Future[str]
    ) -> None:
        if self.plan.scaling.keep_checkpoints is None:  # before the summary: what comes after needs none of them
            self.run.delete_checkpoints()
        ending.summarise(self.plan, self.run, inferred, scores, warnings, figures.result())


def _members_left(run: Run, config: Config) -> list[int]:
    return [k for k in range(config.n_e) if run.done(f"{ENSEMBLE}/{k}/{SPEC}")]


def _target_like(plan: RunPlan, run: Run, config: Config) -> Classifier:
    """The source model whose architecture the target model has."""
    num_sources = len(plan.sources)
    members = supervised.starting_members(_members_left(run, config), num_sources, config)
    return plan.sources[members[0] % num_sources if members else 0]


def adapt(
    plan: RunPlan,
    *,
    until: Stage = "distill",
    force: bool = False,
    fork: str | None = None,
    progress: Progress | None = None,
    watch: Watch = nobody,
    tracker: Tracker | None = None,
) -> Result:
    """Adapt source models to unlabelled images; the same call again continues where an earlier one stopped.

    `until` is the last stage to run. `force` starts again in a folder that holds another run; `fork` is another
    run, to continue under these settings. `watch` gets each refining epoch's line of metrics.jsonl, once it is
    written; a tracker shows the run elsewhere too.
    """
    progress = progress or Progress(quiet=True)
    borrowed = plan.borrowed_names()
    plan = replace(plan, sources=[fitted(source, plan.store) for source in plan.sources])
    check_together(plan.sources)
    for source in plan.sources:
        check_trainable(source)
    if len(plan.store) < 2:
        raise InputError(f"{plan.store.paths[0]} holds {counted(len(plan.store), 'image')}; adapting needs two")
    plan.check(force)
    config = check_settings(followed(plan.config, plan.sources[0], plan.store), plan.spec.num_classes)
    if cold := why_none(config, plan.sources):
        config = config.model_copy(update={"warm_start": "off"})
    run, origin = Run(plan.out), plan.origin()
    run.check(config, origin, force)
    if not run.done(SUMMARY):
        check_memory_and_disk(plan.need, plan.out if run.folder.is_local and not run.done(INFERRED) else None)
    forked = Fork.of(fork, config, origin) if fork else None
    if forked and (remark := forked.check(run)):
        progress.say(remark)
    with run.held():
        run.check(config, origin, force)  # once more: somebody may have been faster
        run.claim(force)
        if forked and not run.done(CONFIG):  # else it was forked before, and this call resumes it
            forked.copy_into(run)
        config = run.begin(forked.config if forked else config, origin)
        if run.has_summary() and run.has_labels() and run.has_target_model():
            progress.say(f"already done: {run.folder.uri} (--force, in Python force=True, does it again)")
            ending.write_missing_pages(plan, run)
        else:
            few_classes = plan.config.remark(plan.spec.num_classes)
            preset = about_photographs(plan.config, config) if config.defaults == "photographs" else ""
            warnings = [*filter(None, [cold]), *without_effect(plan, config)]
            for sentence in (few_classes, f"the model is fed {plan.spec.input}", borrowed, preset, *warnings):
                if sentence:
                    progress.say(sentence)
            plan = replace(plan, config=config)
            with Tracked(tracker, plan, run) if tracker else nullcontext(nobody) as track:
                Adaptation(plan, run, Audience(progress, watch, track)).execute(until, warnings)
    progress.close()
    return Result(run, _target_like(plan, run, config))
