"""The paper's ablations (its figure 6) and the guards, at a small scale: noise of the labels over the epochs.

    python -m benchmarks ablations --data DIR [--studies alpha n_rl n_e ensemble guards] [--images 3000] [--epochs 25]

Studies of the paper run its plain rule (no guard, no warm start, global gamma) where it works: on USPS -> MNIST, from a
source model that was trained with augmentation (`conditions` shows why), with the robust preset's learning rate, batch
and crop, since the paper's own change next to nothing in 25 epochs. The paper has SVHN -> MNIST. A killed benchmark
continues where it stopped.
"""

import argparse
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import ROOT, digits_command_line
from benchmarks.harness import Results, Row, run_adaplr, spread
from benchmarks.rivals import first_use
from benchmarks.tasks import TASKS, described, short_hash, start_of
from ray_adaplr.config import Config
from ray_adaplr.sweep.options import SweepOptions
from ray_adaplr.sweep.space import list_trials, load_space

CLASSES = 10
PLAIN: dict[str, Any] = {"prior": "off", "gamma_per_class": False, "diversity": 0.0, "warm_start": "off", "warmup": 0}
PLAIN |= {"on_harm": "off"}
AUGMENTED: dict[str, Any] = {"source_augmented": True}
ALL_GUARDS: dict[str, Any] = {"guards": "on", "gamma_per_class": True}


@dataclass(frozen=True)
class Study:
    """One question: variants by name, each a set of changes to the preset."""

    title: str
    task: str
    paper: str  # what the paper found
    variants: dict[str, dict[str, Any]]
    ordered: bool = True  # the variants are values of one number
    conditions: dict[str, Any] = field(default_factory=dict)  # of the task: how source model and target are made


def plain_trials(space: str, name: str) -> dict[str, dict[str, Any]]:
    """The cells of a search space of `ray-adaplr tune` under the paper's plain rule, named by their settings."""
    trials = list_trials(load_space(space, CLASSES), SweepOptions(), Config(), CLASSES)
    return {name.format(**changes): {**PLAIN, **changes} for changes in trials}


STUDIES = {
    "alpha": Study(
        "(a) alpha, one member, one residual label",
        "usps-mnist",
        "0.9 is best, 0.95 slightly behind, 0.5 worst",
        plain_trials("alpha", "{alpha}"),
        conditions=AUGMENTED,
    ),
    "n_rl": Study(
        "(b) residual labels, one member",
        "usps-mnist",
        "3, 4 or 5 are best",
        plain_trials("n_rl", "{n_rl}"),
        conditions=AUGMENTED,
    ),
    "n_e": Study(
        "(c) members",
        "usps-mnist",
        "more members lower the noise faster; 3 is the best trade-off",
        plain_trials("n_e", "{n_e}"),
        conditions=AUGMENTED,
    ),
    "ensemble": Study(
        "(d) residual labels and augmentations of three members",
        "usps-mnist",
        "DRL + DAUG is best; the same augmentation for all is not enough, nor are the same residual labels",
        plain_trials("ablation", "{residuals} + {augmentations}"),
        ordered=False,
        conditions=AUGMENTED,
    ),
    "guards": Study(
        "(e) guards against class extinction",
        "usps-mnist",
        "has no guards",
        {
            "warm start, guards wait (robust)": {},
            "warm start and all guards": ALL_GUARDS,
            "the same without prior": {**ALL_GUARDS, "prior": "off"},
            "the same without diversity": {**ALL_GUARDS, "diversity": 0.0},
            "all guards, no warm start": {**ALL_GUARDS, "warm_start": "off"},
            "none": PLAIN,
        },
        ordered=False,
    ),
    "imbalance": Study(
        "(f) a target whose largest class has eight times the images of its smallest",
        "usps-mnist",
        "has balanced targets",
        {
            "warm start, guards wait (robust)": {},
            "warm start and guards": {"guards": "on"},
            "the same, prior from the inferred labels": {"guards": "on", "prior": "inferred"},
            "guards, no warm start": {"warm_start": "off"},
            "guards, no warm start, prior from the inferred labels": {"warm_start": "off", "prior": "inferred"},
            "none": PLAIN,
        },
        ordered=False,
        conditions={"imbalance": 8.0},
    ),
    "harm": Study(
        "(g) the paper's rule from a weak source model, and what the watch does",
        "usps-mnist",
        "has no watch",
        {f"on_harm={what}": {**PLAIN, "on_harm": what} for what in ("off", "stop", "guard")},
        ordered=False,
    ),
}


