"""The tables of docs/evidence/paper.md and paper-rule.md, and a picture (`python -m benchmarks paper_tables`).

The rows are of `ray-adaplr paper`, whose results.json lies in `results/` under four names: `paper-digit5.json`,
`paper-digit5-rendered.json` (with rendered digits in place of Synthetic Digits) and, of the paper's preset,
`paper-tenth.json` and `paper-full.json`, by the number of images. Where it has no row, they are of `accuracy` and, for
PACS, of `photos`, both here. A file that is not there is left out.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from benchmarks import RESULTS, ROOT, command_line
from benchmarks.harness import Row, spread, table
from ray_adaplr.data.benchmarks import benchmarks, get_benchmark
from ray_adaplr.paper.published import Task, find_task, paper_row, paper_tasks

SHOWN = (1, 10, 25, 50)  # epochs of the paper's figure 3
THE_PAPERS = {"noise": 0.33, "gamma": 0.15}  # SVHN→MNIST: noise of the inferred labels, gamma at epoch 10
STAGES = ("inferred", "refined", "target")
NAMES = {"mnist": "MNIST", "usps": "USPS", "svhn": "SVHN", "mnistm": "MNIST-M", "synth": "Synthetic Digits"}


def task_name(task: str) -> str:
    """`USPS→MNIST` of `usps-mnist`."""
    sides = [[NAMES.get(part, part.replace("_painting", "")) for part in side.split("+")] for side in task.split("-")]
    return "→".join(" + ".join(side) for side in sides)


def conditions(content: Row) -> str:
    """A line for the paper's figure 3, and one per condition."""
    lines = [[task_name("svhn-mnist"), "*the paper's figure 3*", "0.330", "≈ 0 / ≈ 0.15 / – / –", "– / – / – / –", "–"]]
    for row in sorted([*content["rows"], *_plain_rule()], key=lambda row: row["task"] == "svhn-mnist"):
        gone, name = row["alarm_epoch"], f"{row['condition']}, seed {row['seed']}"
        cells = [name, f"{row['inferred_noise']:.3f}", *(_at(row, course) for course in ("gamma", "noise"))]
        lines.append([task_name(row["task"]), *cells, "none" if gone is None else f"epoch {gone}"])
    head = ["task", "what is changed", "inferred noise", "gamma at epochs 1 / 10 / 25 / 50", "noise at the same"]
    return table([*head, "a class dies out"], lines)


def courses(content: Row) -> str:
    """A line per run of `paper_curves`, over all of its epochs, with the accuracies that a finished one came to."""
    rows = [row for file in ("paper-tenth.json", "paper-full.json") for row in _rows_if_there(file)]
    ends = {(row["task"], row["target_images"]): _stages(row) for row in rows}
    lines = []
    for row in content["rows"]:
        gone, wrong = row["alarm_epoch"], row["by_epoch"]["hcs_noise"][-1]
        end = ends.get((row["task"], row["images"]), "–") if row["finished"] else "not finished"
        cells = [task_name(row["task"]), f"{row['images']:,}, {row['epochs_done']}", end]
        cells += [_at(row, course, (*SHOWN, 100, row["epochs_done"])) for course in ("gamma", "noise")]
        lines.append([*cells, "–" if wrong is None else f"{wrong:.3f}", "none" if gone is None else f"epoch {gone}"])
    epochs = " / ".join(map(str, (*SHOWN, 100, "last")))
    head = ["task", "images, epochs", "inferred / refined / target", f"gamma at epochs {epochs}", "noise at the same"]
    head.append("sure labels' noise, last")
    return table([*head, "a class dies out"], lines)


def _plain_rule() -> list[Row]:
    """The ablations' runs of the paper's rule with other settings of training, 25 epochs each."""
    content = json.loads((RESULTS / "ablations.json").read_text())
    wanted = (("harm", "on_harm=off"), ("n_e", "3"))
    found = [row for row in content["rows"] if (row["study"], row["variant"]) in wanted]
    for row in found:
        augmented = content["settings"][row["settings"]]["task"]["source_augmented"]
        condition = "`robust`'s training, an augmented source" if augmented else "`robust`'s training"
        row |= {"condition": condition, "alarm_epoch": _first_alarm(row["warnings"])}
    return sorted(found, key=lambda row: (row["condition"], row["seed"]))


def _first_alarm(warnings: list[str]) -> int | None:
    """The epoch, counted from 1, in which a class was first seen to die out."""
    told = re.search(r"dying out .*first in epoch (\d+)\): (refinement)?", " ".join(warnings))
    if told is None:
        return None
    from_zero = told[2] is not None  # earlier versions said "refinement was doing harm", and counted from 0
    return int(told[1]) + from_zero


def _at(row: Row, name: str, epochs: Sequence[int] = SHOWN) -> str:
    course = row["by_epoch"][name]
    return " / ".join(f"{course[epoch - 1]:.3f}" if epoch <= len(course) else "–" for epoch in epochs)


