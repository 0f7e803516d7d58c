"""Sweeps with Ray Tune: each trial is the refine stage of `adapt` under its own settings, judged without labels.

A trial's placement group has a bundle for the coordinator and one for each of its members, so trials of different
sizes share the cluster, and how many run at once follows from its resources. Trials share the target's store, the
source models and, where their settings for it are equal, the inferred labels. A trial keeps the checkpoints of any run
in `trials/NNN`, so it continues from there whatever Tune remembers of it.
"""

import hashlib
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray import tune
from ray.tune.logger import JsonLoggerCallback
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search.basic_variant import BasicVariantGenerator

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.scores import DEFAULT_SCORE, LABEL_FREE
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine import placement
from ray_adaplr.engine.auth import variables
from ray_adaplr.engine.engine import make_engine
from ray_adaplr.engine.placement import Resources
from ray_adaplr.engine.seating import seating
from ray_adaplr.errors import InputError
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.stages.plan import check_settings, followed
from ray_adaplr.stages.precision import settled
from ray_adaplr.stages.record import Tracker
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.layout import (
    DIAGNOSTIC,
    INFERRED,
    LABELS,
    ORACLE,
    SHARED,
    START_MODELS,
    SWEEP,
    TRIALS,
    TUNE,
    TUNE_FILES,
)
from ray_adaplr.storage.lease import hold
from ray_adaplr.storage.ownership import check_ours, claim, clear
from ray_adaplr.storage.run import Run
from ray_adaplr.storage.secrets import redacted
from ray_adaplr.sweep.options import SweepJob, SweepOptions
from ray_adaplr.sweep.results import Conclusion, conclude
from ray_adaplr.sweep.space import (
    Changes,
    SweepRecord,
    check_sweep,
    choose_trials,
    content_hash,
    drawable,
    list_trials,
    may_run,
    put_record,
    read_record,
    separate,
    with_changes,
)

_COORDINATOR = 0.01  # CPUs; it waits while members train
_VARIABLES = {  # while Tune works
    "RAY_AIR_NEW_OUTPUT": "0",  # the new reporter cannot be silenced
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends the sweep as it ends any run
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # no second TensorBoard: every trial's run writes its own
}


@dataclass(frozen=True)
class Sweep:
    """What all trials have in common, but for the source models, which travel once through the object store."""

    folder: str
    source_names: list[str]
    num_classes: int
    targets: list[str]  # paths of the target's stores
    config: Config
    scaling: ScalingConfig
    metric: str  # a label-free score, or ORACLE
    nodes: list[Resources]  # of the cluster

    @property
    def more_is_better(self) -> bool:
        """The metric's direction."""
        return self.metric == ORACLE or LABEL_FREE[self.metric]

    def config_of(self, sample: dict[str, Any]) -> Config:
        """A trial's settings, from what Tune hands to it."""
        changes = sample["trial"]["changes"] if "trial" in sample else separate(sample)
        return with_changes(self.config, changes, self.num_classes)

    def resources_of(self, sample: dict[str, Any]) -> tune.PlacementGroupFactory:
        """The trial's bundles: the coordinator's first, then one for each rank of its members."""
        return tune.PlacementGroupFactory(self.bundles(self.config_of(sample).n_e))

    def check_fit(self, n_e: int) -> None:
        """Refuse a trial that the cluster can never hold; Tune would let it wait for ever."""
        if not self.scaling.wait_for_nodes:
            placement.check_fit(self.bundles(n_e), self.nodes)

    def bundles(self, n_e: int) -> list[Resources]:
        """A member gets what it was told, else the largest share with which two such trials run side by side."""
        cpus, gpus = self.scaling.cpus_per_member, self.scaling.gpus_per_member
        if self.scaling.engine == "local":  # the members live in the trial's process
            return [placement.member_share(2, self.nodes, cpus or 1.0, gpus)]
        seated = seating(2 * n_e, self.nodes, self.scaling)
        rank = dict(seated.share)
        if cpus is None:
            rank["CPU"] = round(rank["CPU"] - _COORDINATOR, 4)  # leaves room for the coordinators
        return [{"CPU": _COORDINATOR}] + [rank] * (n_e * seated.ranks)

    def inference_settings(self, config: Config) -> Config:
        """The settings that the first labels depend on; all else is as by default."""
        return Config(**config.model_dump(include=Config.read_by("infer")), n_e=1)

    def inferred_folder(self, config: Config) -> Folder:
        """Where the first labels for these settings lie, if trials share them."""
        name = hashlib.blake2b(self.inference_settings(config).to_toml().encode(), digest_size=4).hexdigest()
        return Folder(self.folder) / f"{SHARED}/{name}"


