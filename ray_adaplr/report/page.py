"""`report.html`: one self-contained page about a run, and the page that sets several runs side by side."""

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from ray_adaplr.report.chart import LINES, Chart, inline_svg, plain
from ray_adaplr.report.figures import draw_charts, draw_overlay
from ray_adaplr.report.gallery import gallery_section
from ray_adaplr.storage.run_reader import RunFolder, is_number, read_run

OVERLAYS = {
    "gamma": "Gamma",
    "noise": "Noise of all labels",
    "hcs_noise": "Noise of high-confidence labels",
    "reassigned": "Labels changed in an epoch",
    "agreement": "Members' agreement",
    "min_class_share": "Smallest class",
}


def report_page(run: str | Path, figures: str | None = None) -> str:
    """The report of a run, whatever its state, as HTML; `figures` are those of `figures_section`, drawn before."""
    folder = read_run(run)
    sections = [
        _header(folder),
        figures_section(folder) if figures is None else figures,
        f'<section id="gallery"><h2>Check the labels</h2>{gallery_section(folder)}</section>',
        _origin(folder),
    ]
    return html_page(f"{folder.name} · ray-adaplr", sections)


def figures_section(folder: RunFolder) -> str:
    """The figures of a report."""
    return charts_section("Figures", draw_charts([folder]))


def comparison_page(runs: Sequence[str | Path]) -> str:
    """A page that sets several runs side by side, as HTML."""
    folders = [read_run(run) for run in runs]
    names = [folder.name for folder in folders]
    for folder in folders:
        if names.count(folder.name) > 1:
            folder.name = folder.place
    keys = sorted({key for folder in folders for key in folder.settings})
    differing = {k: [f.settings.get(k, "") for f in folders] for k in keys}
    differing = {k: values for k, values in differing.items() if any(value != values[0] for value in values)}
    repeated = set(differing) <= {"seed"}
    facts = [_facts(folder) for folder in folders]
    rows = {key: [found.get(key) for found in facts] for key in dict.fromkeys(key for found in facts for key in found)}
    head = "".join(
        f'<th scope="col"><i class="swatch" style="background:var(--{LINES[i % len(LINES)]})"></i>{escape(f.name)}</th>'
        for i, f in enumerate(folders)
    )
    body = "".join(_comparison_row(key, values, repeated) for key, values in rows.items())
    body += "".join(_comparison_row(key, values, repeated) for key, values in differing.items() if key != "seed")
    spread = '<th scope="col">mean ± sd</th>' if repeated else ""
    table = f'<table><thead><tr><th scope="col">Run</th>{head}{spread}</tr></thead><tbody>{body}</tbody></table>'
    charts = [chart for key, title in OVERLAYS.items() if (chart := draw_overlay(folders, key, title))]
    sections = [
        f"<header><p class=over>ray-adaplr</p><h1>{len(folders)} runs side by side</h1></header>",
        f'<section><h2>Outcome</h2><div class="scroll">{table}</div>{_truth_note(folders)}</section>',
        charts_section("Over epochs", charts),
    ]
    if repeated:  # the same settings with other seeds: the spread is the message
        sections.append(charts_section("Mean and standard deviation", draw_charts(folders), "mean-"))
    return html_page(f"{len(folders)} runs · ray-adaplr", sections)


def html_page(title: str, sections: list[str]) -> str:
    """Sections of HTML as one self-contained page."""
    parts = {name: files(__package__).joinpath(name).read_text("utf-8") for name in ("page.css", "page.js")}
    # Only this very script may run, and nothing may be fetched: a class named <script> stays a name.
    digest = base64.b64encode(hashlib.sha256(parts["page.js"].encode()).digest()).decode()
    return Template(files(__package__).joinpath("template.html").read_text("utf-8")).substitute(
        title=escape(title), digest=digest, css=parts["page.css"], js=parts["page.js"], sections="\n".join(sections)
    )


def _facts(run: RunFolder) -> dict[str, float | int]:
    """The outcome in figures, as far as it is known; those from ground truth carry a star."""
    summary, labels = run.summary, run.labels
    found: dict[str, Any] = {
        "Images": len(labels) if labels is not None else summary.get("num_images"),
        "Epochs": len(run.refine) or None,
        "Labels changed": summary.get("changed_share"),
        "High confidence": summary.get("hcs_share", run.last("hcs")),
        "Gamma": run.last("gamma"),
        "Smallest class": run.last("min_class_share"),
        "Noise before *": summary.get("noise_before"),
        "Noise after *": summary.get("noise_after", run.last("noise")),
        "Noise, sure ones *": summary.get("hcs_noise", run.last("hcs_noise")),
        "Accuracy, inferred *": summary.get("inferred"),
        "Accuracy, refined *": summary.get("refined"),
        "Accuracy, target model *": summary.get("target"),
        "Time": _total_seconds(run),
        "Images a second": run.last("images_per_s"),
        "Seed": summary.get("seed", run.settings.get("seed")),
    }
    if labels is not None and found["Labels changed"] is None:
        found["Labels changed"] = float(
            np.mean(labels["initial_label"].to_numpy() != labels["refined_label"].to_numpy())
        )
    return {key: value for key, value in found.items() if is_number(value)}


def _total_seconds(run: RunFolder) -> float | None:
    """How long the run took, or has taken so far."""
    seconds = run.summary.get("seconds")
    if isinstance(seconds, dict):
        return sum(value for value in seconds.values() if is_number(value))
    spent = [r["seconds"] for r in run.refine + run.distill if is_number(r.get("seconds"))]
    return sum(spent) if spent else None


