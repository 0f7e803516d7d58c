"""Figures of labels by class: what became of them, and how right they are where the truth is known."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from ray_adaplr.report.chart import COLOURS, Chart, canvas
from ray_adaplr.storage.run_reader import RunFolder

MATRIX_CLASSES, ROW_CLASSES = 20, 24
WHOLE_NAME = 30  # characters of a name for which there is room beside a chart; longer ones have it in a tooltip


def class_charts(runs: Sequence[RunFolder], truths: Sequence[np.ndarray | None]) -> Iterator[Chart]:
    """The figures by class that the runs have data for, with each run's true classes, int64 [n], where known."""
    tables = [run.labels for run in runs if run.labels is not None and len(run.labels)]
    if not tables:
        return
    names = max((run.classes for run in runs), key=len)
    before = [table["initial_label"].to_numpy() for table in tables]
    after = [table["refined_label"].to_numpy() for table in tables]
    pairs = _mean_pairs(before, after, len(names))
    moves = _off_diagonal_in_words(pairs, names, "labels changed", "change is {0} → {1}")
    chart = Chart("label_changes", "Labels before and after", moves, Figure(), "half")
    yield _matrix(chart, pairs, names, xlabel="after", ylabel="before")
    yield _counts(pairs, names)
    known = [
        (run.labels["initial_label"].to_numpy(), run.labels["refined_label"].to_numpy(), truth)
        for run, truth in zip(runs, truths)
        if run.labels is not None and truth is not None and truth.max(initial=-1) < len(names)
    ]
    if known:
        firsts, refined, true = (list(column) for column in zip(*known))
        first, pairs = _mean_pairs(true, firsts, len(names)), _mean_pairs(true, refined, len(names))
        words = _off_diagonal_in_words(pairs, names, "refined labels are wrong", "mistake is {1} for a true {0}")
        chart = Chart("confusion", "Confusion of the refined labels", words, Figure(), "half", diagnostic=True)
        yield _matrix(chart, pairs, names, xlabel="refined label", ylabel="true class")
        yield _accuracies(first, pairs, names)


def _mean_pairs(one: list[np.ndarray], other: list[np.ndarray], size: int) -> np.ndarray:
    """How many images have each pair of labels, mean over runs, [size, size]."""
    counts = [np.bincount(a * size + b, minlength=size * size).reshape(size, size) for a, b in zip(one, other)]
    return np.mean(counts, axis=0)


def _off_diagonal_in_words(pairs: np.ndarray, names: list[str], what: str, commonest: str) -> str:
    off = _off_diagonal(pairs)
    caption = f"{off.sum():,.0f} of {pairs.sum():,.0f} {what}"
    if off.any():
        row, column = np.unravel_index(off.argmax(), off.shape)
        caption += f"; the commonest {commonest.format(names[row], names[column])} ({off.max():,.0f})"
    return caption


def _counts(pairs: np.ndarray, names: list[str]) -> Chart:
    before, after = pairs.sum(1), pairs.sum(0)
    low = int(after.argmin())
    caption = f"The smallest class is {names[low]}: {before[low]:,.0f} → {after[low]:,.0f} images"
    chart = Chart("class_counts", "Images in each class", caption, Figure(), "half")
    axes = _rows(chart, before, after, names, sizes=np.maximum(before, after))
    axes.set(xlabel="images", xlim=(0, 1.05 * max(before.max(), after.max())))
    return chart


def _accuracies(first: np.ndarray, refined: np.ndarray, names: list[str]) -> Chart:
    """Share of right labels within each true class; `first` and `refined` are [true class, label]."""
    sizes = refined.sum(1)
    with np.errstate(invalid="ignore"):  # a class without images has no accuracy
        before, after = np.diag(first) / sizes, np.diag(refined) / sizes
    low = int(np.nanargmin(after))
    caption = f"Share of right labels within each true class; the lowest is {names[low]}: "
    caption += f"{before[low]:.1%} → {after[low]:.1%}"
    chart = Chart("class_accuracy", "Label accuracy by class", caption, Figure(), "half", diagnostic=True)
    axes = _rows(chart, before, after, names, sizes)
    axes.set(xlabel="right labels", xlim=(-0.02, 1.03), xticks=[0, 0.5, 1], xticklabels=["0", "50%", "100%"])
    return chart


