"""Which label-free score picks the best settings? Random trials on digit tasks, every score against true accuracy.

    python -m benchmarks scores --data DIR [--tasks usps-mnist ...] [--trials 24] [--images 2000] [--epochs 10]

A trial is a refinement with random settings, good and bad ones: alpha, members, residual labels, learning rate, guards
and warm start. For each task and score: Spearman's rank correlation with the accuracy of the refined labels over the
trials, and the regret, which is the accuracy of the best trial less that of the one the score picks. Ground truth
judges the scores here; it has no part in any run. A killed benchmark continues where it stopped.
"""

import argparse
import random
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

from benchmarks import ROOT, digits_command_line
from benchmarks.harness import Results, Row, run_adaplr
from benchmarks.more_scores import AT_THE_END, MORE_SCORES, mano, mixval, recorded
from benchmarks.rivals import first_use
from benchmarks.tasks import TASKS, described, start_of
from ray_adaplr.config import Config
from ray_adaplr.core.augment import to_float
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.scores import DEFAULT_SCORE, LABEL_FREE, best_epoch, infomax, stalled
from ray_adaplr.data.store import ImageStore

DIGITS = ["usps-mnist", "mnist-usps", "svhn-mnist", "mnist-mnistm"]
BY_EPOCH = LABEL_FREE | MORE_SCORES
SAME_REGRET = 0.005  # of accuracy: less is no difference between two scores
JUDGED = BY_EPOCH | AT_THE_END  # score -> whether more is better
UNGUARDED: Row = {"prior": "off", "diversity": 0.0, "on_harm": "off", "warmup": 0}
CELLS = [(1, 1), (1, 4), (1, 9), (2, 2), (2, 4), (3, 1), (3, 3)]  # members, residual labels


def trial_settings(task: str, number: int) -> Row:
    """Random settings of a trial; number 0 is the preset."""
    if number == 0:
        return {}
    draw = random.Random(f"{task} {number}")
    n_e, n_rl = draw.choice(CELLS)
    chosen: Row = {"alpha": draw.choice([0.5, 0.7, 0.9, 0.95]), "n_e": n_e, "n_rl": n_rl}
    chosen |= {"lr": draw.choice([1e-4, 1e-3, 3e-3, 1e-2]), "warm_start": draw.choice(["im", "off"])}
    chosen |= draw.choice([{}, UNGUARDED])
    return chosen | {"lr_head": chosen["lr"]}


def run_trial(task_name: str, number: int, options: argparse.Namespace, results: Results) -> None:
    """Refine with one trial's settings, unless its row is there."""
    task = replace(TASKS[task_name], target_limit=options.images)
    changes = trial_settings(task_name, number)
    config = Config.load("robust", changes={"epochs": options.epochs, **changes})
    key, settings = {"task": task_name, "trial": number}, {"task": described(task), "config": config.model_dump()}
    out = options.work / "runs" / f"scores-{task_name}-{number}"
    if results.find(key, settings):
        return
    start = start_of(task, 0, options.data, options.work)
    first_use(start.source, start.target)
    with recorded():
        run = run_adaplr(start.source, start.target, out, config, until="refine")
    by_epoch = {name: [round(line[name], 5) for line in run.metrics] for name in [*BY_EPOCH, "noise"]}
    figures = {"changes": changes, "accuracy": 1 - run.figures["refined_noise"], **run.figures, "by_epoch": by_epoch}
    figures["at_the_end"] = scores_of_networks(run.members, start.target)
    results.add(key, settings, figures)
    print(
        f"{task_name} {number:2} noise {run.figures['inferred_noise']:.3f} -> {run.figures['refined_noise']:.3f}  "
        f"CPU {run.figures['cpu_seconds']:.0f} s  {changes}",
        flush=True,
    )


def scores_of_networks(members: list[Classifier], store: ImageStore) -> dict[str, float]:
    """MixVal, MaNo and infomax of the ensemble, whose members' logits are averaged."""
    images = to_float(torch.from_numpy(store.read(np.arange(len(store)))))

    @torch.no_grad()
    def logits(batch: Tensor) -> Tensor:
        return torch.stack([torch.cat([member.eval()(part) for part in batch.split(512)]) for member in members]).mean(
            0
        )

    found = logits(images)
    figures = {"mixval": mixval(logits, images), "mano": mano(found), "infomax_of_networks": infomax(found.softmax(1))}
    return {name: round(value, 5) for name, value in figures.items()}


def at_the_end(row: Row) -> dict[str, float]:
    """The scores of a run's last epoch; earlier rows lack those of the networks."""
    return {name: curve[-1] for name, curve in row["by_epoch"].items()} | row.get("at_the_end", {})


def judge(rows: list[Row]) -> dict[str, Any]:
    """Rank correlation and regret of every score, by task."""
    tasks: dict[str, Any] = {}
    judged = {name: better for name, better in JUDGED.items() if all(name in at_the_end(row) for row in rows)}
    for task in dict.fromkeys(row["task"] for row in rows):
        trials = [row for row in rows if row["task"] == task]
        truth = np.array([row["accuracy"] for row in trials])
        found = {
            name: np.array([at_the_end(row)[name] for row in trials]) * (1 if better else -1)
            for name, better in judged.items()
        }
        better = truth >= np.median(truth)
        tasks[task] = {
            "default_in_better_half": float(spearmanr(found[DEFAULT_SCORE][better], truth[better]).statistic),
            "trials": len(trials),
            "best": truth.max(),
            "mean": truth.mean(),
            "preset": truth[0],
            "scores": {
                name: {
                    "rank_correlation": float(np.nan_to_num(spearmanr(value, truth).statistic)),
                    "regret": float(truth.max() - truth[value.argmax()]),
                }
                for name, value in found.items()
            },
        }
    means = {
        name: {
            figure: mean(task["scores"][name][figure] for task in tasks.values())
            for figure in ("rank_correlation", "regret")
        }
        for name in judged
    }
    return {"tasks": tasks, "means": means, "stopping": judge_stopping(rows)}


