"""One trial of a sweep: the refine stage of `adapt` under its own settings, with an epoch's figures for Ray Tune.

A trial's placement group has a bundle for the coordinator and one for each of its members, so trials of different
sizes share the cluster, and how many run at once follows from its resources. Trials share the target's store, the
source models and, where their settings for it are equal, the inferred labels. A trial keeps the checkpoints of any run
in `trials/NNN`, so it continues from there whatever Tune remembers of it.
"""

import os
from dataclasses import dataclass, field
from typing import Any

from ray import tune

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.scores import LABEL_FREE, best_epoch
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.seating import Resources, check_fit, member_share, seating
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.stages.plan import prior_fingerprint
from ray_adaplr.stages.record import Tracker
from ray_adaplr.storage.digests import blake2
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.layout import DIAGNOSTIC, INFERRED, LABELS, ORACLE, SHARED, START_MODELS, STOPPED, TRIALS
from ray_adaplr.storage.ownership import check_ours, claim
from ray_adaplr.storage.run import Run
from ray_adaplr.sweep.space import separate, with_changes

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
    started_in: str = field(default_factory=os.getcwd)  # the user's folder; a trial's process works in another

    @property
    def more_is_better(self) -> bool:
        """The metric's direction."""
        return self.metric == ORACLE or LABEL_FREE[self.metric]

    def config_of(self, sample: dict[str, Any]) -> Config:
        """A trial's settings, from what Tune hands to it."""
        changes = sample["trial"]["changes"] if "trial" in sample else separate(sample, self.started_in)
        return with_changes(self.config, changes, self.num_classes)

    def resources_of(self, sample: dict[str, Any]) -> tune.PlacementGroupFactory:
        """The trial's bundles: the coordinator's first, then one for each rank of its members."""
        return tune.PlacementGroupFactory(self.bundles(self.config_of(sample).n_e))

    def check_fit(self, n_e: int) -> None:
        """Refuse a trial that the cluster can never hold; Tune would let it wait for ever."""
        if not self.scaling.wait_for_nodes:
            check_fit(self.bundles(n_e), self.nodes)

    def bundles(self, n_e: int) -> list[Resources]:
        """A member gets what it was told, else the largest share with which two such trials run side by side."""
        cpus, gpus = self.scaling.cpus_per_member, self.scaling.gpus_per_member
        if self.scaling.engine == "local":  # the members live in the trial's process
            return [member_share(2, self.nodes, cpus or 1.0, gpus)]
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
        made_by = self.inference_settings(config).to_toml() + prior_fingerprint(config, self.num_classes)
        name = blake2(made_by.encode(), size=4)
        return Folder(self.folder) / f"{SHARED}/{name}"


def run_trial(sample: dict[str, Any], sweep: Sweep, sources: list[Classifier], tracker: Tracker | None = None) -> None:
    """One trial: infer unless that is done, refine, report once per epoch."""
    config = sweep.config_of(sample)
    number = number_of(sample, tune.get_context().get_trial_id())
    run = Run((Folder(sweep.folder) / f"{TRIALS}/{number}").uri)
    shared = sweep.inferred_folder(config)
    if shared.exists(INFERRED) and not run.done(INFERRED):
        check_ours(run.folder, "run")
        claim(run.folder, "run")
        shared.copy(START_MODELS, run.folder)
        shared.copy(INFERRED, run.folder)
    told: list[dict[str, Any]] = []

    def tell(line: dict[str, Any]) -> None:
        if line["epoch"] not in {earlier["epoch"] for earlier in told}:
            told.append(line)
            tune.report(report_of(told, config, sweep.metric))

    for line in run.read_metrics():  # of before a resume, which a scheduler has to know as well
        if line["stage"] == "refine":
            tell(line)
    if has_ended(run.folder):
        return
    store, scaling = ImageStore.open(*sweep.targets), sweep.scaling
    if scaling.engine == "local":  # on what is reserved for the trial: a GPU that torch cannot use is no CPU
        scaling = scaling.model_copy(update={"gpus_per_member": sweep.bundles(config.n_e)[0].get("GPU", 0.0)})
    adapt(
        RunPlan(sources, store, run.folder.uri, config, scaling, source_names=sweep.source_names),
        until="refine",
        watch=tell,
        tracker=tracker,
    )


def has_ended(trial: Folder) -> bool:
    """Whether a trial has come to its end, or was stopped by the scheduler."""
    return trial.exists(LABELS) or trial.exists(STOPPED)


def number_of(sample: dict[str, Any], place: str) -> str:
    """The trial's name in the sweep: its place in the list, or Tune's own name where a searcher makes trials up."""
    return sample["trial"]["number"] if "trial" in sample else place.rsplit("/", 1)[-1]


def report_of(lines: list[dict[str, Any]], config: Config, metric: str) -> dict[str, Any]:
    """The newest epoch for Tune; with `stop = "auto"`, the figures of the best one so far, whose labels would be kept.

    Ground truth is in it under a name that says so, and is the score only if the user said so.
    """
    judged = best_epoch(lines, config.warmup) if config.stop == "auto" else lines[-1]["epoch"]
    [line] = [line for line in lines if line["epoch"] == judged]
    oracle = {DIAGNOSTIC: 1 - line["noise"]} if "noise" in line else {}
    score = 1 - line["noise"] if metric == ORACLE else line[metric]
    shown = {"alpha": config.alpha, "n_rl": config.n_rl, "n_e": config.n_e, "gamma": line["gamma"], "score": score}
    return {**shown, "epoch": lines[-1]["epoch"] + 1, **{name: line[name] for name in LABEL_FREE}, **oracle}
