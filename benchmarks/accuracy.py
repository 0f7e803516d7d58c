"""AdaPLR against its rivals on real digits: tasks x methods x seeds, one row a run, a table and a plot.

    python -m benchmarks accuracy --data DIR [--quick | --large | --no-shift]

A killed benchmark continues where it stopped: rows that are there with the same settings are not made again. The
target's labels are used for the figures only. What each method is given is said in README.md.
"""

import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import RESULTS, ROOT, WORK, command_line
from benchmarks.accuracy_table import plot, write_table
from benchmarks.harness import AdaplrRun, Results, Row, noise_figures, run_adaplr
from benchmarks.rivals import RIVALS, TRAINING, first_use, labels_of, target_labels
from benchmarks.tasks import NO_SHIFT, TASKS, Start, Task, described, short_hash, start_of
from ray_adaplr.cli.options import parse_setting
from ray_adaplr.config import Config
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.predict import predict_logits
from ray_adaplr.stages.evaluate import evaluate

DEVICE = "cpu"
METHODS = (
    "source_only",
    "cross_entropy",
    "classic_nl",
    "shot",
    "aad",
    "adaplr_paper",
    "adaplr",
    "adaplr_ensemble",
    "adaplr_at_shot_time",
    "shot_at_adaplr_time",
    "target_labels",
)
EXTRA_METHODS = ("shot_augmented",)  # not as published, so only when asked for

# At SHOT's time three members could train for two or three epochs only; one member with the paper's best number of
# residual labels for one member (its figure 6b) can train for three times as many.
AT_SHOT_TIME: dict[str, Any] = {"n_e": 1, "n_rl": 4}


@dataclass(frozen=True)
class Scale:
    """How much of it all is run when nothing else is said."""

    about: str
    tasks: tuple[str, ...] = tuple(TASKS)
    methods: tuple[str, ...] = METHODS
    seeds: tuple[int, ...] = (0, 1, 2)
    task: Row = field(default_factory=dict)  # changes to every task
    preset: Row = field(default_factory=dict)  # changes to AdaPLR's preset
    rival_epochs: int = 30  # SHOT's published number for digits
    resumable: bool = False


SCALES = {
    "": Scale("four tasks, three seeds"),
    "-quick": Scale(
        "two tasks, one seed, fewer images and epochs",
        ("usps-mnist", "mnist-usps"),
        seeds=(0,),
        task={"source_limit": 5000, "target_limit": 3000},
        preset={"epochs": 15, "distill_epochs": 10},
        rival_epochs=15,
    ),
    "-large": Scale(
        "two tasks by the paper's protocol: 25,000 images of 32 px RGB; one seed, half an hour of CPU a run",
        ("usps-mnist", "svhn-mnist"),
        ("source_only", "adaplr", "adaplr_ensemble", "shot", "target_labels"),
        (0,),
        task={"size": 32, "channels": 3, "width": 32, "target_limit": None},
        preset={"epochs": 16, "warm_start_epochs": 5, "distill_epochs": 8},
        rival_epochs=16,
        resumable=True,
    ),
    "-no-shift": Scale(
        "other images of the source's own domain, three seeds",
        tuple(NO_SHIFT),
        ("source_only", "shot", "adaplr"),
    ),
}


