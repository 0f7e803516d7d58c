"""`sweep.html`: all trials of a sweep on one page, which is best and by what."""

from collections.abc import Iterator, Sequence
from html import escape
from statistics import mean
from typing import Any

import numpy as np
from matplotlib import rc_context

from ray_adaplr.report.chart import COLOURS, STYLE, Chart, canvas, plain
from ray_adaplr.report.page import charts_section, html_page
from ray_adaplr.storage.layout import DIAGNOSTIC, ORACLE, Row
from ray_adaplr.storage.run_reader import is_number


def sweep_page(name: str, rows: list[Row], varied: list[str], best: Row | None, metric: str) -> str:
    """The page of `rows`, the trials as `sweep.results.trial_row` gives them; `best` is one of them, or None."""
    judged = [row for row in rows if is_number(row["score"])]
    with rc_context(STYLE):
        charts = [_setting_chart(judged, setting, best, metric) for setting in varied] if judged else []
        if charts:
            charts.insert(0, _parallel(judged, varied, best, metric))
        curves = list(_curve_charts(rows, best, metric))
    ended = sum(row["finished"] for row in rows)
    failed = [row for row in rows if row["error"]]
    verdict = "No trial has ended yet."
    if best:
        chosen = ", ".join(f"{setting} = {_text(best['settings'][setting])}" for setting in varied)
        verdict = f"Trial {escape(best['trial'])} is best by {escape(metric)}: {escape(chosen)}."
    stopped = len(rows) - ended - len(failed)
    counts = f"{len(rows)} trials: {ended} came to their end, {stopped} were stopped early, {len(failed)} failed."
    note = "* A diagnostic from ground truth, which had no part in the choice."
    if metric == ORACLE:
        note = "Trials were judged by the ground truth, as --oracle asked."
    warnings = "".join(f"<li>Trial {escape(row['trial'])}: {escape(row['error'])}</li>" for row in failed)
    sections = [
        f'<header><p class="over">ray-adaplr · sweep</p><h1>{escape(name)}</h1><p class="verdict">{verdict}'
        f"<br>{counts}</p>" + (f'<ul class="warnings">{warnings}</ul>' if warnings else "") + "</header>",
        charts_section("Settings and score", charts),
        charts_section("Over epochs", curves, "curve-"),
        f'<section><h2>Trials</h2><div class="scroll">{_table(rows, varied, best)}</div>',
        f'<p class="note">{note}</p></section>',
    ]
    return html_page(f"{name} · sweep · ray-adaplr", sections)


def _setting_chart(rows: list[Row], setting: str, best: Row | None, metric: str) -> Chart:
    values = _values(rows, setting)
    figure, axes = canvas("third", 2.3)
    for row in rows:
        axes.plot(values.index(row["settings"][setting]), row["score"], "o", markersize=4, **_look(row, best))
    means = [mean(row["score"] for row in rows if row["settings"][setting] == value) for value in values]
    axes.plot(range(len(values)), means, color=COLOURS["muted"], linewidth=1.2)
    axes.set_xticks(range(len(values)), [_text(value) for value in values])
    axes.set(xlabel=setting, ylabel=metric)
    tops = ", ".join(f"{_text(value)}: {plain(top)}" for value, top in zip(values, means))
    return Chart(f"by-{setting}", f"{metric} by {setting}", f"The line is the mean ({tops}).", figure, "third")


def _parallel(rows: list[Row], varied: list[str], best: Row | None, metric: str) -> Chart:
    """Parallel coordinates: a line a trial through its settings to its score; the stronger, the better it ranks."""
    figure, axes = canvas("full", 3.4)
    scores = np.array([row["score"] for row in rows])
    low, high = scores.min(), scores.max()
    rank = (scores[:, None] > scores).mean(1)
    for i in rank.argsort(kind="stable"):
        heights = [_height(_values(rows, name), rows[i]["settings"][name]) for name in varied]
        heights.append((scores[i] - low) / (high - low) if high > low else 0.5)
        look = _look(rows[i], best)
        axes.plot(heights, **{**look, "alpha": 1.0 if rows[i] is best else 0.15 + 0.5 * rank[i]})
    for x, name in enumerate(varied):
        for value in (values := _values(rows, name)):
            axes.text(x + 0.02, _height(values, value) + 0.02, _text(value), fontsize=8, color=COLOURS["muted"])
    for value, height in ((low, 0.0), (high, 1.0)):
        axes.text(len(varied) + 0.02, height, plain(value), fontsize=8, color=COLOURS["muted"])
    axes.set_xticks(range(len(varied) + 1), [*varied, metric])
    axes.set_yticks([])
    axes.grid(True, axis="x")
    axes.spines["left"].set_visible(False)
    caption = f"A line a trial, from its settings to its {metric}; the best one is the strong line."
    return Chart("parallel", "All trials", caption, figure, "full")


def _curve_charts(rows: list[Row], best: Row | None, metric: str) -> Iterator[Chart]:
    titles = {"gamma": "Gamma", "noise": "Noise of all labels"} | ({} if metric == ORACLE else {metric: metric})
    for key, title in titles.items():
        figure, axes = canvas("third", 2.5)
        caption = "A line a trial; the best one is the strong line"
        for row in rows:
            if curve := [(line["epoch"], line[key]) for line in row["lines"] if is_number(line.get(key))]:
                axes.plot(*zip(*curve), **_look(row, best))
                caption += f", which ends at {plain(curve[-1][1])}" if row is best else ""
        axes.set(xlabel="epoch")
        if axes.lines:
            yield Chart(key, title, f"{caption}.", figure, "third", key == "noise")


def _look(row: Row, best: Row | None) -> dict[str, Any]:
    if row is best:
        return {"color": COLOURS["vermilion"], "linewidth": 2.2, "zorder": 3}
    return {"color": COLOURS["blue"], "linewidth": 1.0, "alpha": 0.45}


def _values(rows: Sequence[Row], setting: str) -> list[Any]:
    """The setting's distinct values in order."""
    found: list[Any] = []
    for row in rows:
        if row["settings"][setting] not in found:
            found.append(row["settings"][setting])
    return sorted(found, key=lambda value: (not is_number(value), value if is_number(value) else 0, str(value)))


def _height(values: list[Any], value: Any) -> float:
    return values.index(value) / (len(values) - 1) if len(values) > 1 else 0.5


def _text(value: Any) -> str:
    return plain(value) if is_number(value) else str(value)


def _table(rows: list[Row], varied: list[str], best: Row | None) -> str:
    truth = any(is_number(row[DIAGNOSTIC]) for row in rows)
    titles = ["Trial", *varied, "score", "gamma", "agreement", "epochs", "ended", *(["accuracy *"] if truth else [])]
    body = ""
    for row in sorted(rows, key=lambda row: (row is not best, not row["finished"], row["trial"])):
        state = "failed" if row["error"] else "yes" if row["finished"] else "stopped early"
        cells = [_text(row["settings"].get(name, "–")) for name in varied]
        cells += [plain(row[key]) if is_number(row[key]) else "–" for key in ("score", "gamma", "agreement")]
        cells += [str(row["epochs"]), state]
        cells += [f"{row[DIAGNOSTIC]:.1%}" if is_number(row[DIAGNOSTIC]) else "–"] if truth else []
        mark = "<strong>best</strong> " if row is best else ""
        body += f'<tr><th scope="row">{mark}{escape(row["trial"])}</th>'
        body += "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in titles)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