def ranking(verdict: dict[str, Any]) -> list[str]:
    """Scores by their picks' mean regret, which is what a sweep lives by; equal ones by their rank correlation."""

    def worth(name: str) -> tuple[int, float]:
        figures = verdict["means"][name]
        return round(figures["regret"] / SAME_REGRET), -figures["rank_correlation"]

    return sorted(verdict["means"], key=worth)


def judge_stopping(rows: list[Row]) -> dict[str, float]:
    """`stop = "auto"` on the recorded curves: noise of what it ships less that of the last epoch; epochs it needs."""
    changes, used = [], []
    for row in rows:
        noise, warmup = row["by_epoch"]["noise"], row["changes"].get("warmup", Config().warmup)
        epochs = [{"epoch": e} | {n: v[e] for n, v in row["by_epoch"].items()} for e in range(len(noise))]
        ends = [n for n in range(1, len(epochs)) if stalled(epochs[:n], warmup, 10)]
        end = ends[0] if ends else len(epochs)
        changes.append(noise[best_epoch(epochs[:end], warmup)] - noise[-1])
        used.append(end / len(epochs))
    return {"runs": len(rows), "mean": mean(changes), "worst": max(changes), "best": min(changes), "used": mean(used)}


def write_table(verdict: dict[str, Any], path: Path) -> None:
    """Every score's figures, best first."""
    tasks, means = verdict["tasks"], verdict["means"]
    text = ["# Label-free scores against true accuracy", "", "Rank correlation / regret of the pick (accuracy).", ""]
    text += [f"| score | mean | {' | '.join(tasks)} |", f"| --- {'| --- ' * (len(tasks) + 1)}|"]
    for name in ranking(verdict):
        found = [means[name], *(task["scores"][name] for task in tasks.values())]
        cells = [f"{each['rank_correlation']:+.2f} / {each['regret']:.3f}" for each in found]
        text.append(f"| {name} | {' | '.join(cells)} |")
    for title, value in (
        ("a random pick", lambda t: f"0 / {t['best'] - t['mean']:.3f}"),
        ("the preset, no sweep", lambda t: f"– / {t['best'] - t['preset']:.3f}"),
        ("accuracy: best of the trials", lambda t: f"{t['best']:.3f}"),
        ("trials", lambda t: str(t["trials"])),
        (f"rank correlation of {DEFAULT_SCORE} in the better half", lambda t: f"{t['default_in_better_half']:+.2f}"),
    ):
        text.append(f"| *{title}* | | {' | '.join(value(task) for task in tasks.values())} |")
    stop = verdict["stopping"]
    text += ["", "## Stopping by the default score", ""]
    text += [
        f"`stop = auto` on the curves of these {stop['runs']} runs, good and bad ones: noise of the labels it ships, "
        f"less that of the last epoch: {stop['mean']:+.4f} on average, {stop['worst']:+.3f} at worst, "
        f"{stop['best']:+.3f} at best, after {stop['used']:.0%} of the epochs."
    ]
    path.write_text("\n".join(text) + "\n")


def plot(rows: list[Row], verdict: dict[str, Any], path: Path) -> None:
    """Each score against accuracy, a panel a score, a colour a task."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(3, 5, figsize=(16, 8.5), sharey=True)
    colours = dict(zip(verdict["tasks"], ["#0072B2", "#D55E00", "#009E73", "#CC79A7"]))
    for panel, name in zip(panels.flat, ranking(verdict)):
        for task, colour in colours.items():
            points = [(at_the_end(r)[name], r["accuracy"]) for r in rows if r["task"] == task]
            panel.plot(*zip(*points), "o", color=colour, markersize=4, alpha=0.75, label=task)
        figures = verdict["means"][name]
        panel.set_title(f"{name}: ρ {figures['rank_correlation']:.2f}, regret {figures['regret']:.3f}", fontsize=9)
        panel.grid(alpha=0.3, linewidth=0.5)
        panel.spines[["top", "right"]].set_visible(False)
    for empty in panels.flat[len(verdict["means"]) :]:
        empty.remove()
    for row in panels:
        row[0].set_ylabel("accuracy of the refined labels")
    panels.flat[0].legend(fontsize=7, frameon=False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = digits_command_line("scores", __doc__)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=DIGITS)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--images", type=int, default=2000, help="target images")
    parser.add_argument("--epochs", type=int, default=10, help="of refinement")
    parser.add_argument("--plot", type=Path, default=ROOT / "docs/images/scores.png")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)
    results = Results(options.out)
    for task in options.tasks:
        for number in range(options.trials):
            run_trial(task, number, options, results)
        verdict = judge(results.rows)
        write_table(verdict, options.out.with_suffix(".md"))
        plot(results.rows, verdict, options.plot)
    print(options.out.with_suffix(".md").read_text())
