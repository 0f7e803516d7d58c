"""`sweep.html`: all trials of a sweep on one page, which is best and by what."""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes

from ray_adaplr.report.chart import COLOURS, STYLE, Chart, canvas, plain
from ray_adaplr.report.page import charts_section, write_page
from ray_adaplr.report.run_folder import is_number, read_run

DIAGNOSTIC = "diagnostic_oracle_accuracy"
Row = dict[str, Any]
Curve = list[tuple[int, float]]


def write_sweep_page(
    place: str, rows: list[Row], runs: list[str], varied: list[str], best: Row | None, metric: str, out: Path
) -> Path:
    """Writes the page.

    Args:
        place: the sweep's folder, for its name.
        rows: a row a trial: trial, settings, score, epochs, finished, error, the label-free scores, the diagnostic.
        runs: the trials' folders, for their curves.
        varied: the settings that differ between trials.
        best: the trial that the metric picks, if any has ended.
        metric: what trials are judged by.
        out: where to write.
    """
    records = {
        row["trial"]: read_run(run, labels=False).refine if row["epochs"] else [] for row, run in zip(rows, runs)
    }
    with rc_context(STYLE):
        judged = [row for row in rows if is_number(row["score"])]
        charts = list(_setting_charts(judged, varied, best, metric)) if judged and varied else []
        curves = list(_curve_charts(records, best, metric))
    ended = sum(row["finished"] for row in rows)
    failed = [row for row in rows if row["error"]]
    chosen = ", ".join(f"{name} = {_text(best['settings'][name])}" for name in varied) if best else ""
    verdict = (
        f"Trial {best['trial']} is best by {escape(metric)}: {escape(chosen)}." if best else "No trial has ended yet."
    )
    stopped = len(rows) - ended - len(failed)
    counts = f"{len(rows)} trials: {ended} came to their end, {stopped} were stopped early, {len(failed)} failed."
    oracle = metric == "oracle_accuracy"
    note = (
        "Trials were judged by the ground truth, as --oracle asked." if oracle
        else "* A diagnostic from ground truth, which had no part in the choice."
    )  # fmt: skip
    warnings = "".join(f"<li>Trial {row['trial']}: {escape(row['error'])}</li>" for row in failed)
    sections = [
        f'<header><p class="over">ray-adaplr · sweep</p><h1>{escape(Path(place).name)}</h1><p class="verdict">{verdict}'
        f"<br>{counts}</p>" + (f'<ul class="warnings">{warnings}</ul>' if warnings else "") + "</header>",
        charts_section("Settings and score", charts),
        charts_section("Over epochs", curves, "curve-"),
        f'<section><h2>Trials</h2><div class="scroll">{_table(rows, varied, best)}</div>',
        f'<p class="note">{note}</p></section>',
    ]
    return write_page(f"{Path(place).name} · sweep · ray-adaplr", sections, out)


def _setting_charts(rows: list[Row], varied: list[str], best: Row | None, metric: str) -> Iterator[Chart]:
    yield _parallel(rows, varied, best, metric)
    for name in varied:
        values = _values(rows, name)
        figure, axes = canvas("third", 2.3)
        for row in rows:
            axes.plot(values.index(row["settings"][name]), row["score"], "o", markersize=4, **_look(row, best))
        means = [mean(row["score"] for row in rows if row["settings"][name] == value) for value in values]
        axes.plot(range(len(values)), means, color=COLOURS["muted"], linewidth=1.2)
        axes.set_xticks(range(len(values)), [_text(value) for value in values])
        axes.set(xlabel=name, ylabel=metric)
        tops = ", ".join(f"{_text(value)}: {plain(top)}" for value, top in zip(values, means))
        yield Chart(f"by-{name}", f"{metric} by {name}", f"The line is the mean ({tops}).", figure, "third")


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


def _curve_charts(records: dict[str, list[Row]], best: Row | None, metric: str) -> Iterator[Chart]:
    known = {"gamma": "Gamma", "noise": "Noise of all labels"} | (
        {} if metric == "oracle_accuracy" else {metric: metric}
    )
    for key, title in known.items():
        curves = {
            trial: [(r["epoch"], r[key]) for r in lines if is_number(r.get(key))] for trial, lines in records.items()
        }
        if any(curves.values()):
            figure, axes = canvas("third", 2.5)
            _draw_curves(axes, curves, best["trial"] if best else None)
            caption = "A line a trial; the best one is the strong line"
            if best and curves[best["trial"]]:
                caption += f", which ends at {plain(curves[best['trial']][-1][1])}"
            yield Chart(key, title, f"{caption}.", figure, "third", key == "noise")


def _draw_curves(axes: Axes, curves: dict[str, Curve], best: str | None) -> None:
    for trial, curve in sorted(curves.items(), key=lambda item: item[0] == best):
        look = _look({"trial": trial}, {"trial": best})
        axes.plot(*zip(*curve), **look) if curve else None
    axes.set(xlabel="epoch")


def _look(row: Row, best: Row | None) -> dict[str, Any]:
    if best is not None and row["trial"] == best["trial"]:
        return {"color": COLOURS["vermilion"], "linewidth": 2.2, "zorder": 3}
    return {"color": COLOURS["blue"], "linewidth": 1.0, "alpha": 0.45}


def _values(rows: Sequence[Row], name: str) -> list[Any]:
    """The setting's distinct values in order."""
    found: list[Any] = []
    for row in rows:
        if row["settings"][name] not in found:
            found.append(row["settings"][name])
    return sorted(found, key=lambda value: (not is_number(value), value if is_number(value) else 0, str(value)))


def _height(values: list[Any], value: Any) -> float:
    return values.index(value) / (len(values) - 1) if len(values) > 1 else 0.5


def _text(value: Any) -> str:
    return plain(value) if is_number(value) else str(value)


def _table(rows: list[Row], varied: list[str], best: Row | None) -> str:
    truth = any(is_number(row[DIAGNOSTIC]) for row in rows)
    titles = ["Trial", *varied, "score", "gamma", "agreement", "epochs", "ended", *(["accuracy *"] if truth else [])]
    ranked = sorted(rows, key=lambda row: (row is not best, not row["finished"], row["trial"]))
    body = ""
    for row in ranked:
        state = "failed" if row["error"] else "yes" if row["finished"] else "stopped early"
        cells = [_text(row["settings"].get(name, "–")) for name in varied]
        cells += [plain(row[key]) if is_number(row[key]) else "–" for key in ("score", "gamma", "agreement")]
        cells += [str(row["epochs"]), state]
        cells += [f"{row[DIAGNOSTIC]:.1%}" if is_number(row[DIAGNOSTIC]) else "–"] if truth else []
        mark = "<strong>best</strong> " if row is best else ""
        body += (
            f'<tr><th scope="row">{mark}{row["trial"]}</th>' + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>"
        )
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in titles)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
