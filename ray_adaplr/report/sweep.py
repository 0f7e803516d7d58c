"""`sweep.html`: all trials of a sweep on one page, which is best and by what."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from matplotlib import rc_context

from ray_adaplr.errors import counted
from ray_adaplr.report.chart import COLOURS, STYLE, Chart, canvas, epoch_axis, plain, render
from ray_adaplr.report.page import as_text
from ray_adaplr.storage.layout import DECIMALS, DIAGNOSTIC, ORACLE
from ray_adaplr.storage.run_reader import Record, is_number


@dataclass(frozen=True)
class SweepOutcome:
    """What a sweep came to."""

    name: str
    metric: str  # what trials are judged by
    trials: list[Record]
    varied: list[str]  # settings that differ between trials
    best: Record | None = None  # one of the trials
    tied: Sequence[str] = ()  # trials with the best one's score, itself included, if there are others
    chosen: str = ""  # whose settings best.toml holds, in words

    def table(self) -> str:
        """All trials as text, the best first."""
        lines = [["trial", *self.varied, "score", "epochs run", ""]]
        for row in sorted(self.trials, key=lambda row: (row is not self.best, row["trial"])):
            score = "-" if row["score"] is None else f"{row['score']:.{DECIMALS}f}"
            mark = "best" if row is self.best else "tied" if row["trial"] in self.tied else row["error"] or ""
            settings = [str(row["settings"].get(name, "-")) for name in self.varied]
            lines.append([row["trial"], *settings, score, str(row["epochs_run"]), mark[:60]])
        widths = [max(map(len, column)) for column in zip(*lines)]
        return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths)).rstrip() for line in lines)


def sweep_page(sweep: SweepOutcome) -> str:
    """The page of a sweep, as HTML."""
    judged = [trial for trial in sweep.trials if is_number(trial["score"])]
    with rc_context(STYLE):
        charts = [_setting_chart(sweep, judged, setting) for setting in sweep.varied] if judged else []
        curves = list(_curve_charts(sweep))
    failed = [trial for trial in sweep.trials if trial["error"]]
    ended = sum(trial["finished"] for trial in sweep.trials)
    stopped = len(sweep.trials) - ended - len(failed)
    trials = counted(len(sweep.trials), "trial")
    note = "* A diagnostic from ground truth, which had no part in the choice."
    if sweep.metric == ORACLE:
        note = "Trials were judged by the ground truth, as --oracle asked."
    return render(
        "sweep.html",
        title=f"{sweep.name} · sweep",
        name=sweep.name,
        verdict=_verdict(sweep),
        counts=f"{trials}: {ended} finished, {stopped} were stopped early, {len(failed)} failed.",
        warnings=[f"Trial {trial['trial']}: {trial['error']}" for trial in failed],
        settings_charts=charts,
        curves=curves,
        columns=["Trial", *sweep.varied, "score", "gamma", "agreement", "epochs run", "ended", "accuracy *"],
        rows=_rows(sweep),
        note=note,
    )


def _verdict(sweep: SweepOutcome) -> str:
    if sweep.best is None:
        return "No trial has finished yet."
    if sweep.tied:
        trials = ", ".join(sweep.tied)
        return f"A tie by {sweep.metric}: trials {trials}. best.toml holds the settings of {sweep.chosen}."
    settings = sweep.best["settings"]
    chosen = ", ".join(f"{name} = {as_text(settings.get(name))}" for name in sweep.varied)
    return f"Trial {sweep.best['trial']} is best by {sweep.metric}{': ' if chosen else ''}{chosen}."


def _setting_chart(sweep: SweepOutcome, trials: list[Record], setting: str) -> Chart:
    values = _values(trials, setting)
    figure, axes = canvas("third", 2.3)
    for trial in trials:
        place = values.index(trial["settings"].get(setting))
        axes.plot(place, trial["score"], "o", markersize=4, **_look(sweep, trial))
    means = [mean(trial["score"] for trial in trials if trial["settings"].get(setting) == value) for value in values]
    axes.plot(range(len(values)), means, color=COLOURS["muted"], linewidth=1.2)
    axes.set_xticks(range(len(values)), [as_text(value) for value in values])
    axes.set(xlabel=setting, ylabel=sweep.metric)
    heights = ", ".join(f"{as_text(value)}: {plain(height)}" for value, height in zip(values, means))
    title = f"{sweep.metric} by {setting}"
    return Chart(f"by-{setting}", title, f"The line is the mean ({heights}).", figure, "third")


def _curve_charts(sweep: SweepOutcome) -> Iterator[Chart]:
    titles = {"gamma": "Gamma", "noise": "Noise of all labels"}
    if sweep.metric != ORACLE:
        titles[sweep.metric] = sweep.metric
    for key, title in titles.items():
        figure, axes = canvas("third", 2.5)
        caption, epochs = "One line per trial; the best one is the strong line", 0
        for trial in sweep.trials:
            curve = [(line["epoch"] + 1, line[key]) for line in trial["lines"] if is_number(line.get(key))]
            if not curve:
                continue
            axes.plot(*zip(*curve), marker="o" if len(curve) < 3 else None, **_look(sweep, trial))
            epochs = max(epochs, curve[-1][0])
            if trial is sweep.best:
                caption += f", which ends at {plain(curve[-1][1])}"
        if epochs:
            epoch_axis(axes, epochs)
            yield Chart(f"curve-{key}", title, f"{caption}.", figure, "third", key == "noise")


def _look(sweep: SweepOutcome, trial: Record) -> dict[str, Any]:
    if trial is sweep.best:
        return {"color": COLOURS["vermilion"], "linewidth": 2.2, "zorder": 3}
    return {"color": COLOURS["blue"], "linewidth": 1.0, "alpha": 0.45}


def _values(trials: Sequence[Record], setting: str) -> list[Any]:
    """The setting's distinct values in order; None where a trial's settings could not be read."""
    found: list[Any] = []
    for trial in trials:
        if trial["settings"].get(setting) not in found:
            found.append(trial["settings"].get(setting))
    return sorted(found, key=lambda value: (not is_number(value), value if is_number(value) else 0, str(value)))


def _rows(sweep: SweepOutcome) -> list[dict[str, Any]]:
    """The trials, the best one first, then those that came to their end."""
    rows = []
    for trial in sorted(sweep.trials, key=lambda t: (t is not sweep.best, not t["finished"], t["trial"])):
        ended = "yes" if trial["finished"] else "failed" if trial["error"] else "stopped early"
        cells = [as_text(trial["settings"].get(name)) for name in sweep.varied]
        cells += [as_text(trial[key]) for key in ("score", "gamma", "agreement", "epochs_run")]
        accuracy = f"{trial[DIAGNOSTIC]:.1%}" if is_number(trial[DIAGNOSTIC]) else "–"
        mark = "tied" if trial["trial"] in sweep.tied else "best" if trial is sweep.best else ""
        rows.append({"trial": trial["trial"], "mark": mark, "cells": [*cells, ended, accuracy]})
    return rows
