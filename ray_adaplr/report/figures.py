"""The figures of a run: what is drawn, and the sentence that goes with it.

The paper's figures 3 to 5, the labels by class (`class_figures.py`), and the signs that warnings are made from. Every
function takes one run or several; several give the mean with a band of one standard deviation.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeGuard

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes

from ray_adaplr.core.signs import BINS
from ray_adaplr.report.chart import COLOURS, LINES, MAKER, STYLE, Chart, Size, canvas, epoch_axis, percent_axis, plain
from ray_adaplr.report.class_figures import class_charts
from ray_adaplr.report.gallery import true_classes
from ray_adaplr.storage.folder import joined
from ray_adaplr.storage.ownership import own_file
from ray_adaplr.storage.run_reader import RunFolder, is_number

_LEFT, _WIDTH = np.arange(BINS) / BINS, 0.85 / BINS  # of the bars of a histogram
SIGNS = {
    "agreement": ("Members' agreement", "Share of images on which a member and the consensus agree"),
    "reassigned": ("Labels changed in an epoch", "Share of images; should fade out"),
    "min_class_share": ("Smallest class", "Its share of the labels; a fall to zero means that the class dies out"),
}


def draw_charts(runs: Sequence[RunFolder]) -> list[Chart]:
    """All figures that the runs have data for."""
    truths = [true_classes(run) for run in runs]
    with rc_context(STYLE):
        charts = []
        if any(run.refine for run in runs):
            charts += [_gamma(runs), *_remaining_noise(runs, truths), *_confidence(runs)]
        charts += class_charts(runs, truths)
        return [*charts, *_signs(runs)]


def draw_overlay(runs: Sequence[RunFolder], key: str, title: str) -> Chart | None:
    """One line per run, to set runs side by side; None when no run has the figure."""
    values = _values(runs, key)
    if not np.isfinite(values).any():
        return None
    with rc_context(STYLE):
        figure, axes = canvas("third", 2.3)
        for i, row in enumerate(values):
            style = ["-", "--", ":"][i // len(LINES) % 3]
            _line(axes, row[None], LINES[i % len(LINES)], style=style)
        _share_axes(axes, values)
    ends = ", ".join(f"{run.name} {plain(end)}" for run in runs if (end := run.last(key)) is not None)
    return Chart(key, title, f"At the end: {ends}.", figure, "third", "noise" in key)


def save_figures(runs: Sequence[RunFolder], folder: str | Path) -> int:
    """Write each figure as PNG, SVG and PDF, and count them; InputError where a file of that name is not ours."""
    files = {name: content for chart in draw_charts(runs) for name, content in chart.files().items()}
    places = [own_file(joined(str(folder), name), b"", MAKER) for name in files]  # all, before one is written
    for (place, name), content in zip(places, files.values()):
        place.write(name, content)
    return len(files)


def _values(runs: Sequence[RunFolder], key: str) -> np.ndarray:
    """A figure over epochs, [run, epoch], nan where a run has none."""
    length = max((run.refine[-1]["epoch"] + 1 for run in runs if run.refine), default=0)
    values = np.full((len(runs), length), np.nan)
    for row, run in zip(values, runs):
        for record in run.refine:
            if is_number(record.get(key)):
                row[record["epoch"]] = record[key]
    return values


def _line(axes: Axes, values: np.ndarray, colour: str, label: str | None = None, style: str = "-") -> None:
    """The mean line of the runs, [run, epoch], with its band when there are several."""
    known = np.ma.masked_invalid(values)
    epochs, mean = np.arange(values.shape[1]) + 1, known.mean(0)
    marker = "o" if values.shape[1] < 3 else None
    axes.plot(epochs, mean, style, color=COLOURS[colour], label=label, linewidth=1.8, marker=marker)
    if len(values) > 1:
        sd = known.std(0, ddof=1).filled(0)
        axes.fill_between(epochs, mean - sd, mean + sd, color=COLOURS[colour], alpha=0.18, linewidth=0)


def _share_axes(axes: Axes, values: np.ndarray) -> None:
    """Epochs, and shares from 0 to a little above the largest, so that small changes look small."""
    axes.set_ylim(0, 1.08 * np.nanmax(values) or 1)
    percent_axis(axes)
    epoch_axis(axes, values.shape[1])


def _ends(runs: Sequence[RunFolder], key: str) -> str:
    """From where to where a figure went, for captions and for those who do not see the chart."""
    ends = [[r[key] for r in run.refine if is_number(r.get(key))] for run in runs]
    if not any(ends):
        return ""
    first, last = (float(np.mean([values[i] for values in ends if values])) for i in (0, -1))
    if max(len(values) for values in ends) == 1:
        return f"; {last:.1%} after the only epoch"
    return f"; from {first:.1%} after the first epoch to {last:.1%} after the last"


def _signs(runs: Sequence[RunFolder]) -> Iterator[Chart]:
    for key, (title, caption) in SIGNS.items():
        values = _values(runs, key)
        if np.isfinite(values).any():
            figure, axes = canvas("third", 2.1)
            _line(axes, values, "blue")
            _share_axes(axes, values)
            yield Chart(key, title, f"{caption}{_ends(runs, key)}.", figure, "third")


def _gamma(runs: Sequence[RunFolder]) -> Chart:
    """Figure 4 of the paper: gamma (dashed) against noise (solid)."""
    figure, axes = canvas("half", 2.9)
    noise = _values(runs, "noise")
    truth = bool(np.isfinite(noise).any())
    _line(axes, _values(runs, "gamma"), "blue", "gamma", "--")
    caption = f"Gamma, the share of high-confidence images; less confident labels may change{_ends(runs, 'gamma')}"
    if truth:
        _line(axes, noise, "vermilion", "noise, all labels")
        _line(axes, _values(runs, "hcs_noise"), "purple", "noise, high confidence", ":")
        caption += f". Noise, known from ground truth only{_ends(runs, 'noise')}"
        inferred = [run.summary["noise_before"] for run in runs if is_number(run.summary.get("noise_before"))]
        if inferred:  # what came before the first epoch: the source model's labels, then perhaps a warm start
            axes.plot(0, np.mean(inferred), "D", color=COLOURS["vermilion"], markersize=5)
            caption += f"; {np.mean(inferred):.1%} in the inferred labels (the diamond)"
        figure.legend(loc="outside upper left", ncols=3)
    axes.set(ylabel="share of images", ylim=(0, 1))
    percent_axis(axes)
    epoch_axis(axes, noise.shape[1])
    return Chart("gamma", "Gamma against noise" if truth else "Gamma", f"{caption}.", figure, "half", truth)


def _histogram(runs: Sequence[RunFolder], epoch: int, key: str) -> np.ndarray:
    """Share of images in each confidence bin at an epoch, mean over the runs that have it, [bins]."""
    found = []
    for run in runs:
        for record in run.refine:
            counts, total = record.get(key), record.get("confidence_histogram")
            if record["epoch"] == epoch and _is_histogram(counts) and _is_histogram(total):
                found.append(np.asarray(counts, float) / max(sum(total), 1))
    return np.mean(found, 0) if found else np.zeros(0)


def _is_histogram(value: object) -> TypeGuard[list[float]]:
    return isinstance(value, list) and len(value) == BINS and all(is_number(count) for count in value)


def _confidence(runs: Sequence[RunFolder]) -> Iterator[Chart]:
    """Figure 3 of the paper: confidence at several epochs."""
    epochs = sorted({r["epoch"] for run in runs for r in run.refine if _is_histogram(r.get("confidence_histogram"))})
    if not epochs:
        return
    alpha = runs[0].alpha
    shown = sorted({epochs[round(i * (len(epochs) - 1) / 3)] for i in range(4)})
    truth = any(len(_histogram(runs, epoch, "confidence_histogram_noisy")) for epoch in shown)
    size: Size = "full" if truth else "half"  # so that each row of the page is full
    figure, panels = canvas(size, 2.9, len(shown))
    highest = 0.0
    for axes, epoch in zip(np.atleast_1d(panels), shown):
        total, noisy = (_histogram(runs, epoch, f"confidence_histogram{suffix}") for suffix in ("", "_noisy"))
        highest = max(highest, total.max())
        clean = total - noisy if len(noisy) else total
        axes.bar(_LEFT, clean, _WIDTH, align="edge", color=COLOURS["blue"], label="clean")
        if len(noisy):
            look = {"color": COLOURS["vermilion"], "hatch": "///", "label": "noisy"}
            axes.bar(_LEFT, noisy, _WIDTH, clean, align="edge", **look)
        axes.axvline(alpha, color=COLOURS["muted"], linewidth=0.8, linestyle=":")
        axes.set_title(f"epoch {epoch + 1}", fontsize=9, color=COLOURS["muted"])
        axes.set(xlim=(0, 1), xticks=[0, 0.5, 1], xticklabels=["0", ".5", "1"], xlabel="confidence")
        axes.grid(False, axis="x")
    first = np.atleast_1d(panels)[0]
    first.set(ylabel="share of images", ylim=(0, 1.05 * highest))
    percent_axis(first)
    if truth:
        figure.legend(*first.get_legend_handles_labels(), loc="outside upper left", ncols=2)
    caption = f"How sure the consensus is of the labels; the dotted line is alpha = {alpha:g}"
    caption += ". Clean and noisy are known from ground truth only." if truth else "."
    yield Chart("confidence", "Confidence over epochs", caption, figure, size, truth)


def _remaining_noise(runs: Sequence[RunFolder], truths: Sequence[np.ndarray | None]) -> Iterator[Chart]:
    """Figure 5 of the paper: where the noise that remains lies.

    Of the labels as they were written in the end, where their truth can be read; else of those that the last epoch
    began with, which is what metrics.jsonl knows.
    """
    alpha = runs[0].alpha
    found = [shares for run, truth in zip(runs, truths) if (shares := _wrong_shares(run, truth)) is not None]
    sure: np.ndarray | None
    if found:
        (noisy, sure), whose = np.mean(found, 0), "refined labels"
    else:
        last = max(run.refine[-1]["epoch"] for run in runs if run.refine)
        noisy, whose = _histogram(runs, last, "confidence_histogram_noisy"), f"labels that epoch {last + 1} began with"
        edge = alpha * BINS  # where it lies inside a bin, nobody can tell what of that is above
        sure = np.where(np.arange(len(noisy)) >= round(edge), noisy, 0) if abs(edge - round(edge)) < 1e-6 else None
    if not len(noisy):
        return
    figure, axes = canvas("half", 2.9)
    unsure = noisy if sure is None else noisy - sure
    axes.bar(_LEFT, unsure, _WIDTH, align="edge", color=COLOURS["sky"])
    caption = f"{noisy.sum():.1%} of the {whose} are wrong"
    if sure is not None:
        axes.bar(_LEFT, sure, _WIDTH, unsure, align="edge", color=COLOURS["vermilion"])
        caption += f", {sure.sum():.1%} with confidence above alpha = {alpha:g} (the stronger bars)"
    if among := [run.sure_noise for run in runs if is_number(run.sure_noise)]:
        caption += f"; of the sure labels alone {np.mean(among):.1%} are"
    axes.set(xlim=(0, 1), ylim=(0, 1.08 * noisy.max() or 1), xlabel="confidence", ylabel="wrong share of labels")
    percent_axis(axes)
    axes.grid(False, axis="x")
    yield Chart("remaining_noise", "Remaining noise over confidence", f"{caption}.", figure, "half", diagnostic=True)


def _wrong_shares(run: RunFolder, truth: np.ndarray | None) -> np.ndarray | None:
    """Share of the labels that are wrong in each confidence bin, and of those that are wrong and sure, [2, bins]."""
    if run.labels is None or truth is None:
        return None
    wrong = run.labels["refined_label"].to_numpy() != truth
    confidence = run.labels["confidence"].to_numpy()
    counts = [np.histogram(confidence[rows], BINS, (0, 1))[0] for rows in (wrong, wrong & (confidence > run.alpha))]
    return np.stack(counts) / max(len(wrong), 1)