def run_trial(sample: dict[str, Any], sweep: Sweep, sources: list[Classifier], tracker: Tracker | None = None) -> None:
    """One trial: infer unless that is done, refine, report once per epoch."""
    config = sweep.config_of(sample)
    number = _number(sample, tune.get_context().get_trial_id())
    run = Run((Folder(sweep.folder) / f"{TRIALS}/{number}").uri)
    shared = sweep.inferred_folder(config)
    if shared.exists(INFERRED) and not run.done(INFERRED):
        check_ours(run.folder, "run")
        claim(run.folder, "run")
        shared.copy(START_MODELS, run.folder)
        shared.copy(INFERRED, run.folder)
    told = set()

    def tell(line: dict[str, Any]) -> None:
        if line["epoch"] not in told:
            tune.report(_report(line, config, sweep.metric))
        told.add(line["epoch"])

    for line in run.read_metrics():  # of before a resume, which a scheduler has to know as well
        if line["stage"] == "refine":
            tell(line)
    store, scaling = ImageStore.open(*sweep.targets), sweep.scaling
    if scaling.engine == "local":  # on what is reserved for the trial: a GPU that torch cannot use is no CPU
        scaling = scaling.model_copy(update={"gpus_per_member": sweep.bundles(config.n_e)[0].get("GPU", 0.0)})
    adapt(
        RunPlan(sources, store, run.folder.uri, config, scaling, source_names=sweep.source_names),
        until="refine",
        watch=tell,
        tracker=tracker,
    )


def _number(sample: dict[str, Any], place: str) -> str:
    """The trial's name in the sweep: its place in the list, or Tune's own name where a searcher makes trials up."""
    return sample["trial"]["number"] if "trial" in sample else place.rsplit("/", 1)[-1]


def _report(line: dict[str, Any], config: Config, metric: str) -> dict[str, Any]:
    """An epoch for Tune. Ground truth is in it under a name that says so, and is the score only if the user said so."""
    oracle = {DIAGNOSTIC: 1 - line["noise"]} if "noise" in line else {}
    score = 1 - line["noise"] if metric == ORACLE else line[metric]
    shown = {"alpha": config.alpha, "n_rl": config.n_rl, "n_e": config.n_e, "gamma": line["gamma"], "score": score}
    return {**shown, "epoch": line["epoch"] + 1, **{name: line[name] for name in LABEL_FREE}, **oracle}


def run_sweep(
    job: SweepJob,
    sources: list[Classifier],
    store: ImageStore,
    config: Config,
    scaling: ScalingConfig,
    say: Callable[[str], None] = print,
) -> Conclusion:
    """Run all trials of a space and write results.parquet, sweep.html and best.toml; `say` is told what goes on."""
    metric = judge(job.options)
    if metric == ORACLE and store.ground_truth() is None:
        raise InputError(f"--oracle needs ground truth, and {store.paths[0]} has none")
    config = followed(config, sources[0], store)
    definition, record = _plan(job, sources, store, config)
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
                _infer_once(sweep, sources, listed, store, say)
            trainable = tune.with_parameters(run_trial, sweep=sweep, sources=sources, tracker=job.tracker)
            trainable = tune.with_resources(trainable, sweep.resources_of)
            cells: list[dict[str, Any]] = [
                {"number": f"{i:03d}", "changes": changes} for i, changes in enumerate(listed or ())
            ]
            outcomes: dict[str, Any] = {cell["number"]: None for cell in cells}
            if job.options.scheduler == "none":  # others compare a trial with those that have ended
                cells = [cell for cell in cells if not folder.exists(f"{TRIALS}/{cell['number']}/{LABELS}")]
            if cells or listed is None:
                with variables(_VARIABLES):
                    grid = _tuner(trainable, sweep, job, definition, cells).fit()
                outcomes |= {_number(r.config or {}, r.path): r.error for r in (grid[i] for i in range(len(grid)))}
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


