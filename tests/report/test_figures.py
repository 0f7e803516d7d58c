"""Figures as files and inline."""

import json
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import matplotlib.colors
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from markupsafe import escape
from PIL import Image

from ray_adaplr.errors import InputError
from ray_adaplr.report.chart import COLOURS
from ray_adaplr.report.figures import SIGNS, draw_charts, save_figures
from ray_adaplr.report.gallery import true_classes
from ray_adaplr.report.page import report_page
from ray_adaplr.storage.run_reader import read_run

Make = Callable[..., Path]
PAPER = {"gamma", "confidence", "remaining_noise"}
BY_CLASS = {"label_changes", "class_counts", "confusion", "class_accuracy"}


def test_each_figure_is_written_as_png_svg_and_pdf(
    make_run: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All signs are drawn alike: one of them stands for all.
    monkeypatch.setattr("ray_adaplr.report.figures.SIGNS", {"agreement": SIGNS["agreement"]})
    run, place = read_run(make_run(epochs=3, classes=["a", "b", "c"])), tmp_path / "figures"
    count = save_figures([run], place)
    written = list(place.iterdir())
    assert len(written) == count
    assert {path.stem for path in written} == PAPER | BY_CLASS | {"agreement"}
    for path in written:
        assert path.stat().st_size > 1000
    assert {path.suffix for path in written} == {".png", ".svg", ".pdf"}
    with Image.open(tmp_path / "figures" / "gamma.png") as picture:
        assert picture.size[0] >= 1500  # 300 dpi
    before = {path: path.read_bytes() for path in written}
    (place / "gamma.svg").write_text("mine")
    with pytest.raises(InputError, match=r"gamma\.svg is there already and was not made by this command"):
        save_figures([run], place)
    assert (place / "gamma.svg").read_text() == "mine"
    (place / "gamma.svg").unlink()
    save_figures([run], place)
    assert {path: path.read_bytes() for path in written} == before


def test_several_runs_give_a_band_and_one_run_none(make_run: Make) -> None:
    runs = [read_run(make_run(f"run-{seed}", seed=seed, epochs=6 + seed), labels=False) for seed in range(3)]
    alone, together = draw_charts(runs[:1])[0], draw_charts(runs)[0]
    assert len(alone.figure.axes[0].collections) == 0
    assert len(together.figure.axes[0].collections) == 3  # gamma, noise, noise of the sure ones


def test_inline_charts_follow_the_theme_and_speak(page: str) -> None:
    charts = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(charts) == len(PAPER | BY_CLASS) + len(SIGNS)
    for svg in charts:
        assert svg.startswith('<svg role="img" aria-label="')
        assert not any(colour in svg for colour in COLOURS.values())
        assert "var(--ink)" in svg or "var(--muted)" in svg
        assert set(re.findall(r"url\(#([^)]+)\)", svg)) <= set(re.findall(r'\bid="([^"]+)"', svg))
    identifiers = re.findall(r'\bid="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))


def test_every_theme_colour_has_its_variable_in_the_style_sheet() -> None:
    css = files("ray_adaplr.report").joinpath("templates").joinpath("page.css").read_text()
    for name, value in COLOURS.items():
        assert f"--{name}: {value}" in css


def caption_of(run: Path, name: str) -> str:
    return next(chart.caption for chart in draw_charts([read_run(run)]) if chart.name == name)


def test_the_noise_that_remains_is_the_noise_of_the_headline(make_run: Make) -> None:
    run = make_run()
    summary = json.loads((run / "summary.json").read_text())
    assert caption_of(run, "remaining_noise").startswith(
        f"{summary['noise_after']:.1%} of the refined labels are wrong"
    )
    of_the_sure = f"{summary['hcs_noise']:.1%}"
    assert caption_of(run, "remaining_noise").endswith(f"; of the sure labels alone {of_the_sure} are.")
    assert f"<dt>Noise, sure labels *</dt><dd>{of_the_sure}</dd>" in report_page(run)
    wrong = round(summary["noise_after"] * summary["num_images"])
    assert caption_of(run, "confusion").startswith(f"{wrong} of 400 refined labels are wrong")


def test_without_the_images_it_is_said_that_the_noise_is_that_of_the_last_epoch_s_start(make_run: Make) -> None:
    run = make_run(epochs=3)
    (run / "run.json").unlink()
    assert "of the labels that epoch 3 began with are wrong" in caption_of(run, "remaining_noise")
    assert not {chart.name for chart in draw_charts([read_run(run)])} & {"confusion", "class_accuracy"}


@pytest.mark.parametrize("alpha", [0.5, 0.93, 0.97])
def test_wrong_labels_above_alpha_are_counted_wherever_alpha_lies(make_run: Make, alpha: float) -> None:
    run = make_run(epochs=3, alpha=alpha)
    table = pq.read_table(run / "labels.parquet")
    confidence = table["confidence"].to_numpy().copy()
    truth = true_classes(read_run(run))
    assert truth is not None
    wrong = np.flatnonzero(table["refined_label"].to_numpy() != truth)
    confidence[wrong[:7]], confidence[wrong[7:]] = alpha + 0.01, alpha - 0.01  # both in one bin of .05, but for .5
    sure = [pa.array(confidence, pa.float32()), pa.array(confidence > alpha)]
    table = table.set_column(3, "confidence", sure[0]).set_column(4, "high_confidence", sure[1])
    pq.write_table(table, run / "labels.parquet")
    chart = next(chart for chart in draw_charts([read_run(run)]) if chart.name == "remaining_noise")
    assert f", {7 / 400:.1%} with confidence above alpha = {alpha:g}" in chart.caption
    colour = matplotlib.colors.to_rgba(COLOURS["vermilion"])
    bars = [patch for patch in chart.figure.axes[0].patches if patch.get_facecolor() == colour]
    assert sum(bar.get_height() for bar in bars) == pytest.approx(7 / 400)


def test_where_alpha_lies_inside_a_bin_a_histogram_alone_does_not_tell_what_is_above(make_run: Make) -> None:
    for alpha, told in ((0.97, False), (0.9, True), (0.15, True)):
        run = make_run(f"run-{alpha}", epochs=3, alpha=alpha)
        (run / "run.json").unlink()
        caption = caption_of(run, "remaining_noise")
        assert "began with are wrong" in caption
        assert ("above alpha" in caption) == told


def test_the_truth_of_other_images_is_not_taken_for_that_of_the_run(make_run: Make) -> None:
    run, other = make_run(), make_run("other", ids=[f"other-{i}" for i in range(400)])
    (run / "run.json").write_text((other / "run.json").read_text())
    assert true_classes(read_run(run)) is None
    assert true_classes(read_run(other)) is not None


def test_accuracy_by_class_is_that_of_the_labels(make_run: Make) -> None:
    run = make_run(classes=["a", "b"], epochs=3)
    found = read_run(run)
    truth = true_classes(found)
    assert truth is not None
    assert found.labels is not None
    right = found.labels["refined_label"].to_numpy() == truth
    lowest = min(right[truth == c].mean() for c in (0, 1))
    assert caption_of(run, "class_accuracy").endswith(f"→ {lowest:.1%}.")


@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_axes_of_epochs_have_whole_numbers_from_one(make_run: Make, epochs: int) -> None:
    for chart in draw_charts([read_run(make_run(epochs=epochs))]):
        if chart.name in {"gamma", *SIGNS}:
            axes = chart.figure.axes[0]
            low, high = axes.get_xlim()
            chart.figure.draw_without_rendering()
            shown = [
                t.get_text() for t in axes.get_xticklabels() if t.get_text() and low <= t.get_position()[0] <= high
            ]
            assert shown == [str(epoch + 1) for epoch in range(epochs)]


def test_names_are_whole_where_there_is_room_and_whole_in_a_tooltip_elsewhere(make_run: Make) -> None:
    names = ["a name of twenty-five chars", "a name that is far too long for any chart & <that is that>"]
    page = report_page(make_run(classes=names, epochs=1))
    assert f">{names[0]}</text>" in page
    assert f"<title>{escape(names[1])}</title>" in page


def test_classes_are_as_many_as_the_model_has(make_run: Make) -> None:
    run = make_run(classes=["a", "b", "c"])
    (run / "summary.json").write_text(json.dumps({"num_classes": 5}))
    assert read_run(run).classes == ["0", "1", "2", "3", "4"]
    assert "The smallest class is 3: 0 → 0 images" in caption_of(run, "class_counts")
