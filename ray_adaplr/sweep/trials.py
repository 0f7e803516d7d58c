"""Sweeps with Ray Tune: each trial is the refine stage of `adapt` under its own settings, judged without labels.

A trial's placement group has a bundle for the coordinator and one for each of its members, so trials of different
sizes share the cluster, and how many run at once follows from its resources. Trials share the target's store, the
source models and, where their settings for it are equal, the inferred labels. A trial keeps the checkpoints of any run
in `trials/NNN`, so it goes on from there whatever Tune remembers of it.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import ray
from ray import tune
from ray.tune.logger import JsonLoggerCallback
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search.basic_variant import BasicVariantGenerator

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.scores import DEFAULT_SCORE, LABEL_FREE
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine import placement
from ray_adaplr.engine.placement import Resources
from ray_adaplr.errors import InputError
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.layout import INFERRED, ORACLE, SHARED, START_MODELS, SWEEP, SWEEP_FILES, TRIALS, TUNE
from ray_adaplr.storage.lease import hold
from ray_adaplr.storage.ownership import check_ours, claim, clear
from ray_adaplr.storage.run import Run
from ray_adaplr.sweep.results import conclude
from ray_adaplr.sweep.space import Changes, Search, drawable, list_trials, load_space, separate, with_changes

_COORDINATOR = 0.01  # CPUs; it waits while members train


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
        """The trial's bundles: the coordinator's first, then one a member."""
        return tune.PlacementGroupFactory(self._bundles(self.config_of(sample).n_e))

    def check_fit(self, n_e: int) -> None:
        """Refuse a trial that the cluster can never hold; Tune would let it wait for ever."""
        if not self.scaling.wait_for_nodes:
            placement.check_fit(self._bundles(n_e), self.nodes)

    def _bundles(self, n_e: int) -> list[Resources]:
        """A member gets what it was told, else the largest share with which two such trials run side by side."""
        cpus, gpus = self.scaling.cpus_per_member, self.scaling.gpus_per_member
        if self.scaling.engine == "local":  # the members live in the trial's process
            return [{"CPU": cpus or 1.0}]
        member = placement.member_share(2 * n_e, self.nodes, cpus, gpus)
        if cpus is None:
            member["CPU"] = round(member["CPU"] - _COORDINATOR, 4)  # leaves room for the coordinators
        return [{"CPU": _COORDINATOR}] + [member] * n_e

    def inference_settings(self, config: Config) -> Config:
        """The settings that the first labels depend on; all else is as by default."""
        return Config(**config.model_dump(include=Config.read_by("infer")), n_e=1)

    def inferred_folder(self, config: Config) -> Folder:
        """Where the first labels for these settings lie, if trials share them."""
        name = hashlib.blake2b(self.inference_settings(config).to_toml().encode(), digest_size=4).hexdigest()
        return Folder(self.folder) / f"{SHARED}/{name}"


def run_trial(sample: dict[str, Any], sweep: Sweep, sources: list[Classifier]) -> None:
    """One trial: infer unless that is done, refine, report once an epoch."""
    config = sweep.config_of(sample)
    number = _number(sample, tune.get_context().get_trial_id())
    run = Run((Folder(sweep.folder) / f"{TRIALS}/{number}").uri)
    shared = sweep.inferred_folder(config)
    if shared.exists(INFERRED) and not run.done(INFERRED):
        check_ours(run.folder, "run")
        claim(run.folder, "run")
        shared.copy(START_MODELS, run.folder)
        shared.copy(INFERRED, run.folder)
    told = []

    def tell(line: dict[str, Any]) -> None:
        told.append(line["epoch"])
        tune.report(_report(line, config, sweep.metric))

    store = ImageStore.open(*sweep.targets)
    result = adapt(
        RunPlan(sources, store, run.folder.uri, config, sweep.scaling, source_names=sweep.source_names),
        until="refine",
        watch=tell,
    )
    if not told:  # it had ended before Tune took note of it
        tell(result.metrics[-1])


def _number(sample: dict[str, Any], place: str) -> str:
    """The trial's name in the sweep: its place in the list, or Tune's own name where a searcher makes trials up."""
    return sample["trial"]["number"] if "trial" in sample else place.rsplit("/", 1)[-1]


def _report(line: dict[str, Any], config: Config, metric: str) -> dict[str, Any]:
    """An epoch for Tune. Ground truth is in it under a name that says so, and is the score only if the user said so."""
    oracle = {"diagnostic_oracle_accuracy": 1 - line["noise"]} if "noise" in line else {}
    score = 1 - line["noise"] if metric == ORACLE else line[metric]
    shown = {"alpha": config.alpha, "n_rl": config.n_rl, "n_e": config.n_e, "gamma": line["gamma"], "score": score}
    return {**shown, "epoch": line["epoch"] + 1, **{name: line[name] for name in LABEL_FREE}, **oracle}


def run_sweep(
    sources: list[Classifier],
    store: ImageStore,
    out: str,
    space: str,
    config: Config,
    scaling: ScalingConfig,
    *,
    search: Search = "grid",
    trials: int | None = None,
    scheduler: Literal["none", "asha"] = "none",
    metric: str = DEFAULT_SCORE,
    origin: dict[str, Any] | None = None,
    resume: bool = False,
    force: bool = False,
    quiet: bool = False,
    say: Callable[[str], None] = print,
    command: str = "",
) -> dict[str, Any]:
    """Run all trials of a space and write results.parquet, sweep.html and best.toml; returns the best trial's row.

    The options are those of `ray-adaplr tune`; `origin` is what the record is to hold of the source models (`source`,
    their names, and more), and `say` is told what is going on.
    """
    num_classes, folder = sources[0].spec.num_classes, Folder(out)
    names = (origin or {}).get("source") or [source.spec.name for source in sources]
    if metric == ORACLE and store.ground_truth() is None:
        raise InputError(f"--oracle needs ground truth, and {store.paths[0]} has none")
    space = os.path.abspath(space) if space.endswith(".py") else space
    definition = load_space(space, num_classes)
    if search == "optuna":  # makes its trials up as it goes: some are drawn to see whether such trials are feasible
        listed = list_trials(definition, "random", None, config.seed, config, num_classes)
    else:
        listed = list_trials(definition, search, trials, config.seed, config, num_classes)
    record = {
        "space": space, "source": names, **(origin or {}), "target": store.paths,
        "target_fingerprint": store.fingerprint,
        "search": search, "trials": trials, "scheduler": scheduler, "metric": metric, "config": config.to_toml(),
        "listed": None if search == "optuna" else listed,
    }  # fmt: skip
    _check(folder, record, resume, force)
    with hold(folder) as folder:
        _check(folder, record, resume, force)  # once more: somebody may have been faster
        if force:
            clear(folder, SWEEP_FILES)
        claim(folder, "sweep")
        if not folder.exists(SWEEP):
            folder.write_json(SWEEP, {**record, "command": command})
        largest = max(with_changes(config, changes, num_classes).n_e for changes in listed)
        connected = placement.connect(scaling)
        try:
            sweep = Sweep(folder.uri, names, num_classes, store.paths, config, scaling, metric, placement.live_nodes())
            sweep.check_fit(largest)
            if search != "optuna":
                _infer_once(sweep, sources, listed, store, say)
            trainable = tune.with_parameters(run_trial, sweep=sweep, sources=sources)
            trainable = tune.with_resources(trainable, sweep.resources_of)
            grid = _tuner(trainable, sweep, definition, listed, search, trials, scheduler, quiet).fit()
        finally:
            if connected:
                ray.shutdown()
        outcomes = {_number(r.config or {}, r.path): r.error for r in (grid[i] for i in range(len(grid)))}
        return conclude(folder, sweep.metric, sweep.more_is_better, outcomes)


def _check(folder: Folder, record: dict[str, Any], resume: bool, force: bool) -> None:
    """Refuse a folder of somebody else's, or one with another sweep; changes nothing."""
    check_ours(folder, "sweep")
    if force or not folder.exists(SWEEP):
        return
    if not resume:
        raise InputError(f"{folder.uri} holds a sweep; --resume goes on with it, --force starts again")
    before = folder.read_json(SWEEP)
    changed = [name for name, value in json.loads(json.dumps(record)).items() if before.get(name) != value]
    if changed:
        raise InputError(f"{folder.uri} holds a sweep with other {', '.join(changed)}; choose another --out")


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
            adapt(
                RunPlan(sources, store, place.uri, settings, sweep.scaling, source_names=sweep.source_names),
                until="infer",
            )


