"""The figures of a run: what is drawn, and the sentence that goes with it.

Every function takes one run or several; several give the mean with a band of one standard deviation.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from ray_adaplr.report.chart import COLOURS, LINES, STYLE, Chart, Size, canvas, plain, save_chart
from ray_adaplr.storage.run_reader import RunFolder, is_number

SIGNS = {
    "agreement": ("Members' agreement", "share of images on which a member and the consensus agree"),
    "reassigned": ("Labels changed in an epoch", "share of images; should fade out"),
    "min_class_share": ("Smallest class", "its share of the labels; a fall to zero means that the class dies out"),
    "entropy": ("Entropy", "mean of the predictions, in nats; low means sure"),
    "diversity": ("Diversity", "entropy of the mean prediction, in nats; low means that classes die out"),
    "images_per_s": ("Throughput", "images a second"),
}
SHARES = {"gamma", "noise", "agreement", "reassigned", "min_class_share"}
MATRIX_CLASSES, COUNT_CLASSES, NAME_LENGTH = 20, 24, 18


def draw_charts(runs: Sequence[RunFolder]) -> list[Chart]:
    """All figures that the runs have data for."""
    with rc_context(STYLE):
        return list(_charts(runs))


def _charts(runs: Sequence[RunFolder]) -> Iterator[Chart]:
    if any(run.refine for run in runs):
        yield _gamma(runs)
        yield from _confidence(runs)
    if any(run.labels is not None for run in runs):
        yield _moves(runs)
        yield _counts(runs)
    for key, (title, caption) in SIGNS.items():
        if np.isfinite(_values(runs, key)).any():
            figure, axes = canvas("third", 2.1)
            _line(axes, _values(runs, key), "blue")
            _from_zero(axes, _values(runs, key))
            yield Chart(key, title, f"{caption[0].upper()}{caption[1:]}{_ends(runs, key)}.", figure, "third")


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
    epochs, mean = np.arange(values.shape[1]), known.mean(0)
    marker = "o" if values.shape[1] == 1 else None
    axes.plot(epochs, mean, style, color=COLOURS[colour], label=label, linewidth=1.8, marker=marker)
    if len(values) > 1:
        sd = known.std(0, ddof=1).filled(0)
        axes.fill_between(epochs, mean - sd, mean + sd, color=COLOURS[colour], alpha=0.18, linewidth=0)


def _from_zero(axes: Axes, values: np.ndarray) -> None:
    """A vertical axis from 0 to a little above the largest value, so that small changes look small."""
    axes.set(xlabel="epoch", ylim=(0, 1.08 * np.nanmax(values) or 1))


def _ends(runs: Sequence[RunFolder], key: str) -> str:
    """From where to where a figure went, for captions and for those who do not see the chart."""
    ends = [[r[key] for r in run.refine if is_number(r.get(key))] for run in runs]
    if not any(ends):
        return ""
    first, last = (float(np.mean([values[i] for values in ends if values])) for i in (0, -1))
    return f"; from {first:.1%} to {last:.1%}" if key in SHARES else f"; from {plain(first)} to {plain(last)}"


def _gamma(runs: Sequence[RunFolder]) -> Chart:
    """Figure 4 of the paper: gamma (dashed) against noise (solid)."""
    figure, axes = canvas("half", 2.9)
    noise = _values(runs, "noise")
    truth = bool(np.isfinite(noise).any())
    _line(axes, _values(runs, "gamma"), "blue", "gamma", "--")
    caption = f"Gamma, the share of high-confidence images, opens the door to label changes{_ends(runs, 'gamma')}"
    if truth:
        _line(axes, noise, "vermilion", "noise, all labels")
        _line(axes, _values(runs, "hcs_noise"), "purple", "noise, high confidence", ":")
        caption += f". Noise, known from ground truth only{_ends(runs, 'noise')}"
        inferred = [run.summary["noise_before"] for run in runs if is_number(run.summary.get("noise_before"))]
        if inferred:  # what came before the first epoch: the source model's labels, then perhaps a warm start
            axes.plot(-1, np.mean(inferred), "D", color=COLOURS["vermilion"], markersize=5)
            caption += f"; {np.mean(inferred):.1%} in the inferred labels (the diamond)"
        figure.legend(loc="outside upper left", ncols=3)
    axes.set(xlabel="epoch", ylabel="share of images", ylim=(0, 1))
    return Chart("gamma", "Gamma against noise" if truth else "Gamma", f"{caption}.", figure, "half", truth)


def _histogram(runs: Sequence[RunFolder], epoch: int, key: str) -> np.ndarray:
    """Share of images in each confidence bin at an epoch, mean over the runs that have it, [bins]."""
    found = []
    for run in runs:
        for record in run.refine:
            if record["epoch"] == epoch and record.get(key):
                total = sum(record.get("confidence_histogram") or record[key])
                found.append(np.asarray(record[key], float) / max(total, 1))
    return np.mean(found, 0) if found else np.zeros(0)


def _confidence(runs: Sequence[RunFolder]) -> Iterator[Chart]:
    """Figures 3 and 5 of the paper: confidence at several epochs, and where the noise that remains lies."""
    epochs = sorted({r["epoch"] for run in runs for r in run.refine if r.get("confidence_histogram")})
    if not epochs:
        return
    alpha = runs[0].alpha
    shown = sorted({epochs[round(i * (len(epochs) - 1) / 3)] for i in range(4)})
    noisy = _histogram(runs, epochs[-1], "confidence_histogram_noisy")
    truth = bool(len(noisy))
    if truth:
        yield _remaining_noise(noisy, alpha, epochs[-1])
    size: Size = "full" if truth else "half"  # so that each row of the page is full
    figure, panels = canvas(size, 2.9, len(shown))
    highest = 0.0
    for axes, epoch in zip(np.atleast_1d(panels), shown):
        total, noisy = (_histogram(runs, epoch, f"confidence_histogram{suffix}") for suffix in ("", "_noisy"))
        noisy = noisy if len(noisy) else np.zeros_like(total)
        left, width = np.arange(len(total)) / len(total), 0.85 / len(total)
        axes.bar(left, total - noisy, width, align="edge", color=COLOURS["blue"], label="clean" if truth else None)
        axes.bar(left, noisy, width, total - noisy, align="edge", color=COLOURS["vermilion"], hatch="///" * truth)
        axes.containers[-1].set_label("noisy" if truth else "_nolegend_")
        highest = max(highest, total.max())
        axes.axvline(alpha, color=COLOURS["muted"], linewidth=0.8, linestyle=":")
        axes.set_title(f"epoch {epoch}", fontsize=9, color=COLOURS["muted"])
        axes.set(xlim=(0, 1), xticks=[0, 0.5, 1], xticklabels=["0", ".5", "1"], xlabel="confidence")
        axes.grid(False, axis="x")
    np.atleast_1d(panels)[0].set(ylabel="share of images", ylim=(0, 1.05 * highest))
    if truth:
        handles, names = np.atleast_1d(panels)[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper left", ncols=2)
    caption = f"How sure the consensus is of the labels; the dotted line is alpha = {alpha:g}"
    caption += ". Clean and noisy are known from ground truth only." if truth else "."
    yield Chart("confidence", "Confidence over epochs", caption, figure, size, truth)


def _remaining_noise(noisy: np.ndarray, alpha: float, epoch: int) -> Chart:
    figure, axes = canvas("half", 2.9)
    left = np.arange(len(noisy)) / len(noisy)
    sure = left >= alpha - 1e-9
    colours = [COLOURS["vermilion" if high else "sky"] for high in sure]
    axes.bar(left, noisy, 0.85 / len(noisy), align="edge", color=colours)
    axes.set(xlim=(0, 1), xlabel="confidence", ylabel="noisy share of images")
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    axes.grid(False, axis="x")
    caption = f"At epoch {epoch}, {noisy.sum():.1%} of the images carry a wrong label, "
    caption += f"{noisy[sure].sum():.1%} with confidence above alpha = {alpha:g} (the stronger bars)."
    return Chart("remaining_noise", "Remaining noise over confidence", caption, figure, "half", diagnostic=True)


def _label_pairs(runs: Sequence[RunFolder]) -> tuple[np.ndarray, list[str]]:
    """Images by label before and after, mean over runs, [before, after], and the classes' names."""
    named = max((run.classes for run in runs), key=len)
    pairs = np.zeros((len(named), len(named)))
    tables = [run.labels for run in runs if run.labels is not None]
    for table in tables:
        before, after = (table[name].to_numpy() for name in ("initial_label", "refined_label"))
        pairs += np.bincount(before * len(named) + after, minlength=pairs.size).reshape(pairs.shape) / len(tables)
    names = [name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…" for name in named]
    return pairs, names


def _top(amount: np.ndarray, most: int) -> np.ndarray:
    """The classes with the largest amounts, in class order."""
    return np.sort(np.argsort(-amount, kind="stable")[:most])


def _moves(runs: Sequence[RunFolder]) -> Chart:
    pairs, names = _label_pairs(runs)
    moved = pairs - np.diag(np.diag(pairs))
    shown = _top(moved.sum(0) + moved.sum(1), MATRIX_CLASSES)
    size = len(shown)
    figure, axes = canvas("half", 4.2)
    for row, before in enumerate(shown):
        for column, after in enumerate(shown):
            count = pairs[before, after]
            if count > 0:
                share = count / (pairs.max() if before == after else moved.max())
                colour = COLOURS["muted" if before == after else "vermilion"]
                axes.add_patch(Rectangle((column, row), 1, 1, color=colour, alpha=0.08 + 0.5 * share, linewidth=0))
                if size <= 12:
                    axes.text(column + 0.5, row + 0.5, f"{count:.0f}", ha="center", va="center", fontsize=6)
    tilt = 90 if max(len(names[i]) for i in shown) > 2 else 0
    ticks = np.arange(size) + 0.5
    axes.set_xticks(ticks, [names[i] for i in shown], rotation=tilt, fontsize=8)
    axes.set_yticks(ticks, [names[i] for i in shown], fontsize=8)
    axes.set(xlim=(0, size), ylim=(size, 0), aspect="equal", xlabel="after", ylabel="before")
    axes.grid(False)
    before, after = np.unravel_index(moved.argmax(), moved.shape)
    caption = f"{moved.sum():,.0f} of {pairs.sum():,.0f} labels changed"
    if moved.any():
        caption += f"; the commonest change is {names[before]} → {names[after]} ({moved.max():,.0f})"
    if size < len(names):
        caption += f". The {size} of {len(names)} classes with most changes"
    return Chart("label_changes", "Labels before and after", f"{caption}.", figure, "half")


def _counts(runs: Sequence[RunFolder]) -> Chart:
    pairs, names = _label_pairs(runs)
    before, after = pairs.sum(1), pairs.sum(0)
    shown = _top(np.maximum(before, after), COUNT_CLASSES)
    rows = np.arange(len(shown))
    figure, axes = canvas("half", 4.2)
    axes.hlines(rows, before[shown], after[shown], color=COLOURS["muted"], linewidth=1.2)
    axes.plot(before[shown], rows, "o", mfc="none", color=COLOURS["muted"], label="before", markersize=5)
    axes.plot(after[shown], rows, "o", color=COLOURS["blue"], label="after", markersize=5)
    axes.set_yticks(rows, [names[i] for i in shown], fontsize=8)
    axes.set(ylim=(len(shown) - 0.4, -0.6), xlabel="images")
    axes.set_xlim(0, 1.05 * max(before.max(), after.max()))
    axes.grid(False, axis="y")
    figure.legend(loc="outside upper left", ncols=2)
    low = int(after.argmin())
    caption = f"Images in each class; the smallest is {names[low]}: {before[low]:,.0f} → {after[low]:,.0f}"
    if len(shown) < len(names):
        caption += f". The {len(shown)} largest of {len(names)} classes"
    return Chart("class_counts", "Images in each class", f"{caption}.", figure, "half")


def draw_overlay(runs: Sequence[RunFolder], key: str, title: str) -> Chart | None:
    """One line a run, to set runs side by side; None when no run has the figure."""
    values = _values(runs, key)
    if not np.isfinite(values).any():
        return None
    with rc_context(STYLE):
        figure, axes = canvas("third", 2.3)
        for i, row in enumerate(values):
            style = ["-", "--", ":"][i // len(LINES) % 3]
            _line(axes, row[None], LINES[i % len(LINES)], style=style)
        _from_zero(axes, values)
    ends = ", ".join(f"{run.name} {plain(end)}" for run in runs if (end := run.last(key)) is not None)
    return Chart(key, title, f"At the end: {ends}.", figure, "third", "noise" in key)


def save_figures(runs: Sequence[RunFolder], folder: Path) -> list[Path]:
    """Writes each figure as PNG, SVG and PDF."""
    folder.mkdir(parents=True, exist_ok=True)
    return [path for chart in draw_charts(runs) for path in save_chart(chart, folder)]
