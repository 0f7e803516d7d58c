"""The row of the speed benchmark against SHOT: CPU time until a run is as good as SHOT, on the digit tasks."""

import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks import WORK
from benchmarks.accuracy import DEVICE, SCALES, ensemble_accuracy
from benchmarks.measure import Measurement
from benchmarks.rivals import first_use, shot
from benchmarks.tasks import TASKS, Start, start_of
from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.engine.engine import LocalEngine
from ray_adaplr.engine.ensemble import Ensemble
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.stages.evaluate import evaluate
from ray_adaplr.storage.run import Run


class AsGood(Exception):
    """The models of a run are as good as SHOT's."""


def time_to_shot(data: Path) -> list[Measurement]:
    """`adapt` with its defaults against SHOT as published, in one process, seed 0; the mean over the tasks."""
    found = {name: _task(start_of(task, 0, data, WORK), task.changes) for name, task in TASKS.items()}
    quotients = [each["ours"] / each["shot"] for each in found.values()]
    row = "adapt ÷ SHOT, CPU time to SHOT's own test accuracy (mean of four digit tasks, seed 0)"
    said = [f"{name} {each['ours'] / each['shot']:.2f} ({each['reached']})" for name, each in found.items()]
    mean, spread = sum(quotients) / len(quotients), (min(quotients), max(quotients))
    return [Measurement(row, mean, spread, 1.0, False, "; ".join(said), {"tasks": found})]


def _task(start: Start, changes: dict[str, Any]) -> dict[str, Any]:
    """CPU seconds of SHOT, and ours until the models at hand are as good on the test split, and when that was."""
    first_use(start.source, start.target)
    began = time.process_time()
    model, _ = shot(start.source, start.target, 0, SCALES[""].rival_epochs, DEVICE)
    taken = time.process_time() - began
    wanted = evaluate(model, start.test)["accuracy"]
    with tempfile.TemporaryDirectory() as made:
        plan = RunPlan([start.source], start.target, made, Config(**changes), ScalingConfig(engine="local"))
        began = time.process_time()
        adapt(plan, until="infer")
        ours = time.process_time() - began
        [warmed] = Run(made).read_inferred([start.source]).models
        accuracy, reached = ensemble_accuracy([warmed], start), "after the warm start"
        if accuracy < wanted:
            seconds, accuracy, reached = _refined_until(wanted, plan, start)
            ours += seconds
    return {"shot": taken, "shot_accuracy": wanted, "ours": ours, "accuracy": accuracy, "reached": reached}


def _refined_until(wanted: float, plan: RunPlan, start: Start) -> tuple[float, float, str]:
    """CPU seconds of the stages after inferring, until the ensemble or else the target model is good enough."""
    ensembles: list[Ensemble] = []
    make, looked, reached = LocalEngine.ensemble, 0.0, (0.0, "never")

    def noted(*args: Any) -> Ensemble:
        ensembles.append(make(*args))
        return ensembles[0]

    def look(line: dict[str, Any]) -> None:
        nonlocal looked, reached
        asked = time.process_time()
        accuracy = ensemble_accuracy(list(ensembles[0].models().values()), start)
        reached = accuracy, f"after epoch {line['epoch']}"
        looked += time.process_time() - asked
        if accuracy >= wanted:
            raise AsGood

    began = time.process_time()
    try:
        with patch.object(LocalEngine, "ensemble", noted):
            result = adapt(plan, watch=look)
    except AsGood:
        return time.process_time() - began - looked, *reached
    taken, accuracy = time.process_time() - began - looked, evaluate(result.classifier, start.test)["accuracy"]
    return taken, accuracy, "by the target model" if accuracy >= wanted else "never: all of the run is counted"