class Case:
    """One task with one seed: runs methods, or finds that they have been run.

    Args:
        task: which.
        seed: of the source model and of the method.
        changes: to AdaPLR's robust preset.
        data: folder of the npz files.
        work: where stores, source models and runs are kept.
        results: where rows go.
        again: methods to run although their rows are there.
        rival_epochs: of all methods that are not AdaPLR.
        resumable: AdaPLR's runs keep checkpoints, so that a killed one goes on; its CPU time is then unknown.
    """

    def __init__(
        self,
        task: Task,
        seed: int,
        changes: Row,
        data: Path,
        work: Path,
        results: Results,
        again: set[str],
        rival_epochs: int = 30,
        resumable: bool = False,
    ) -> None:
        self.task, self.seed, self.data, self.work, self.results = task, seed, data, work, results
        self.rival_epochs, self.resumable = rival_epochs, resumable
        self.config = Config.load("robust", changes={**task.changes, **changes, "seed": seed})
        self._again = set(again)

    @cached_property
    def start(self) -> Start:
        """Source model and stores; made only when some method has to run."""
        start = start_of(self.task, self.seed, self.data, self.work)
        first_use(start.source, start.target)
        return start

    @cached_property
    def source_accuracy(self) -> float:
        """Of the source model on the target's test split."""
        return evaluate(self.start.source, self.start.test)["accuracy"]

    def row(self, method: str) -> Row:
        """The method's row: found, or made now."""
        found = self.results.find(self._key(method), self.settings(method))
        if found and method not in self._again:
            return found
        started = time.monotonic()
        for name, figures in self._run(method).items():
            self._again.discard(name)
            accuracy, seconds = figures["test_accuracy"], figures["cpu_seconds"]
            gain = None if None in (accuracy, seconds) else 6000 * (accuracy - self.source_accuracy) / seconds
            figures |= {"source_test_accuracy": self.source_accuracy, "gain_per_cpu_minute": gain}
            row = self.results.add(self._key(name), self.settings(name), figures)
            print(f"{_line(row)}  ({time.monotonic() - started:.0f} s with evaluation)", flush=True)
        return self.row(method)

    def settings(self, method: str) -> Row:
        """What fixes the result besides the seed; it does not hold what follows from measured seconds."""
        common = {"task": described(self.task), "method": method}
        if method in RIVALS or method == "target_labels":
            return {**common, "epochs": self.rival_epochs, "training": TRAINING}
        config = self._paper_config() if method == "adaplr_paper" else self.config
        dump = config.model_dump(mode="json", exclude={"seed"})
        return {**common, "config": dump, **({"changes": AT_SHOT_TIME} if method == "adaplr_at_shot_time" else {})}

    def run_folder(self, method: str) -> Path:
        """Where an AdaPLR method's run lies."""
        name = f"{self.task.name}-{method}-{self.seed}-{short_hash(self.settings(method))}"
        return self.work / "runs" / name

    def _key(self, method: str) -> Row:
        return {"task": self.task.name, "method": method, "seed": self.seed}

    def _run(self, method: str) -> dict[str, Row]:
        """Figures of the run's rows by method; AdaPLR's run gives its target model's and its ensemble's."""
        if method in ("adaplr", "adaplr_ensemble"):
            run = self._adapt("adaplr", self.config)
            stages = run.figures["cpu_seconds_by_stage"]
            until_refined = {stage: stages[stage] for stage in ("infer", "refine") if stage in stages}
            ensemble = {
                **run.figures,
                "test_accuracy": run.figures["ensemble_test_accuracy"],
                "cpu_seconds": sum(until_refined.values()) if run.figures["cpu_seconds"] else None,
                "cpu_seconds_by_stage": until_refined,
                "wall_seconds": None,  # not measured apart from the target model's
            }
            return {"adaplr": run.figures, "adaplr_ensemble": ensemble}
        if method == "adaplr_paper":
            return {method: self._adapt(method, self._paper_config()).figures}
        if method == "adaplr_at_shot_time":
            config = cut_to(self.row("shot")["cpu_seconds"], self.row("adaplr"), self.config)
            cut = {name: getattr(config, name) for name in ("epochs", "distill_epochs", "warm_start_epochs", "warmup")}
            return {method: {**self._adapt(method, config).figures, "cut_to": cut}}
        if method == "shot_at_adaplr_time":
            factor = self.row("adaplr")["cpu_seconds"] / self.row("shot")["cpu_seconds"]
            return {method: self._rival("shot", max(1, round(self.rival_epochs * factor)))}
        return {method: self._rival(method, self.rival_epochs)}

    def _paper_config(self) -> Config:
        """The paper's preset with the robust one's number of epochs, a small part of the paper's own."""
        lengths = {"epochs": self.config.epochs, "distill_epochs": self.config.distill_epochs}
        return Config.load("paper", changes={"seed": self.seed, **lengths})

    def _rival(self, name: str, epochs: int) -> Row:
        source, target = self.start.source, self.start.target
        cpu, wall = time.process_time(), time.monotonic()
        train = target_labels if name == "target_labels" else RIVALS[name]
        model, labels = train(source, target, self.seed, epochs, DEVICE)
        seconds = {"cpu_seconds": time.process_time() - cpu, "wall_seconds": time.monotonic() - wall}
        sure = _confidence(model, self.start) > self.config.alpha
        return {
            **noise_figures(target, labels_of(source, target, DEVICE), labels, sure),
            "start_noise": None,
            "test_accuracy": evaluate(model, self.start.test)["accuracy"],
            **seconds,
            "engine": "local",
            "epochs": epochs,
            "warnings": [],
        }

    def _adapt(self, method: str, config: Config) -> AdaplrRun:
        run = run_adaplr(self.start.source, self.start.target, self.run_folder(method), config, self.resumable)
        run.figures["ensemble_test_accuracy"] = ensemble_accuracy(run.members, self.start)
        target = run.target_model
        run.figures["test_accuracy"] = evaluate(target, self.start.test)["accuracy"] if target else None
        return run


