"""`report.html`: one self-contained page about a run, and the page that sets several runs side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from ray_adaplr.report.chart import LINES
from ray_adaplr.report.figures import draw_charts, draw_overlay
from ray_adaplr.report.gallery import gather_gallery
from ray_adaplr.report.outcome import FORMATS, as_text, outcome, tiles, verdict
from ray_adaplr.report.render import render
from ray_adaplr.storage.run_reader import RunFolder, read_run

OVERLAYS = {
    "gamma": "Gamma",
    "noise": "Noise of all labels",
    "reassigned": "Labels changed in an epoch",
    "agreement": "Members' agreement",
    "min_class_share": "Smallest class",
}


def report_page(run: str | Path, figures: str | None = None) -> str:
    """The report of a run, whatever its state, as HTML; `figures` is what `figures_section` gave, drawn before."""
    folder = read_run(run)
    known = outcome(folder)
    return render(
        "report.html",
        title=folder.name,
        state=_state(folder),
        verdict=verdict(folder, known),
        remarks=folder.summary.get("guests", []),
        warnings=[*folder.warnings, *_unread(folder)],
        tiles=tiles(known),
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
    differing = _differing_settings(folders)
    # The same settings with other seeds: the spread is the message.
    repeated = len(folders) > 1 and set(differing) <= {"seed"}
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


def _state(run: RunFolder) -> str:
    state = "finished"
    if not run.finished:
        state = f"unfinished, {len(run.refine)} of {run.settings.get('epochs') or '?'} epochs"
    return f"{state} · {run.last_write:%Y-%m-%d %H:%M} UTC" if run.last_write else state


def _unread(run: RunFolder) -> list[str]:
    return [f"{name} is cut off, altered or not readable, and was left out." for name in run.unread]


def _differing_settings(runs: list[RunFolder]) -> dict[str, list[Any]]:
    """Each setting that is not the same in all runs, with its values."""
    differing = {}
    for name in sorted({name for run in runs for name in run.settings}):
        values = [run.settings.get(name, "") for run in runs]
        if any(value != values[0] for value in values):
            differing[name] = values
    return differing


def _rows(runs: list[RunFolder], differing: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """The table of a comparison: what the runs came to, with mean and deviation, and the settings that differ."""
    found = [outcome(run) for run in runs]
    rows = []
    for name, written in FORMATS.items():
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
    """What it takes to do it again (settings, versions, times), and the target model's accuracy by domain."""
    found = {
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