def _matrix(chart: Chart, pairs: np.ndarray, names: list[str], **axis_labels: str) -> Chart:
    """Draws counts of pairs, those off the diagonal in colour; of many classes the ones with most of these."""
    moved = _off_diagonal(pairs)
    shown = _largest(moved.sum(0) + moved.sum(1), MATRIX_CLASSES)
    counts, size = pairs[np.ix_(shown, shown)], len(shown)
    longest = max(len(_short(names[i])) for i in shown)
    chart.figure, axes = canvas("half", 4.2 + 0.05 * max(0, longest - 8))  # room for names below
    for row, column in zip(*np.nonzero(counts)):
        count = counts[row, column]
        most, colour = (pairs.max(), "muted") if row == column else (moved.max(), "vermilion")
        shade = 0.08 + 0.5 * count / most
        axes.add_patch(Rectangle((column, row), 1, 1, color=COLOURS[colour], alpha=shade, linewidth=0))
        if size <= 12:
            axes.text(column + 0.5, row + 0.5, f"{count:.0f}", ha="center", va="center", fontsize=6)
    ticks, labels = np.arange(size) + 0.5, [_short(names[i]) for i in shown]
    axes.set_xticks(ticks, labels, rotation=90 if longest > 2 else 0, fontsize=8)
    axes.set_yticks(ticks, labels, fontsize=8)
    axes.set(xlim=(0, size), ylim=(size, 0), aspect="equal", **axis_labels)
    axes.grid(False)
    chart.caption += f". The {size} of {len(names)} classes with most of these." if size < len(names) else "."
    whole = [names[i] for i in shown]
    chart.tooltips = _tooltips("x", axes.get_xticklabels(), whole) | _tooltips("y", axes.get_yticklabels(), whole)
    return chart


def _rows(chart: Chart, before: np.ndarray, after: np.ndarray, names: list[str], sizes: np.ndarray) -> Axes:
    """Draws one row per class, from its value before to the one after; of many classes the largest."""
    shown = _largest(sizes, ROW_CLASSES)
    places = np.arange(len(shown))
    chart.figure, axes = canvas("half", 4.2)
    axes.hlines(places, before[shown], after[shown], color=COLOURS["muted"], linewidth=1.2)
    axes.plot(before[shown], places, "o", mfc="none", color=COLOURS["muted"], label="before", markersize=5)
    axes.plot(after[shown], places, "o", color=COLOURS["blue"], label="after", markersize=5)
    axes.set_yticks(places, [_short(names[i]) for i in shown], fontsize=8)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.grid(False, axis="y")
    chart.figure.legend(loc="outside upper left", ncols=2)
    chart.caption += f". The {len(shown)} largest of {len(names)} classes." if len(shown) < len(names) else "."
    chart.tooltips = _tooltips("y", axes.get_yticklabels(), [names[i] for i in shown])
    return axes


def _largest(amount: np.ndarray, most: int) -> np.ndarray:
    """The classes with the largest amounts, in class order."""
    return np.sort(np.argsort(-amount, kind="stable")[:most])


def _off_diagonal(pairs: np.ndarray) -> np.ndarray:
    return pairs - np.diag(np.diag(pairs))


def _short(name: str) -> str:
    return name if len(name) <= WHOLE_NAME else f"{name[: WHOLE_NAME - 1]}…"


def _tooltips(axis: str, labels: Sequence[Text], names: list[str]) -> dict[str, str]:
    """Gives each label whose name was cut a name in the SVG, and says what to show there."""
    tooltips = {}
    for i, (label, name) in enumerate(zip(labels, names)):
        if _short(name) != name:
            label.set_gid(f"{axis}-name-{i}")
            tooltips[f"{axis}-name-{i}"] = name
    return tooltips