def cut_to(cpu_seconds: float, full: Row, config: Config) -> Config:
    """AdaPLR with fewer epochs, so that it takes about so long, by what the full run took a stage and an epoch.

    The warm start keeps its length as long as it takes at most half; refinement and distillation share the rest as
    they do in the full run.

    Args:
        cpu_seconds: the time to take.
        full: the row of the full run.
        config: of the full run.
    """
    stages = full["cpu_seconds_by_stage"]
    warm = min(1.0, 0.5 * cpu_seconds / stages["infer"])
    members = AT_SHOT_TIME.get("n_e", config.n_e) / config.n_e
    rest = (cpu_seconds - warm * stages["infer"]) / (members * stages["refine"] + stages.get("distill", 0.0))
    epochs = max(1, round(rest * config.epochs))
    lengths = {
        "warm_start_epochs": max(1, int(warm * config.warm_start_epochs)),
        "epochs": epochs,
        "distill_epochs": max(1, round(rest * config.distill_epochs)),
        "warmup": min(config.warmup, epochs // 3),
    }
    return Config(**{**config.model_dump(), **AT_SHOT_TIME, **lengths})


def _confidence(model: Classifier, start: Start) -> np.ndarray:
    logits = predict_logits(model, start.target.read, np.arange(len(start.target)), DEVICE)
    return torch.from_numpy(logits).softmax(1).amax(1).numpy()


def ensemble_accuracy(members: list[Classifier], start: Start) -> float:
    """Of the members' summed logits on the test split."""
    rows = np.arange(len(start.test))
    logits = sum(predict_logits(member, start.test.read, rows, DEVICE) for member in members)
    return float((np.argmax(logits, 1) == start.test.ground_truth()).mean())


def _line(row: Row) -> str:
    accuracy = "none" if row["test_accuracy"] is None else f"{row['test_accuracy']:.4f}"
    noise = f"noise {row['inferred_noise']:.3f} -> {row['refined_noise']:.3f}"
    name = f"{row['task']:12} {row['method']:20} seed {row['seed']}"
    seconds = "unknown" if row["cpu_seconds"] is None else f"{row['cpu_seconds']:6.1f} s"
    return f"{name}  {noise}  test {accuracy}  CPU {seconds}"


def main(arguments: list[str] | None = None) -> None:
    parser = command_line("accuracy", __doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of mnist_train.npz, mnist_test.npz, ...")
    for name, scale in SCALES.items():
        if name:
            parser.add_argument(
                f"-{name}", dest="scale", action="store_const", const=name, default="", help=scale.about
            )
    parser.add_argument("--tasks", nargs="+", choices=[*TASKS, *NO_SHIFT])
    parser.add_argument("--methods", nargs="+", choices=[*METHODS, *EXTRA_METHODS])
    parser.add_argument("--seeds", nargs="+", type=int, help="0 1 2 by default, 0 with --quick and --large")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change AdaPLR's preset")
    parser.add_argument("--limit", type=int, help="take that many source and target images at most")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/accuracy[-quick|-large|-no-shift].json")
    parser.add_argument("--plot", type=Path, help="default: docs/images/accuracy.png, or beside --out")
    parser.add_argument("--work", type=Path, default=WORK, help="stores, source models, runs")
    parser.add_argument("--again", nargs="*", choices=[*METHODS, *EXTRA_METHODS], help="run again; all when none named")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)
    scale = SCALES[options.scale]
    results = Results(options.out or RESULTS / f"accuracy{options.scale}.json")
    usual = ROOT / "docs/images/accuracy.png"
    picture = options.plot or (results.path.with_suffix(".png") if options.scale or options.out else usual)
    methods = options.methods or scale.methods
    changes = {**scale.preset, **dict(map(parse_setting, options.set))}
    again = set() if options.again is None else set(options.again or methods)
    for seed in options.seeds or scale.seeds:
        for name in options.tasks or scale.tasks:
            task = replace({**TASKS, **NO_SHIFT}[name], **scale.task)
            if options.limit:
                task = replace(task, source_limit=options.limit, target_limit=options.limit)
            case = Case(
                task, seed, changes, options.data, options.work, results, again, scale.rival_epochs, scale.resumable
            )
            for method in methods:
                case.row(method)
            write_table(Results(results.path).rows, results.path.with_suffix(".md"))
    plot(Results(results.path).rows, picture)
    print(results.path.with_suffix(".md").read_text())
    print(f"{results.path}, {results.path.with_suffix('.md')} and {picture} are written.")
