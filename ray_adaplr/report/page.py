"""`report.html`: one self-contained page about a run, and the page that sets several runs side by side."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from ray_adaplr.core.signs import MOST
from ray_adaplr.errors import counted
from ray_adaplr.report.chart import LINES, plain, render
from ray_adaplr.report.figures import SIGNS, draw_charts, draw_overlay
from ray_adaplr.report.gallery import gather_gallery
from ray_adaplr.storage.run_reader import RunFolder, is_number, read_run, remarks_in, words_per_domain

OVERLAYS = {"gamma": "Gamma", "noise": "Noise of all labels"}
OVERLAYS |= {key: SIGNS[key][0] for key in ("reassigned", "agreement", "min_class_share")}
TASK = ("target_fingerprint", "source_fingerprint", "guest_fingerprint", "given_labels")  # in run.json
# Tiles at the head of the page, what belongs together in one, diagnostics last.
TILES = {
    name: [name] for name in ("Images", "Epochs", "Labels changed", "High confidence", "Smallest class", "Time")
} | {
    "Noise *": ["Noise before *", "Noise after *"],
    "Noise, sure labels *": ["Noise, sure labels *"],
    "Label accuracy *": ["Accuracy, inferred *", "Accuracy, refined *"],
    "Target accuracy *": ["Accuracy, target model *"],
}


def report_page(run: str | Path, figures: str | None = None) -> str:
    """The report of a run, whatever its state, as HTML; `figures` is what `figures_section` gave, drawn before."""
    folder = read_run(run)
    known = outcome(folder)
    tiles = [
        {"name": name, "texts": texts, "diagnostic": name.endswith("*")}
        for name, parts in TILES.items()
        if (texts := [FIGURES[part][0](known[part]) for part in parts if part in known])
    ]
    return render(
        "report.html",
        title=folder.name,
        state=_state(folder),
        verdict=_verdict(folder, known),
        remarks=remarks_in(folder.summary),
        warnings=[*folder.warnings, *_unread(folder)],
        tiles=tiles,
        has_truth=folder.has_truth,
        figures=figures_section(folder) if figures is None else Markup(figures),
        gallery=gather_gallery(folder),
        command=folder.command,
        tables=_tables(folder),
    )


def figures_section(folder: RunFolder) -> Markup:
    """The figures of a report, as HTML."""
    return render("figures.html", charts=draw_charts([folder]))


def comparison_page(runs: Sequence[str | Path]) -> str:
    """A page that sets several runs side by side, as HTML."""
    folders = [read_run(run) for run in runs]
    names = [folder.name for folder in folders]
    for folder in folders:
        if names.count(folder.name) > 1:
            folder.name = folder.place
    differing, repeated = _differing(folders), len(folders) > 1 and are_repeats(folders)
    means = draw_charts(folders) if repeated else []
    for chart in means:
        chart.name = f"mean-{chart.name}"  # the same figure is among the overlays
    overlays = [draw_overlay(folders, key, title) for key, title in OVERLAYS.items()]
    return render(
        "comparison.html",
        title=f"{len(folders)} runs",
        runs=[{"name": folder.name, "colour": LINES[i % len(LINES)]} for i, folder in enumerate(folders)],
        warnings=[f"{folder.name}: {text}" for folder in folders for text in _unread(folder)],
        rows=_rows(folders, differing),
        repeated=repeated,
        has_truth=any(folder.has_truth for folder in folders),
        overlays=list(filter(None, overlays)),
        means=means,
    )


def are_repeats(runs: Sequence[RunFolder]) -> bool:
    """Whether these are runs of the same task and settings with other seeds, so that their spread is the message."""
    tasks = [(run.classes, [run.origin.get(key) or "" for key in TASK]) for run in runs]
    return set(_differing(runs)) <= {"seed"} and all(task == tasks[0] for task in tasks)


def _differing(runs: Sequence[RunFolder]) -> dict[str, list[Any]]:
    settings = {name: [run.settings.get(name, "") for run in runs] for each in runs for name in each.settings}
    return {name: v for name, v in sorted(settings.items()) if any(value != v[0] for value in v)}


def _state(run: RunFolder) -> str:
    state = "finished"
    if not run.finished:
        state = f"unfinished, {len(run.refine)} of {run.settings.get('epochs') or '?'} epochs"
    return f"{state} · {run.last_write:%Y-%m-%d %H:%M} UTC" if run.last_write else state


def _unread(run: RunFolder) -> list[str]:
    return [f"{name} is cut off, altered or not readable, and was left out." for name in run.unread]


def _rows(runs: list[RunFolder], differing: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """The table of a comparison: what the runs came to, with mean and deviation, and the settings that differ."""
    found = [outcome(run) for run in runs]
    rows = []
    for name, (written, _) in FIGURES.items():
        known = [figures[name] for figures in found if name in figures]
        texts = [written(figures[name]) if name in figures else "–" for figures in found]
        spread = ""
        if len(known) > 1 and name != "Seed":
            spread = f"{written(float(np.mean(known)))} ± {written(float(np.std(known, ddof=1)))}"
        if known:
            rows.append({"name": name, "texts": texts, "spread": spread})
    for name, values in differing.items():
        if name != "seed":
            rows.append({"name": name, "texts": [as_text(value) for value in values], "spread": ""})
    return rows


def _tables(run: RunFolder) -> dict[str, dict[str, str]]:
    """What it takes to do it again (settings, versions, times), and what came of each of several targets."""
    found = {
        "Labels of each target": words_per_domain(run.summary),
        "Target accuracy by domain *": run.summary.get("target_per_domain"),
        "Settings": run.settings,
        "Versions": run.summary.get("versions"),
        "Seconds": run.summary.get("seconds"),
    }
    tables = {}
    for heading, rows in found.items():
        alone = heading.startswith("Target") and isinstance(rows, dict) and len(rows) == 1  # a tile has that figure
        if isinstance(rows, dict) and rows and not alone:
            tables[heading] = {str(name): as_text(value) for name, value in rows.items()}
    return tables


def _percent(value: float) -> str:
    return f"{value:.1%}"


# What a run came to: the figures in their order, how each is written, and where a run has it.
# Those with a star need ground truth.
FIGURES: dict[str, tuple[Callable[[float], str], Callable[[RunFolder], Any]]] = {
    "Images": (plain, lambda run: run.summary.get("num_images")),
    "Epochs": (plain, lambda run: len(run.refine) or None),
    "Labels changed": (_percent, lambda run: run.summary.get("changed_share")),
    "High confidence": (_percent, lambda run: run.summary.get("hcs_share", run.last("hcs"))),
    "Gamma": (lambda gamma: f"{gamma:.3f}", lambda run: run.last("gamma")),
    "Smallest class": (_percent, lambda run: run.last("min_class_share")),
    "Noise before *": (_percent, lambda run: run.summary.get("noise_before")),
    "Noise after *": (_percent, lambda run: run.summary.get("noise_after", run.last("noise"))),
    "Noise, sure labels *": (_percent, lambda run: run.sure_noise),
    "Accuracy, inferred *": (_percent, lambda run: run.summary.get("inferred")),
    "Accuracy, refined *": (_percent, lambda run: run.summary.get("refined")),
    "Accuracy, target model *": (_percent, lambda run: run.summary.get("target")),
    "Time": (lambda s: f"{s:.0f} s" if s < 100 else f"{s / 60:.1f} min", lambda run: _total_seconds(run)),
    "Images per second": (plain, lambda run: run.last("images_per_s")),
    "Seed": (plain, lambda run: run.summary.get("seed", run.settings.get("seed"))),
}


def outcome(run: RunFolder) -> dict[str, float]:
    """The figures that are known, by their names in `FIGURES`; by the labels themselves where they can be read."""
    known = {name: find(run) for name, (_, find) in FIGURES.items()}
    if run.labels is not None:
        known["Images"] = len(run.labels)
    if run.labels is not None and len(run.labels):
        before, after = run.labels["initial_label"].to_numpy(), run.labels["refined_label"].to_numpy()
        known["Labels changed"] = float((before != after).mean())
        known["Smallest class"] = float(np.bincount(after, minlength=len(run.classes)).min() / len(after))
    return {name: value for name, value in known.items() if is_number(value)}


def _total_seconds(run: RunFolder) -> float | None:
    by_stage = run.summary.get("seconds")
    spent = [line.get("seconds") for line in run.refine + run.distill]
    known = [value for value in (by_stage.values() if isinstance(by_stage, dict) else spent) if is_number(value)]
    return sum(known) if known else None


def _verdict(run: RunFolder, figures: dict[str, float]) -> dict[str, str]:
    """What changed and whether to trust it; "no sign of harm" only where there was something to judge and to read."""
    if "Labels changed" in figures:
        changes = f"{figures['Labels changed']:.0%} of {figures.get('Images', 0):,.0f} labels changed"
        if "High confidence" in figures:
            changes += f"; {figures['High confidence']:.0%} are held with confidence above {run.alpha:g}"
        changes += "."
    elif run.refine:
        epochs = counted(len(run.refine), "epoch")
        changes = f"{epochs} so far; {figures.get('High confidence', 0):.0%} of the labels are sure."
    else:
        changes = "Nothing to judge yet: no epoch has ended."
    if run.warnings:
        trust = "Look before you trust it: see the warnings."
    elif run.unread:
        trust = "Not all of it could be read."
    elif not run.refine:
        trust = ""
    else:
        trust = "No sign of harm." if run.finished else "No sign of harm so far."
        if run.finished and figures.get("High confidence", 1) < MOST:
            trust = "No sign of harm, but most labels are unsure: look at some before you use them."
    before, after, noise = figures.get("Noise before *"), figures.get("Noise after *"), ""  # a diagnostic
    if before is not None and after is not None:
        way = "Noise fell" if after < before else "But noise did not fall:"
        noise = f"{way} from {before:.1%} to {after:.1%}"
    return {"changes": changes, "trust": trust, "noise": noise}


def as_text(value: Any) -> str:
    """A setting's value or a figure without a format of its own."""
    if is_number(value):
        return plain(value)
    return "–" if value is None else str(value)
