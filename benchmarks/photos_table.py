"""The tables of `python -m benchmarks photos`, and its picture (`python -m benchmarks photos_table`)."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean

from benchmarks import RESULTS, ROOT, command_line
from benchmarks.harness import Row, spread, table

LOOKS = {  # method -> what it is called, colour, shape, and its figures on adapted and on unseen images
    "source": ("source model", "#999999", "|", ("inferred", "source_test")),
    "shot": ("SHOT", "#d95f02", "s", ("adapted", "adapted_test")),
    "ours": ("ray_adaplr", "#1b6ca8", "o", ("adapted", "adapted_test")),
    "guest": ("ray_adaplr with a guest", "#1b6ca8", "D", ("adapted", "adapted_test")),
}


def photos(content: Row) -> str:
    """A line per task, their means, and the computing time: percent right on the target's images / on unseen ones.

    A source and target of one domain, where there is nothing to adapt to, stand below the means.
    """
    rows = content["rows"]
    both = ("adapted", "adapted_test")
    columns = {
        "source model": ("source", ("inferred", "source_test")),
        "SHOT": ("shot", both),
        "AaD": ("aad", both),
        "short run": ("quick", both),
        "our labels": ("ours", ("refined",)),
        "**ray_adaplr**": ("ours", both),
        "short run with a guest": ("quick_guest", both),
        "guest's labels": ("guest", ("guest_labels",)),
        "our labels with it": ("guest", ("refined",)),
        "**with a guest**": ("guest", both),
        "on true labels": ("truth", both),
    }
    sources = [{**row, "method": "source"} for row in {(row["task"], row["seed"]): row for row in rows}.values()]
    rows = [*sources, *rows]
    made = {head: column for head, column in columns.items() if any(row["method"] == column[0] for row in rows)}

    def line(title: str, tasks: list[str], show: Callable[[list[float | None]], str]) -> list[str]:
        cells = []
        for method, names in made.values():
            of = [row for row in rows if row["method"] == method and row["task"] in tasks]
            of = of if {row["task"] for row in of} == {*tasks} else []  # no mean over some of the tasks
            cells.append(" / ".join(show([row[name] for row in of]) for name in names))
        return [title, *cells]

    def average(values: list[float | None]) -> str:
        known = [value for value in values if value is not None]
        return f"{mean(known):.1f}" if known else "–"

    def seconds(method: str, tasks: list[str]) -> str:
        return average([row["cpu_seconds"] for row in rows if row["method"] == method and row["task"] in tasks])

    tasks = list(dict.fromkeys(row["task"] for row in rows))
    shifts = [task for task in tasks if _has_shift(task)]
    lines = [line(_arrow(task), [task], lambda values: spread(values, 1)) for task in shifts]
    lines += [line("mean", shifts, average)] if len(shifts) > 1 else []
    lines += [line(_arrow(task), [task], lambda values: spread(values, 1)) for task in tasks if task not in shifts]
    untimed = ("source model", "our labels", "guest's labels", "our labels with it")
    lines.append(
        ["CPU seconds", *("" if head in untimed else seconds(made[head][0], shifts or tasks) for head in made)]
    )
    return table(["PACS, percent", *made], lines)


def differences(content: Row) -> str:
    """Ours minus SHOT, a line per way to run ours: means and worst tasks in points, time, and noise of sure labels.

    Runs of the same task and seed are compared. A way that has not been run wherever SHOT was has no line, and tasks
    without a shift do not count.
    """
    names = {
        "ours": "**ray_adaplr**",
        "quick": "short run",
        "guest": "with a guest",
        "quick_guest": "short run with a guest",
    }
    shifts = [row for row in content["rows"] if _has_shift(row["task"])]

    def runs(method: str) -> dict[tuple[str, int], Row]:
        return {(row["task"], row["seed"]): row for row in shifts if row["method"] == method}

    rivals, lines = runs("shot"), []
    for method, name in names.items():
        ours = runs(method)
        pairs = [(ours[key], rival) for key, rival in rivals.items() if key in ours]
        if len(pairs) < len(rivals) or not pairs:
            continue
        gains = [_gains(pairs, on) for on in ("adapted", "adapted_test")]
        cells = [f"{mean(points for points, _ in of):+.1f}" if of else "–" for of in gains]
        cells += ["{:+.1f} ({})".format(*min(of)) if of else "–" for of in gains]
        times = mean(a["cpu_seconds"] for a, _ in pairs) / mean(b["cpu_seconds"] for _, b in pairs)
        lines.append([name, *cells, f"{times:.1f}", _cleanness([a for a, _ in pairs])])
    head = ["ours − SHOT, points", "mean, adapted", "mean, unseen", "worst, adapted", "worst, unseen"]
    return table([*head, "CPU time ÷ SHOT's", "noise of sure labels ÷ of all"], lines)


def _gains(pairs: list[tuple[Row, Row]], on: str) -> list[tuple[float, str]]:
    """Points and task of each pair of runs; without those that had no images left to be tested on."""
    return [(a[on] - b[on], _arrow(a["task"])) for a, b in pairs if a[on] is not None]


def by_seed(content: Row) -> str:
    """A line per task: percent of right labels before → after refinement, and of the target model, for each seed."""
    rows = [row for row in content["rows"] if row["method"] == "ours"]
    seeds = sorted({row["seed"] for row in rows})
    figures = {(r["task"], r["seed"]): f"{r['inferred']:.1f} → {r['refined']:.1f}, {r['adapted']:.1f}" for r in rows}
    tasks = dict.fromkeys(row["task"] for row in rows)
    lines = [[_arrow(task), *(figures.get((task, seed), "–") for seed in seeds)] for task in tasks]
    return table(["labels before → after, target model; percent", *(f"seed {seed}" for seed in seeds)], lines)


def _cleanness(rows: list[Row]) -> str:
    """The noise of sure labels over that of all labels, mean of the runs that have sure and wrong ones."""
    known = [row for row in rows if row["sure_noise"] is not None and row["refined"] < 100]
    return f"{mean(row['sure_noise'] / (1 - row['refined'] / 100) for row in known):.2f}" if known else "–"


def _has_shift(task: str) -> bool:
    return len({*task.split("-")}) == 2


def _arrow(task: str) -> str:
    return task.replace("-", "→").replace("_painting", "")


def write_table(content: Row, about: str, path: Path) -> None:
    """What was measured, the table, and what was said of guests and of signs of harm."""
    text = ["# Photographs", "", about, ""]
    text += ["Percent right on the target's images / on unseen images of its domain.", "", photos(content), ""]
    for row in content["rows"]:
        run = f"{row['task']}, {row['method']}, seed {row['seed']}"
        figures = {name: row[name] for name in ("start", "refined", "sure", "sure_noise") if name in row}
        text.append(f"- {run}: {row['cpu_seconds']:.0f} s of CPU; {figures or ''}".rstrip("; "))
        text += [f"    - {said}" for said in [*row.get("remarks", []), *row.get("warnings", [])]]
    path.write_text("\n".join([*text, ""]))


def plot(rows: list[Row], path: Path) -> None:
    """A line per task: source model, SHOT and ours, on the images adapted to and on unseen ones."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tasks = [task for task in dict.fromkeys(row["task"] for row in rows) if _has_shift(task)][::-1]
    figure, panels = plt.subplots(1, 2, figsize=(9.6, 0.34 * len(tasks) + 1.5), sharex=True, sharey=True)
    for panel, title, which in zip(panels, ("images adapted to", "unseen images"), (0, 1)):
        for method, (label, colour, shape, names) in LOOKS.items():
            made_by = "shot" if method == "source" else method
            found = {
                task: [r[names[which]] for r in rows if (r["task"], r["method"]) == (task, made_by)] for task in tasks
            }
            known = [[value for value in values if value is not None] for values in found.values()]
            points = [(mean(values), y) for y, values in enumerate(known) if values]
            face = "none" if method == "guest" else colour
            if points:
                panel.plot(*zip(*points), shape, color=colour, markerfacecolor=face, markersize=7, label=label)
        panel.set_title(title, fontsize=10)
        panel.set_yticks(range(len(tasks)), [_arrow(task) for task in tasks], fontsize=9)
        panel.set_xlabel("percent right", fontsize=9)
        panel.grid(alpha=0.3, linewidth=0.5)
        panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), fontsize=9, frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = command_line("photos_table", __doc__)
    parser.add_argument("--plot", type=Path, default=ROOT / "docs/images/photos.png")
    options = parser.parse_args(arguments)
    plot(json.loads((RESULTS / "photos.json").read_text())["rows"], options.plot)
    print(f"{options.plot} is written.")