def _figure(key: str, value: Any) -> str:
    """A figure as people read it: shares in per cent, counts with commas."""
    if not is_number(value):
        return "–" if value is None else escape(str(value))
    if key.startswith(("Noise", "Accuracy", "Labels", "High", "Smallest")):
        return f"{value:.1%}"
    if key == "Time":
        return f"{value:.0f} s" if value < 100 else f"{value / 60:.1f} min"
    return f"{value:.3f}" if key == "Gamma" else plain(value)


def _comparison_row(key: str, values: list[Any], spread: bool) -> str:
    cells = "".join(f"<td>{_figure(key, value)}</td>" for value in values)
    known = [value for value in values if is_number(value)]
    if spread:
        both = [_figure(key, float(v)) for v in (np.mean(known), np.std(known, ddof=1))] if len(known) > 1 else []
        cells += f"<td>{' ± '.join(both) if key != 'Seed' else ''}</td>"
    return f'<tr><th scope="row">{escape(key)}</th>{cells}</tr>'


def _truth_note(runs: Sequence[RunFolder]) -> str:
    if not any(run.has_truth for run in runs):
        return ""
    return "<p class=note>* A diagnostic from ground truth, which had no part in training.</p>"


def _header(run: RunFolder) -> str:
    """The state, the verdict in two lines, warnings, and the figures behind them."""
    facts = _facts(run)
    planned = run.settings.get("epochs")
    state = "finished" if run.finished else f"unfinished, {len(run.refine)} of {planned or '?'} epochs"
    written = f" · {run.last_write:%Y-%m-%d %H:%M} UTC" if run.last_write else ""
    if "Labels changed" in facts:
        first = f"{facts['Labels changed']:.0%} of {facts['Images']:,} labels changed"
        if "High confidence" in facts:
            first += f"; {facts['High confidence']:.0%} are held with confidence above {run.alpha:g}"
        first += "."
    elif run.refine:
        first = f"{len(run.refine)} epochs so far; {facts.get('High confidence', 0):.0%} of the images are sure."
    else:
        first = "Nothing to judge yet: no epoch has ended."
    second = "No sign of harm" + ("." if run.finished else " so far.")
    if run.warnings:
        second = "Look before you trust it: see the warnings."
    before, after = facts.get("Noise before *"), facts.get("Noise after *")
    if before is not None and after is not None:
        way = "Noise fell" if after < before else "But noise did not fall:"
        second += f" {way} from {before:.1%} to {after:.1%} <small>(diagnostic)</small>"
    tiles = "".join(
        f'<div class="{"diagnostic" * key.endswith("*")}{" pair" * ("→" in value)}">'
        f"<dt>{escape(key)}</dt><dd>{value}</dd></div>"
        for key, value in _tiles(facts).items()
    )
    notes = [f"<li>{escape(warning)}</li>" for warning in run.warnings]
    notes += [f"<li>{escape(name)} is cut off or not readable, and was left out.</li>" for name in run.unread]
    warnings = f'<ul class="warnings" aria-label="Warnings">{"".join(notes)}</ul>' if notes else ""
    return f"""<header><p class="over">ray-adaplr · {state}{written}</p><h1>{escape(run.name)}</h1>
<p class="verdict">{first}<br>{second}</p>{warnings}<dl class="tiles">{tiles}</dl>{_truth_note([run])}</header>"""


def _tiles(facts: dict[str, float | int]) -> dict[str, str]:
    """The outcome for the head of the page, what belongs together in one tile, diagnostics last."""
    text = {key: _figure(key, value) for key, value in facts.items()}
    # Gamma is the share of high confidence; seed and speed stand further down.
    tiles = {k: text[k] for k in text if not k.endswith("*") and k not in ("Gamma", "Seed", "Images a second")}
    for tile, keys in {
        "Noise *": ("Noise before *", "Noise after *"),
        "Noise, sure ones *": ("Noise, sure ones *",),
        "Label accuracy *": ("Accuracy, inferred *", "Accuracy, refined *"),
        "Target accuracy *": ("Accuracy, target model *",),
    }.items():
        known = [text[key] for key in keys if key in text]
        tiles.update({tile: " → ".join(known)} if known else {})
    return tiles


def charts_section(title: str, charts: list[Chart], prefix: str = "") -> str:
    """A section with charts; empty when there are none. The prefix keeps the names of two sections apart."""
    blocks = []
    for chart in charts:
        chart.name = prefix + chart.name
        mark = ' <span class="mark">diagnostic</span>' if chart.diagnostic else ""
        blocks.append(
            f'<figure class="{chart.size}"><h3>{escape(chart.title)}{mark}</h3>{inline_svg(chart)}'
            f"<figcaption>{escape(chart.caption)}</figcaption></figure>"
        )
    return f'<section><h2>{title}</h2><div class="charts">{"".join(blocks)}</div></section>' if blocks else ""


def _origin(run: RunFolder) -> str:
    """What it takes to do it again: command, settings, seed, versions, times."""
    tables = {"Settings": run.settings, "Versions": run.summary.get("versions"), "Seconds": run.summary.get("seconds")}
    domains = run.summary.get("target_per_domain") or {}
    if len(domains) > 1:
        tables = {"Target accuracy by domain *": domains} | tables
    blocks = ""
    for title, content in tables.items():
        if isinstance(content, dict) and content:
            rows = "".join(
                f'<tr><th scope="row">{escape(str(key))}</th><td>{_figure("", value)}</td></tr>'
                for key, value in content.items()
            )
            blocks += f"<div><h3>{title}</h3><table>{rows}</table></div>"
    command = f"<pre><code>{escape(run.command)}</code></pre>" if run.command else ""
    return f'<section><h2>Do it again</h2>{command}<div class="columns">{blocks}</div></section>'