def _plan(
    job: SweepJob, sources: list[Classifier], store: ImageStore, config: Config
) -> tuple[dict[str, Any], SweepRecord]:
    """The definition of the space (empty where the trials are listed in the record already), and the sweep's record."""
    num_classes, options = sources[0].spec.num_classes, job.options
    earlier = read_record(job.out) if job.resume else None
    space = may_run(job, earlier) if earlier else job.space
    if space is None:
        raise InputError("name the SPACE of the sweep")
    definition: dict[str, Any] = {}
    listed = earlier.listed if earlier else None
    if listed is None:
        definition, listed = choose_trials(space, job, config, num_classes)
    for changes in listed or ():
        check_settings(with_changes(config, changes, num_classes), num_classes)
    origin = {"source": [source.spec.name for source in sources], **job.origin}
    origin["source"] = [redacted(name) for name in origin["source"]]
    record = SweepRecord(
        space=os.path.abspath(space) if space.endswith(".py") else space,
        space_sha256=content_hash(space),
        target=[redacted(path) for path in store.paths],
        target_fingerprint=store.fingerprint,
        options=options,
        config=config.to_toml(),
        listed=listed,
        command=job.command,
        **origin,
    )
    return definition, record


def _infer_once(
    sweep: Sweep, sources: list[Classifier], listed: list[Changes], store: ImageStore, say: Callable[[str], None]
) -> None:
    """Infer labels for every group of trials that can share them; a trial on its own infers for itself."""
    configs = [with_changes(sweep.config, changes, sweep.num_classes) for changes in listed]
    uses = Counter(sweep.inferred_folder(config).uri for config in configs)
    for config in configs:
        place = sweep.inferred_folder(config)
        if uses[place.uri] > 1 and not place.exists(INFERRED):
            say(f"inferring labels for {uses[place.uri]} trials")
            settings = sweep.inference_settings(config)
            plan = RunPlan(sources, store, place.uri, settings, sweep.scaling, source_names=sweep.source_names)
            adapt(plan, until="infer")


class TrialLines(tune.Callback):
    """One line per trial that ends, on standard error; the table comes when all have ended."""

    def __init__(self, total: int | None, quiet: bool) -> None:
        self._of = f" of {total}" if total else ""
        self._ended, self._quiet = 0, quiet

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Tune calls this when a trial has ended."""
        self._say(trial, f"score {trial.last_result.get('score', float('nan')):.4f}")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Tune calls this when a trial has failed."""
        self._say(trial, "failed")

    def _say(self, trial: Any, how: str) -> None:
        self._ended += 1
        if not self._quiet:
            print(f"trial {self._ended}{self._of}: {_number(trial.config, trial.trial_id)}, {how}", file=sys.stderr)


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
    where.callbacks = [JsonLoggerCallback(), TrialLines(len(cells) or samples, job.quiet)]
    return tune.Tuner(trainable, param_space=param_space, tune_config=how, run_config=where)


def _scheduler(name: str, config: Config) -> TrialScheduler:
    """ASHA leaves every trial its warm-up and two epochs of relabelling; past the last epoch it has nothing to stop."""
    if name == "none":
        return FIFOScheduler()
    grace = min(config.epochs, max(config.warmup + 2, config.epochs // 4))
    return ASHAScheduler(time_attr="epoch", max_t=config.epochs + 1, grace_period=grace, reduction_factor=3)


def _optuna(seed: int, mode: str) -> Any:
    try:
        from ray.tune.search.optuna import OptunaSearch

        return OptunaSearch(metric="score", mode=mode, seed=seed)
    except (ImportError, AssertionError) as error:
        raise InputError("--search optuna needs Optuna; pip install 'ray-adaplr[optuna]'") from error
