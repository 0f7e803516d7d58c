"""The course of a run of `ray-adaplr paper`, finished or not, for the page "When the published rule works".

    python -m benchmarks paper_curves runs/paper/digit5/paper/svhn-mnist/seed-0 --name "as written"

Takes the lines that the run has written so far: gamma, noise and the noise of sure labels in every epoch, the
histograms of the epochs that the paper's figure 3 shows, and what an epoch took. With a constant learning rate the
first epochs of an unfinished run are those of the whole one. `--plot` alone draws what has been taken.
"""

import json
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import RESULTS, ROOT, command_line
from benchmarks.harness import Results, Row
from benchmarks.paper_tables import SHOWN, THE_PAPERS, task_name
from ray_adaplr.errors import InputError
from ray_adaplr.storage.run_reader import RunFolder, read_run

COURSES = ("noise", "gamma", "hcs_noise", "min_class_share")


def taken(run: RunFolder) -> dict[str, Any]:
    """What a run's lines say, in the order of its epochs; InputError where there is no noise to show."""
    if not run.refine or "noise" not in run.refine[0]:
        raise InputError(f"{run.place} has no epoch with the noise of its labels; its target needs ground truth")
    lines = run.refine
    shown = [line for line in lines if line["epoch"] + 1 in SHOWN or line is lines[-1]]
    names = ("confidence_histogram", "confidence_histogram_noisy")
    return {
        "images": sum(lines[0]["confidence_histogram"]),
        "epochs_done": len(lines),
        "finished": run.finished,
        "alarm_epoch": next((line["epoch"] + 1 for line in lines if line["collapsed"]), None),
        "seconds_per_epoch": round(median(line["seconds"] for line in lines), 1),
        "by_epoch": {name: [_rounded(line.get(name)) for line in lines] for name in COURSES},
        "histograms": {str(line["epoch"] + 1): {name: line[name] for name in names} for line in shown},
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def plot(rows: list[Row], path: Path) -> None:
    """Noise and gamma of every row beside the paper's points; below, the last row's histograms as in figure 3."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(11, 7))
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(3, 2)).flat
    panel = above.subplots()
    for i, row in enumerate(rows):
        epochs, courses = range(1, row["epochs_done"] + 1), row["by_epoch"]
        colour = plt.get_cmap("tab10")(i)
        name = f"{task_name(row['task'])}, {row['name']}, {row['images']:,} images"
        panel.plot(epochs, courses["noise"], color=colour, linewidth=1.6, label=name)
        panel.plot(epochs, courses["gamma"], color=colour, linewidth=1.2, linestyle="--")
    panel.plot([10], [THE_PAPERS["gamma"]], "k*", markersize=10, label="the paper's gamma")
    panel.plot([1], [THE_PAPERS["noise"]], "kx", markersize=8, label="the paper's first noise")
    panel.set_title("Noise (solid) and gamma (dashed)", fontsize=10)
    panel.set_xlabel("epoch")
    panel.set_xscale("log")
    panel.set_xticks([1, 10, 100, max(row["epochs_done"] for row in rows)])
    panel.xaxis.set_major_formatter("{x:.0f}")
    panel.minorticks_off()
    panel.set_ylim(0, 1)
    panel.legend(loc="upper left", fontsize=8, frameon=False)
    last = rows[-1]["histograms"]
    for part, (epoch, counts) in zip(below.subplots(1, len(last), squeeze=False).flat, last.items()):
        every, noisy = counts["confidence_histogram"], counts["confidence_histogram_noisy"]
        middles = [(i + 0.5) / len(every) for i in range(len(every))]
        part.bar(middles, every, 0.9 / len(every), color="#56B4E9", label="all labels")
        part.bar(middles, noisy, 0.9 / len(every), color="#D55E00", label="wrong ones")
        part.set_title(f"epoch {epoch}", fontsize=9)
        part.set_xlabel("confidence of the label", fontsize=8)
        part.tick_params(labelsize=7)
        if epoch == "1":  # its bars leave room
            part.legend(loc="upper right", fontsize=7, frameon=False)
    for each in figure.axes:
        each.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = command_line("paper_curves", __doc__)
    parser.add_argument("run", nargs="?", type=Path, help="folder of one run below `ray-adaplr paper`'s --out")
    parser.add_argument("--name", default="as written", help="what the run is, in the table and the picture")
    parser.add_argument("--out", type=Path, default=RESULTS / "paper-curves.json")
    parser.add_argument("--plot", type=Path, default=ROOT / "docs/images/paper-curves.png")
    options = parser.parse_args(arguments)
    results = Results(options.out)
    if options.run:
        run = read_run(options.run, labels=False)
        settings = {key: value for key, value in run.settings.items() if key != "seed"}
        key = {"task": options.run.resolve().parent.name, "name": options.name, "seed": run.settings["seed"]}
        row = results.add(key, settings, taken(run))
        print(json.dumps({name: row[name] for name in ("task", "name", "epochs_done", "seconds_per_epoch")}))
    plot(results.rows, options.plot)
