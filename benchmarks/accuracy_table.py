"""The accuracy benchmark's rows as a Markdown table a task and as a plot of test accuracy against CPU time."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.harness import Row, spread

# Colours that the colour-blind can tell apart (Okabe and Ito), and a shape each.
LOOKS: dict[str, tuple[str, str, str]] = {
    "source_only": ("source only", "#000000", "x"),
    "cross_entropy": ("cross entropy", "#999999", "s"),
    "classic_nl": ("classic NL", "#56B4E9", "v"),
    "shot": ("SHOT", "#D55E00", "o"),
    "shot_at_adaplr_time": ("SHOT at AdaPLR's time", "#D55E00", "D"),
    "shot_augmented": ("SHOT, augmented", "#D55E00", "p"),
    "aad": ("AaD", "#CC79A7", "^"),
    "adaplr_paper": ("AdaPLR, paper's preset", "#F0E442", "P"),
    "adaplr_at_shot_time": ("AdaPLR at SHOT's time", "#009E73", "<"),
    "adaplr": ("AdaPLR", "#0072B2", "*"),
    "adaplr_ensemble": ("AdaPLR, ensemble", "#0072B2", "h"),
    "target_labels": ("the target's true labels", "#000000", "+"),
}


def write_table(rows: list[Row], path: Path) -> None:
    """A table a task, a line a method, mean ± standard deviation over seeds."""
    text = ["# Accuracy on the target's test split", ""]
    text += [
        "Means ± standard deviations over seeds. Noise is the share of wrong labels among the target images that were "
        "adapted to. A rival's labels are its adapted model's; high-confidence ones (HCS) are above alpha. CPU seconds "
        "are one thread's, without evaluation. The gain is in points of test accuracy over the source model, a CPU-"
        "minute. `adaplr_paper` is the paper's preset at the robust one's number of epochs, a small part of the "
        "paper's own.",
        "",
    ]
    for task in _in_order(rows, "task"):
        text += [f"## {task}", ""]
        text += [
            "| method | seeds | noise before → after | HCS share / noise | test accuracy | CPU s | gain a CPU-min |"
        ]
        text += ["| --- | --- | --- | --- | --- | --- | --- |"]
        for method in LOOKS:
            runs = [row for row in rows if row["task"] == task and row["method"] == method]
            if runs:
                text.append(_table_line(method, runs))
        text += ["", *_notes([row for row in rows if row["task"] == task])]
    commits, machines = _in_order(rows, "commit"), len({row["environment"] for row in rows})
    text += [f"Commits {', '.join(commits)}; {machines} kind(s) of machine; all settings are in the JSON file.", ""]
    path.write_text("\n".join(text))


def _table_line(method: str, runs: list[Row]) -> str:
    def column(name: str, digits: int = 3) -> str:
        return spread([row[name] for row in runs], digits)

    name = f"**{LOOKS[method][0]}**" if method == "adaplr" else LOOKS[method][0]
    noise = column("inferred_noise") + " → " + column("refined_noise")
    sure = column("hcs_share", 2) + " / " + column("hcs_noise")
    gain = "–" if method == "source_only" else column("gain_per_cpu_minute", 1)
    test = column("test_accuracy")
    if test == "–":
        test = f"no target model; ensemble {column('ensemble_test_accuracy')}"
    cells = [name, str(len(runs)), noise, sure, test, column("cpu_seconds", 0), gain]
    return f"| {' | '.join(cells)} |"


def _notes(runs: list[Row]) -> list[str]:
    """The warnings that runs gave, each once, with who gave it."""
    said: dict[str, list[str]] = {}
    for row in runs:
        for warning in row["warnings"]:
            if row["method"] != "adaplr_ensemble":  # the same run as adaplr
                said.setdefault(warning, []).append(f"{row['method']}, seed {row['seed']}")
    return [*(f"- {'; '.join(who)}: {warning}" for warning, who in said.items()), ""] if said else []


def plot(rows: list[Row], path: Path) -> None:
    """Test accuracy against CPU seconds, a panel a task, error bars of one standard deviation."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tasks = _in_order(rows, "task")
    columns = min(2, len(tasks))
    lines = -(-len(tasks) // columns)
    figure, panels = plt.subplots(lines, columns, figsize=(5.2 * columns, 3.6 * lines + 1.1), squeeze=False)
    for panel, task in zip(panels.flat, tasks):
        for method, (label, colour, shape) in LOOKS.items():
            runs = [row for row in rows if row["task"] == task and row["method"] == method]
            points = [(row["cpu_seconds"], row["test_accuracy"]) for row in runs]
            points = [point for point in points if None not in point]
            if not points:
                continue
            seconds, accuracies = zip(*points)
            if method in ("source_only", "target_labels"):
                line = ":" if method == "source_only" else "--"
                panel.axhline(mean(accuracies), color=colour, linestyle=line, linewidth=1, label=label)
                continue
            panel.errorbar(
                mean(seconds),
                mean(accuracies),
                xerr=_sd(seconds),
                yerr=_sd(accuracies),
                color=colour,
                capsize=2,
                fmt=shape,
                markersize=8,
                markeredgecolor="#333333",
                markeredgewidth=0.6,
                label=label,
            )
        _axes(panel, task)
    for panel in panels.flat[len(tasks) :]:
        panel.set_visible(False)
    figure.tight_layout(rect=(0, 0.9 / (3.6 * lines + 1.1), 1, 1))
    shown = {label: handle for panel in panels.flat for handle, label in zip(*panel.get_legend_handles_labels())}
    figure.legend(shown.values(), shown.keys(), loc="lower center", ncols=2 * columns, fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _axes(panel: Any, task: str) -> None:
    """Time by factors, accuracy by the factor of what is left to err: both spread out what matters."""
    from matplotlib.ticker import FixedLocator, FormatStrFormatter, LogLocator, NullFormatter

    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_yscale("logit")
    panel.yaxis.set_major_locator(FixedLocator([0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995]))
    panel.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.set_title(task.replace("-", " → ").upper(), fontsize=10)
    panel.set_xlabel("CPU seconds")
    panel.set_ylabel("test accuracy")
    panel.grid(alpha=0.3, linewidth=0.5)
    panel.spines[["top", "right"]].set_visible(False)


def _sd(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def _in_order(rows: list[Row], name: str) -> list[str]:
    """The values of a column, each once, in the order they first appear."""
    return list(dict.fromkeys(row[name] for row in rows))