def _tuner(
    trainable: Any, sweep: Sweep, space: dict[str, Any], listed: list[Changes], search: Search, trials: int | None,
    scheduler: str, quiet: bool,
) -> tune.Tuner:  # fmt: skip
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # the reporter whose columns can be chosen
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # Ctrl-C ends the sweep as it ends any run
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"  # no second TensorBoard: every trial's run writes its own
    place = (Folder(sweep.folder) / TUNE).uri
    if tune.Tuner.can_restore(place):
        return tune.Tuner.restore(place, trainable, restart_errored=True)
    mode = "max" if sweep.more_is_better else "min"
    names, figures = ["alpha", "n_rl", "n_e"], ["epoch", "gamma", "score"]
    if search == "optuna":
        algorithm, samples, param_space = _optuna(sweep.config.seed, mode), trials or 20, drawable(space)
        shown: dict[str, Any] = {"parameter_columns": [], "metric_columns": names + figures}
    else:
        algorithm, samples = BasicVariantGenerator(random_state=sweep.config.seed), 1
        configs = [with_changes(sweep.config, changes, sweep.num_classes) for changes in listed]
        param_space = {"trial": tune.grid_search([
            {"number": f"{i:03d}", "changes": changes, **{name: getattr(config, name) for name in names}}
            for i, (changes, config) in enumerate(zip(listed, configs))
        ])}  # fmt: skip
        shown = {"parameter_columns": {f"trial/{name}": name for name in names}, "metric_columns": figures}
    reporter = tune.CLIReporter(max_report_frequency=15, **shown)
    return tune.Tuner(
        trainable,
        param_space=param_space,
        tune_config=tune.TuneConfig(
            metric="score", mode=mode, search_alg=algorithm, num_samples=samples,
            scheduler=_scheduler(scheduler, sweep.config), trial_dirname_creator=lambda trial: trial.trial_id,
        ),
        run_config=tune.RunConfig(
            name=TUNE, storage_path=sweep.folder, verbose=0 if quiet else 1, progress_reporter=reporter,
            failure_config=tune.FailureConfig(max_failures=1), callbacks=[JsonLoggerCallback()],
        ),
    )  # fmt: skip


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
