"""Figures as files and inline."""

import re
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from ray_adaplr.report.chart import COLOURS, inline_svg
from ray_adaplr.report.figures import draw_charts, save_figures
from ray_adaplr.report.run_folder import read_run

Make = Callable[..., Path]
NAMES = {"gamma", "confidence", "remaining_noise", "label_changes", "class_counts", "agreement", "images_per_s"}


def test_each_figure_is_written_as_png_svg_and_pdf(make_run: Make, tmp_path: Path) -> None:
    written = save_figures([read_run(make_run())], tmp_path / "figures")
    assert {path.stem for path in written} >= NAMES
    for path in written:
        assert path.stat().st_size > 1000
    assert {path.suffix for path in written} == {".png", ".svg", ".pdf"}
    with Image.open(tmp_path / "figures" / "gamma.png") as picture:
        assert picture.size[0] >= 1500  # 300 dpi


def test_several_runs_give_a_band_and_one_run_none(make_run: Make) -> None:
    runs = [read_run(make_run(f"run-{seed}", seed=seed, epochs=6 + seed)) for seed in range(3)]
    alone, together = draw_charts(runs[:1])[0], draw_charts(runs)[0]
    assert len(alone.figure.axes[0].collections) == 0
    assert len(together.figure.axes[0].collections) == 3  # gamma, noise, noise of the sure ones


def test_inline_charts_follow_the_theme_and_speak(make_run: Make) -> None:
    for chart in draw_charts([read_run(make_run())]):
        svg = inline_svg(chart)
        assert svg.startswith('<svg role="img" aria-label="')
        assert not any(colour in svg for colour in COLOURS.values())
        assert "var(--ink)" in svg or "var(--muted)" in svg
        identifiers = re.findall(r'\bid="([^"]+)"', svg)
        assert len(identifiers) == len(set(identifiers))
        assert all(name.startswith(f"{chart.name}-") for name in identifiers)


def test_every_theme_colour_has_its_variable_in_the_style_sheet() -> None:
    css = (Path(inline_svg.__code__.co_filename).parent / "page.css").read_text()
    for name, value in COLOURS.items():
        assert f"--{name}: {value}" in css