def run_variant(study: str, variant: str, seed: int, options: argparse.Namespace, results: Results) -> None:
    """Refine with one variant's settings, unless its row is there."""
    definition = STUDIES[study]
    name = options.task or definition.task
    task = replace(TASKS[name], target_limit=options.images, **definition.conditions)
    config = Config.load("robust", changes={"epochs": options.epochs, **definition.variants[variant], "seed": seed})
    key = {"study": study, "variant": variant, "seed": seed}
    settings = {"task": described(task), "config": config.model_dump(mode="json", exclude={"seed"})}
    if results.find(key, settings) and not options.again:
        return
    start = start_of(task, seed, options.data, options.work)
    first_use(start.source, start.target)
    out = options.work / "runs" / f"ablation-{short_hash([key, settings])}"
    run = run_adaplr(start.source, start.target, out, config, until="refine")
    by_epoch = {name: [round(line[name], 4) for line in run.metrics] for name in ("noise", "gamma", "hcs")}
    row = results.add(key, settings, {"task": task.name, **run.figures, "by_epoch": by_epoch})
    print(
        f"{study:9} {variant:34} seed {seed}  noise {row['inferred_noise']:.3f} -> {row['refined_noise']:.3f}  "
        f"CPU {row['cpu_seconds']:.0f} s",
        flush=True,
    )


def write_tables(rows: list[Row], path: Path) -> None:
    """A table a study: mean ± standard deviation over seeds."""
    text = ["# Ablations", ""]
    for name, study in STUDIES.items():
        of_study = [row for row in rows if row["study"] == name]
        if not of_study:
            continue
        text += [f"## {study.title}", "", f"Task: {of_study[0]['task']}. The paper: {study.paper}.", ""]
        text += [
            "| variant | seeds | inferred noise | noise at the start | refined noise | HCS share | HCS noise | CPU s |"
        ]
        text += ["| --- | --- | --- | --- | --- | --- | --- | --- |"]
        for variant in study.variants:
            runs = [row for row in of_study if row["variant"] == variant]
            names = ("inferred_noise", "start_noise", "refined_noise", "hcs_share", "hcs_noise")
            cells = [spread([row[column] for row in runs]) for column in names]
            cells.append(spread([row["cpu_seconds"] for row in runs], 0))
            text.append(f"| {variant} | {len(runs)} | {' | '.join(cells)} |")
        text.append("")
    path.write_text("\n".join(text))


def plot(rows: list[Row], path: Path) -> None:
    """Noise over the epochs, a panel a study, a line a variant (mean over seeds)."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    studies = [name for name in STUDIES if any(row["study"] == name for row in rows)]
    columns = min(3, len(studies))
    lines = -(-len(studies) // columns)
    figure, panels = plt.subplots(lines, columns, figsize=(4.8 * columns, 3.9 * lines), squeeze=False)
    okabe_ito = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
    for panel, name in zip(panels.flat, studies):
        study = STUDIES[name]
        for i, variant in enumerate(study.variants):
            runs = [row for row in rows if row["study"] == name and row["variant"] == variant]
            if runs:
                length = min(len(row["by_epoch"]["noise"]) for row in runs)  # a run may have stopped early
                noise = np.mean([[row["start_noise"], *row["by_epoch"]["noise"][:length]] for row in runs], axis=0)
                colour = plt.get_cmap("cividis")(i / len(study.variants)) if study.ordered else okabe_ito[i]
                panel.plot(noise, color=colour, label=variant, linewidth=1.6, linestyle=("-", "--", ":")[i % 3])
        panel.set_title(study.title, fontsize=9)
        panel.set_xlabel("epoch")
        panel.set_ylabel("noise of the labels")
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3, linewidth=0.5)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(fontsize=7, frameon=False, ncols=2 if study.ordered else 1)
    for panel in panels.flat[len(studies) :]:
        panel.set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = digits_command_line("ablations", __doc__, seeds=[0])
    parser.add_argument("--studies", nargs="+", choices=list(STUDIES), default=list(STUDIES))
    parser.add_argument("--task", choices=list(TASKS), help="for all studies, instead of each study's own")
    parser.add_argument("--images", type=int, default=3000, help="target images")
    parser.add_argument("--epochs", type=int, default=25, help="of refinement")
    parser.add_argument("--plot", type=Path, default=ROOT / "docs/images/ablations.png")
    parser.add_argument("--again", action="store_true", help="run again what has been run")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)
    results = Results(options.out)
    for seed in options.seeds:
        for study in options.studies:
            for variant in STUDIES[study].variants:
                run_variant(study, variant, seed, options, results)
            write_tables(Results(options.out).rows, options.out.with_suffix(".md"))
    plot(Results(options.out).rows, options.plot)
    print(options.out.with_suffix(".md").read_text())
