"""`adapt --stop auto` against all epochs: epochs it needs, noise of the labels it ships, and the model it picks.

    python -m benchmarks stop_auto --data DIR [--tasks usps-mnist ...] [--images 2000] [--epochs 30] [--seeds 0]

Test accuracy of every candidate (target model, ensemble, members) stands beside the pick, on the target's test split;
it has no part in the choice.
"""

import argparse
from dataclasses import replace

import torch

from benchmarks import digits_command_line
from benchmarks.harness import Results, Row, run_adaplr, spread
from benchmarks.rivals import first_use
from benchmarks.tasks import TASKS, described, start_of
from ray_adaplr.config import Config
from ray_adaplr.stages.evaluate import evaluate
from ray_adaplr.storage.run import Run

DIGITS = ["usps-mnist", "mnist-usps", "svhn-mnist"]


def run_case(task_name: str, seed: int, options: argparse.Namespace, results: Results) -> None:
    """Adapt twice, with and without the rule, unless the row is there."""
    task = replace(TASKS[task_name], target_limit=options.images)
    config = Config.load("robust", changes={"epochs": options.epochs, "seed": seed})
    key, settings = {"task": task_name, "seed": seed}, {"task": described(task), "config": config.model_dump()}
    if results.find(key, settings):
        return
    start = start_of(task, seed, options.data, options.work)
    first_use(start.source, start.target)
    figures: Row = {}
    for stop in ("epochs", "auto"):
        out = options.work / "runs" / f"stop-{stop}-{task_name}-{seed}"
        run = run_adaplr(start.source, start.target, out, config.model_copy(update={"stop": stop}))
        used = sum(line["stage"] == "refine" for line in run.metrics)
        assert run.target_model is not None
        accuracy = {"target_model": evaluate(run.target_model, start.test)["accuracy"]}
        if stop == "auto":
            accuracy["ensemble"] = evaluate(run.members, start.test)["accuracy"]
            accuracy |= {f"ensemble/{k}": evaluate(m, start.test)["accuracy"] for k, m in enumerate(run.members)}
            figures["shipped"] = Run(out).folder.read_json("shipped.json")
        figures[stop] = {"epochs": used, **run.figures, "test_accuracy": accuracy}
    row = results.add(key, settings, figures)
    print(line_of(row), flush=True)


def line_of(row: Row) -> str:
    """A row of the table."""
    auto, full, shipped = row["auto"], row["epochs"], row["shipped"]
    accuracy, pick = auto["test_accuracy"], shipped["model"]
    members = spread([value for name, value in accuracy.items() if "/" in name])
    return (
        f"| {row['task']} | {row['seed']} | {auto['epochs']} of {full['epochs']} | {shipped['labels']} | "
        f"{full['refined_noise']:.3f} | {auto['refined_noise']:.3f} | {full['test_accuracy']['target_model']:.3f} | "
        f"{accuracy['target_model']:.3f} | {accuracy['ensemble']:.3f} | {members} | {pick}: {accuracy[pick]:.3f} |"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = digits_command_line("stop_auto", __doc__, seeds=[0])
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=DIGITS)
    parser.add_argument("--images", type=int, default=2000, help="target images")
    parser.add_argument("--epochs", type=int, default=30, help="of refinement")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)
    results = Results(options.out)
    for task in options.tasks:
        for seed in options.seeds:
            run_case(task, seed, options, results)
    head = [
        "task",
        "seed",
        "epochs",
        "labels of",
        "noise, all epochs",
        "noise, auto",
        "test, all epochs: target model",
        "test, auto: target model",
        "ensemble",
        "members",
        "pick",
    ]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head), *map(line_of, results.rows)]
    options.out.with_suffix(".md").write_text("# `adapt --stop auto`\n\n" + "\n".join(lines) + "\n")
