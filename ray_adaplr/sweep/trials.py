"""Sweeps with Ray Tune: all trials of a space, those that a resumed sweep still lacks, and what came of them."""

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from ray import tune
from ray.tune.logger import JsonLoggerCallback
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search.basic_variant import BasicVariantGenerator

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.scores import DEFAULT_SCORE, LABEL_FREE
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine import placement
from ray_adaplr.engine.auth import variables
from ray_adaplr.engine.engine import make_engine
from ray_adaplr.errors import InputError, need
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.stages.plan import followed
from ray_adaplr.stages.precision import settled
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.layout import INFERRED, LABELS, ORACLE, STOPPED, SWEEP, TRIALS, TUNE, TUNE_FILES
from ray_adaplr.storage.lease import hold
from ray_adaplr.storage.ownership import clear
from ray_adaplr.sweep.options import SweepJob, SweepOptions
from ray_adaplr.sweep.results import conclude
from ray_adaplr.sweep.space import check_sweep, drawable, list_trials, plan_sweep, put_record, read_record, with_changes
from ray_adaplr.sweep.trial import Sweep, has_ended, number_of, run_trial

if TYPE_CHECKING:
    from ray_adaplr.report.sweep import SweepOutcome

_VARIABLES = {  # while Tune works
    "RAY_AIR_NEW_OUTPUT": "0",  # the new reporter cannot be silenced
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends the sweep as it ends any run
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # no second TensorBoard: every trial's run writes its own
}


def run_sweep(
    job: SweepJob, sources: list[Classifier], store: ImageStore, config: Config, scaling: ScalingConfig
) -> "SweepOutcome":
    """Run all trials of a space and write results.parquet, sweep.html and best.toml."""
    metric = judge(job.options)
    if metric == ORACLE and store.ground_truth() is None:
        raise InputError(f"--oracle needs ground truth, and {store.paths[0]} has none")
    config = followed(config, sources[0], store)
    definition, record = plan_sweep(job, sources, store, config)
    listed, num_classes = record.listed, sources[0].spec.num_classes
    check_sweep(Folder(job.out), job, record)
    with hold(Folder(job.out)) as folder:
        put_record(folder, job, record)
        with placement.connected(scaling):
            nodes = placement.live_nodes()
            config = _with_one_precision(config, sources[0], store, scaling, folder)
            sweep = Sweep(folder.uri, record.source, num_classes, store.paths, config, scaling, metric, nodes)
            for changes in listed or list_trials(definition, SweepOptions(search="random"), config, num_classes):
                sweep.check_fit(with_changes(config, changes, num_classes).n_e)
            if listed:
                _infer_once(sweep, sources, listed, store, Progress(quiet=job.quiet))
            trainable = tune.with_parameters(run_trial, sweep=sweep, sources=sources, tracker=job.tracker)
            trainable = tune.with_resources(trainable, sweep.resources_of)
            cells: list[dict[str, Any]] = [
                {"number": f"{i:03d}", "changes": changes} for i, changes in enumerate(listed or ())
            ]
            outcomes: dict[str, Any] = {cell["number"]: None for cell in cells}
            under_way = [cell for cell in cells if not has_ended(folder / f"{TRIALS}/{cell['number']}")]
            if job.options.scheduler == "none" or not under_way:  # others compare a trial with those that have ended
                cells = under_way
            if cells or listed is None:
                with variables(_VARIABLES):
                    grid = _tuner(trainable, sweep, job, definition, cells).fit()
                outcomes |= {number_of(r.config or {}, r.path): r.error for r in (grid[i] for i in range(len(grid)))}
        return conclude(folder, config.resolve(num_classes), metric, sweep.more_is_better, outcomes)


def _with_one_precision(
    config: Config, model: Classifier, store: ImageStore, scaling: ScalingConfig, folder: Folder
) -> Config:
    """Settings with what `precision = "auto"` comes to: measured once, for all trials and for a resumed sweep."""
    if config.precision != "auto":
        return config
    record = read_record(folder.uri)
    if record.precision is None:
        with make_engine(scaling, 1, "precision") as engine:
            config, _ = settled(config, model, store, engine)
        record = record.model_copy(update={"precision": config.precision})
        folder.write(SWEEP, record.model_dump_json(indent=1) + "\n")
    return config.model_copy(update={"precision": record.precision})