def rows_of_the_paper(content: Row) -> str:
    """A line per task of the paper's tables, with our figures where there are any, and of tasks that it has not.

    Rows with rendered digits come last. Their tasks have the paper's names, but its figures do not belong beside them.
    """
    ours = {row["task"]: row for row in content["rows"]}
    tasks = [task for benchmark in benchmarks().values() for task in paper_tasks(benchmark)]
    more = [find_task(get_benchmark("digit5"), name) for name in ours.keys() - {task.name for task in tasks}]
    lines = [
        [task.benchmark, task_name(task.name), _published(task), *_ours(task, ours.get(task.name))]
        for task in [*tasks, *sorted(more, key=lambda task: task.name)]
    ]
    for row in sorted(_rows_if_there("paper-digit5-rendered.json"), key=lambda row: row["task"]):
        source, target = task_name(row["task"]).split("→")
        name = f"{source}→rendered digits" if row["on"] == "synth" else f"{source}, with rendered digits→{target}"
        lines.append(["digit5", name, "–", *_of_command(row)])
    head = ["benchmark", "task", "paper: inferred / refined / target", "ours", "target images, px, epochs"]
    return table([*head, "minutes", "seeds"], lines)


def _published(task: Task) -> str:
    row = paper_row(task.benchmark, task.name)
    if row is None:
        return "–"
    return " / ".join(f"{row[stage]['overall'] or mean(row[stage]['values']):.1f}" for stage in STAGES)


def _ours(task: Task, row: Row | None) -> list[str]:
    """Our figures, their scale, minutes of a run and the number of seeds; dashes where there are none."""
    if row:
        return _of_command(row)
    found = _of_photographs(task) if task.benchmark == "pacs" else _of_digits(task)
    return found or ["–"] * 4


def _of_command(row: Row) -> list[str]:
    """The same by `ray-adaplr paper`."""
    scale = f"{row['target_images']:,}, {row['size']}, {row['epochs']} + {row['distill_epochs']}"
    minutes = f"{row['minutes']:.0f}" if "minutes" in row else "–"
    return [_stages(row), scale, minutes, str(row["seeds"])]


def _stages(row: Row) -> str:
    return " / ".join(f"{row[stage]['mean']:.1f}" for stage in STAGES)


def _rows_if_there(file: str) -> list[Row]:
    path = RESULTS / file
    return json.loads(path.read_text())["rows"] if path.exists() else []


def _of_digits(task: Task) -> list[str] | None:
    """The same by the accuracy benchmark."""
    for file in ("accuracy-large.json", "accuracy.json"):
        content = json.loads((RESULTS / file).read_text())
        found = [each for each in content["rows"] if (each["task"], each["method"]) == (task.name, "adaplr")]
        if found and task.benchmark == "digit5":
            settings = content["settings"][found[0]["settings"]]
            config, shown = settings["config"], settings["task"]
            columns = [[100 * (1 - each[f"{stage}_noise"]) for each in found] for stage in STAGES[:2]]
            columns.append([100 * each["test_accuracy"] for each in found])
            images = f"{shown['target_limit']:,}" if shown["target_limit"] else "all"
            scale = f"{images}, {shown['size']}, {config['epochs']} + {config['distill_epochs']}"
            return [" / ".join(spread(values, 1) for values in columns), scale, _minutes(found), str(len(found))]
    return None


def _of_photographs(task: Task) -> list[str] | None:
    """The same by the benchmark of photographs, with its own network; all three figures are of the target's images."""
    content = json.loads((RESULTS / "photos.json").read_text())
    found = [each for each in content["rows"] if (each["task"], each["method"]) == (task.name, "ours")]
    if not found:
        return None
    settings = content["settings"][found[0]["settings"]]
    columns = [[each[name] for each in found] for name in ("inferred", "refined", "adapted")]
    preset = settings["preset"]
    scale = f"{settings['images']}, {settings['size']}, {preset['epochs']} + {preset['distill_epochs']}"
    return [" / ".join(spread(values, 1) for values in columns), scale, _minutes(found), str(len(found))]


def _minutes(rows: list[Row]) -> str:
    return f"{mean(row['cpu_seconds'] for row in rows) / 60:.0f}"


def plot(rows: list[Row], path: Path) -> None:
    """Noise (solid) and gamma (dashed) over the epochs, as in the paper's figure 4; a panel per task."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure, panels = plt.subplots(1, len(tasks), figsize=(6.4 * len(tasks), 4.4), squeeze=False)
    for panel, task in zip(panels.flat, tasks):
        for i, row in enumerate(row for row in rows if row["task"] == task):
            epochs = range(1, len(row["by_epoch"]["noise"]) + 1)
            colour = plt.get_cmap("tab20")(i)
            panel.plot(epochs, row["by_epoch"]["noise"], color=colour, linewidth=1.6, label=row["condition"])
            panel.plot(epochs, row["by_epoch"]["gamma"], color=colour, linewidth=1.0, linestyle="--")
        if task == "svhn-mnist":
            panel.plot([10], [THE_PAPERS["gamma"]], "k*", markersize=10, label="the paper's gamma")
            panel.plot([1], [THE_PAPERS["noise"]], "kx", markersize=8, label="the paper's first noise")
        panel.set_title(f"{task_name(task)}: noise (solid) and gamma (dashed)", fontsize=10)
        panel.set_xlabel("epoch")
        panel.set_ylim(0, 1)
        panel.grid(alpha=0.3, linewidth=0.5)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(fontsize=7, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = command_line("paper_tables", __doc__)
    parser.add_argument("--plot", type=Path, default=ROOT / "docs/images/conditions.png")
    options = parser.parse_args(arguments)
    plot(json.loads((RESULTS / "conditions.json").read_text())["rows"], options.plot)
    print(f"{options.plot} is written.")
