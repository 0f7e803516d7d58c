"""Figures as files and inline."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from ray_adaplr.report.chart import COLOURS, inline_svg
from ray_adaplr.report.figures import SIGNS, draw_charts, save_figures
from ray_adaplr.storage.run_reader import read_run

Make = Callable[..., Path]
NAMES = {"gamma", "confidence", "remaining_noise", "label_changes", "class_counts", "agreement", "images_per_s"}


def test_each_figure_is_written_as_png_svg_and_pdf(
    make_run: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All signs are drawn alike: two of them stand for all.
    monkeypatch.setattr("ray_adaplr.report.figures.SIGNS", {key: SIGNS[key] for key in ("agreement", "images_per_s")})
    written = save_figures([read_run(make_run(epochs=3, classes=["a", "b", "c"]))], tmp_path / "figures")
    assert {path.stem for path in written} == NAMES
    for path in written:
        assert path.stat().st_size > 1000
    assert {path.suffix for path in written} == {".png", ".svg", ".pdf"}
    with Image.open(tmp_path / "figures" / "gamma.png") as picture:
        assert picture.size[0] >= 1500  # 300 dpi


def test_several_runs_give_a_band_and_one_run_none(make_run: Make) -> None:
    runs = [read_run(make_run(f"run-{seed}", seed=seed, epochs=6 + seed), labels=False) for seed in range(3)]
    alone, together = draw_charts(runs[:1])[0], draw_charts(runs)[0]
    assert len(alone.figure.axes[0].collections) == 0
    assert len(together.figure.axes[0].collections) == 3  # gamma, noise, noise of the sure ones


def test_inline_charts_follow_the_theme_and_speak(page: str) -> None:
    charts = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(charts) == len(NAMES) + 4
    for svg in charts:
        assert svg.startswith('<svg role="img" aria-label="')
        assert not any(colour in svg for colour in COLOURS.values())
        assert "var(--ink)" in svg or "var(--muted)" in svg
        assert set(re.findall(r"url\(#([^)]+)\)", svg)) <= set(re.findall(r'\bid="([^"]+)"', svg))
    identifiers = re.findall(r'\bid="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))


def test_every_theme_colour_has_its_variable_in_the_style_sheet() -> None:
    css = (Path(inline_svg.__code__.co_filename).parent / "page.css").read_text()
    for name, value in COLOURS.items():
        assert f"--{name}: {value}" in css