def judge(options: SweepOptions) -> str:
    """The name of the score that trials are judged by; InputError when there is no such score."""
    metric = ORACLE if options.oracle else options.metric or DEFAULT_SCORE
    if metric != ORACLE and metric not in LABEL_FREE:
        names = ", ".join(LABEL_FREE)
        raise InputError(f"--metric {metric} is no label-free score; use one of {names}, or --oracle for ground truth")
    return metric


def _infer_once(
    sweep: Sweep, sources: list[Classifier], listed: list[dict[str, Any]], store: ImageStore, progress: Progress
) -> None:
    """Infer labels for every group of trials that can share them; a trial on its own infers for itself."""
    configs = [with_changes(sweep.config, changes, sweep.num_classes) for changes in listed]
    uses = Counter(sweep.inferred_folder(config).uri for config in configs)
    for config in configs:
        place = sweep.inferred_folder(config)
        if uses[place.uri] > 1 and not place.exists(INFERRED):
            progress.say(f"inferring labels for {uses[place.uri]} trials")
            settings = sweep.inference_settings(config)
            plan = RunPlan(sources, store, place.uri, settings, sweep.scaling, source_names=sweep.source_names)
            adapt(plan, until="infer")


class TrialLines(tune.Callback):
    """One line per trial that ends, on standard error; the table comes when all have ended.

    A trial that the scheduler stops is marked, since a resumed sweep compares its trials in another order.
    """

    def __init__(self, trials: Folder, total: int | None, quiet: bool) -> None:
        self._trials, self._of = trials, f" of {total}" if total else ""
        self._ended, self._quiet = 0, quiet

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Tune calls this when a trial has ended, or was stopped."""
        place = self._trials / number_of(trial.config, trial.trial_id)
        if not place.exists(LABELS):
            place.write(STOPPED, json.dumps({"epochs": trial.last_result.get("epoch")}) + "\n")
        self._say(trial, f"score {trial.last_result.get('score', float('nan')):.4f}")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Tune calls this when a trial has failed."""
        self._say(trial, "failed")

    def _say(self, trial: Any, how: str) -> None:
        self._ended += 1
        number = number_of(trial.config, trial.trial_id)
        Progress(quiet=self._quiet).say(f"trial {self._ended}{self._of}: {number}, {how}")


def _tuner(
    trainable: Any, sweep: Sweep, job: SweepJob, space: dict[str, Any], cells: list[dict[str, Any]]
) -> tune.Tuner:
    """Tune for these cells of a list, or for what a searcher makes up.

    Tune's own records are pickles, which run code when they are read: only a searcher's are, once `may_run` has asked.
    """
    place = Folder(sweep.folder) / TUNE
    mode = "max" if sweep.more_is_better else "min"
    if cells:
        clear(Folder(sweep.folder), TUNE_FILES)
        samples, algorithm = 1, BasicVariantGenerator(random_state=sweep.config.seed % 2**32)
        param_space = {"trial": tune.grid_search(cells)}
    elif tune.Tuner.can_restore(place.uri):
        return tune.Tuner.restore(place.uri, trainable, restart_errored=True)
    else:
        samples = job.options.trials or 20
        algorithm, param_space = _optuna(sweep.config.seed, mode), drawable(space)
    how = tune.TuneConfig(metric="score", mode=mode, search_alg=algorithm, num_samples=samples)
    how.scheduler = _scheduler(job.options.scheduler, sweep.config)
    how.trial_dirname_creator = lambda trial: trial.trial_id
    where = tune.RunConfig(name=TUNE, storage_path=sweep.folder, verbose=0)
    where.failure_config = tune.FailureConfig(max_failures=1)
    where.callbacks = [
        JsonLoggerCallback(),
        TrialLines(Folder(sweep.folder) / TRIALS, len(cells) or samples, job.quiet),
    ]
    return tune.Tuner(trainable, param_space=param_space, tune_config=how, run_config=where)


def _scheduler(name: str, config: Config) -> TrialScheduler:
    """ASHA leaves every trial its warm-up and two epochs of relabelling; past the last epoch it has nothing to stop."""
    if name == "none":
        return FIFOScheduler()
    grace = min(config.epochs, max(config.warmup + 2, config.epochs // 4))
    return ASHAScheduler(time_attr="epoch", max_t=config.epochs + 1, grace_period=grace, reduction_factor=3)


def _optuna(seed: int, mode: str) -> Any:
    need("--search optuna", "optuna", "optuna")
    from ray.tune.search.optuna import OptunaSearch

    return OptunaSearch(metric="score", mode=mode, seed=seed)
