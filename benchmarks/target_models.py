"""What to train the target model on, and from where: the refined labels of one run, several ways to distill them.

    python -m benchmarks target_models --data DIR [--tasks usps-mnist mnist-usps svhn-mnist] [--seeds 0 1 2]

The runs are those of accuracy.py (found in `--work`, or made now). Also measured: the ensemble itself, and the average
of the members' weights. Ground truth makes the figures only; the preset's choice was made by this table, on USPS ->
MNIST and MNIST -> MNIST-M, seed 0.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from benchmarks import digits_command_line
from benchmarks.accuracy import DEVICE, Case, ensemble_accuracy
from benchmarks.harness import Results, Row, spread
from benchmarks.tasks import TASKS, described
from ray_adaplr.config import Config
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.predict import reestimate_batchnorm
from ray_adaplr.engine.training import distill_training
from ray_adaplr.stages.evaluate import evaluate
from ray_adaplr.stages.supervised import Training, distill_lesson, distill_start
from ray_adaplr.storage.layout import LABELS
from ray_adaplr.storage.models import load_model
from ray_adaplr.storage.run import Run

VARIANTS: dict[str, dict[str, Any]] = {  # changes to the robust preset
    "weighted by confidence (robust)": {},
    "high-confidence samples": {"distill_on": "hcs"},
    "all, equally": {"distill_on": "all"},
    "weighted, the refinement's crop": {"distill_crop": (0.5, 1.0)},
    "weighted, from the members' average": {"distill_start": "average"},
    "weighted, from the source model": {"distill_start": "source"},
}
WITHOUT_TRAINING = ("the ensemble", "the members' average")


def measure(case: Case, results: Results, work: Path) -> None:
    """All rows of a task and seed."""
    key = {"task": case.task.name, "seed": case.seed}
    missing = {}
    for name, changes in [*VARIANTS.items(), *((name, None) for name in WITHOUT_TRAINING)]:
        config = case.config.model_copy(update=changes or {})
        settings = {"task": described(case.task), "config": config.model_dump(mode="json", exclude={"seed"})}
        if not results.find({**key, "variant": name}, settings):
            missing[name] = (config, settings)
    if not missing:
        return
    folder = case.run_folder("adaplr")
    if not Run(str(folder)).done(LABELS):
        case.row("adaplr")
    source = case.start.source
    members = {k: load_model(folder / f"ensemble/{k}", like=source) for k in range(case.config.n_e)}
    table = Run(str(folder)).read_labels()
    for name, (config, settings) in missing.items():
        cpu = time.process_time()
        if name == "the ensemble":
            accuracy = ensemble_accuracy(list(members.values()), case.start)
        elif name == "the members' average":
            average = distill_start(source, members, config.model_copy(update={"distill_start": "average"}))
            reestimate_batchnorm(average, case.start.target.read, np.arange(len(table)), DEVICE)
            accuracy = evaluate(average, case.start.test)["accuracy"]
        else:
            model = _distilled(case, distill_start(source, members, config), table, config, work)
            accuracy = evaluate(model, case.start.test)["accuracy"]
        figures = {"test_accuracy": accuracy, "cpu_seconds": time.process_time() - cpu}
        results.add({**key, "variant": name}, settings, figures)
        print(f"{case.task.name:12} seed {case.seed}  {name:36} {accuracy:.4f}", flush=True)


def _distilled(case: Case, start: Classifier, table: pa.Table, config: Config, work: Path) -> Classifier:
    lesson = distill_lesson(case.start.target, table, config)
    model, checkpoints = (str(work / "distilled" / name) for name in ("model", "checkpoints"))
    training = Training("distill", start, lesson, distill_training(config), model, checkpoints)
    Path(checkpoints, "distill.pt").unlink(missing_ok=True)
    list(training.epochs(DEVICE, 1))
    return load_model(model, like=case.start.source)


def write_table(rows: list[Row], path: Path) -> None:
    """A line a variant, a column a task: mean ± standard deviation over seeds."""
    tasks = [name for name in TASKS if any(row["task"] == name for row in rows)]
    text = ["# Ways to the target model", "", "Test accuracy from the same refined labels, means over seeds.", ""]
    text += [f"| trained on | {' | '.join(tasks)} |", f"| --- |{' --- |' * len(tasks)}"]
    for variant in [*VARIANTS, *WITHOUT_TRAINING]:
        cells = [
            spread([row["test_accuracy"] for row in rows if (row["task"], row["variant"]) == (task, variant)], 4)
            for task in tasks
        ]
        text.append(f"| {variant} | {' | '.join(cells)} |")
    path.write_text("\n".join([*text, ""]))


def main(arguments: list[str] | None = None) -> None:
    parser = digits_command_line("target_models", __doc__, seeds=[0, 1, 2])
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=["usps-mnist", "mnist-usps", "svhn-mnist"])
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)
    results = Results(options.out)
    accuracy = Results(options.work / "target_models_accuracy.json")  # the rows of runs that are made now
    for seed in options.seeds:
        for name in options.tasks:
            measure(Case(TASKS[name], seed, {}, options.data, options.work, accuracy, set()), results, options.work)
    write_table(Results(options.out).rows, options.out.with_suffix(".md"))
    print(options.out.with_suffix(".md").read_text())
