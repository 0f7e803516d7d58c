"""What all pages and figures share: colours, style, the way of a figure onto a page or into a file, and templates.

A page is filled from a template: every text is escaped unless it was made here, and nothing is fetched from elsewhere.
"""

import io
import re
import warnings
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ray_adaplr.storage.digests import script_digest
from ray_adaplr.storage.secrets import redacted


def _read(name: str) -> str:
    return files(__package__).joinpath(f"templates/{name}").read_text("utf-8")


# Okabe and Ito's, which colour-blind readers can tell apart, as page.css has them for a light page. It has a brighter
# value of each for dark, so the page replaces these hex values by their variables.
COLOURS = dict(re.findall(r"--(\w+): (#\w+);", _read("page.css").partition("@media")[0]))
LINES = ["blue", "vermilion", "green", "purple", "orange", "sky", "ink"]
STYLE: Any = {
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "text.color": COLOURS["ink"],
    "text.parse_math": False,  # a class may be named $x$
    **dict.fromkeys(("axes.edgecolor", "grid.color", "xtick.color", "ytick.color"), COLOURS["rule"]),
    **dict.fromkeys(("axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), COLOURS["muted"]),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.6,
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 0),
    "legend.frameon": False,
    "hatch.color": COLOURS["page"],
    "hatch.linewidth": 0.7,
    "svg.hashsalt": "ray-adaplr",  # same run, same bytes
    "pdf.fonttype": 42,
}


Size = Literal["third", "half", "full"]
INCHES = {"third": 3.3, "half": 5.0, "full": 10.2}  # widths on the page at one scale, so that all text is of one size


MAKER = b"ray-adaplr"
_ABOUT_FILES: dict[str, dict[str, Any]] = {
    "png": {"Software": MAKER.decode()},
    "svg": {"Creator": MAKER.decode(), "Date": None},
    "pdf": {"Creator": MAKER.decode(), "CreationDate": None},
}


@dataclass
class Chart:
    """A figure with the words that belong to it."""

    name: str
    title: str
    caption: str
    figure: Figure
    size: Size
    diagnostic: bool = False  # needs ground truth
    tooltips: dict[str, str] = field(default_factory=dict)  # by the gid of a text in the figure

    @cached_property
    def svg(self) -> Markup:
        """The chart for the page: real text, colours by CSS variable, names of its own, a title to be read out."""
        buffer = io.StringIO()
        with rc_context({**STYLE, "svg.fonttype": "none", "font.family": "sans-serif"}):
            self._save(buffer, format="svg", transparent=True, metadata={"Date": None})
        svg = buffer.getvalue()
        svg = svg[svg.index("<svg") :]
        svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
        for group, text in self.tooltips.items():
            svg = svg.replace(f'<g id="{group}">', f'<g id="{group}"><title>{escape(text)}</title>', 1)
        svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{self.name}-", svg)
        for name, value in COLOURS.items():
            svg = svg.replace(value, f"var(--{name})")
        view = re.search(r'viewBox="[^"]*"', svg)
        label = escape(f"{self.title}. {self.caption}")
        opening = f'<svg role="img" aria-label="{label}" {view[0] if view else ""}>'
        return Markup(opening + svg[svg.index(">") + 1 :])

    def files(self) -> dict[str, bytes]:
        """The chart as PNG, SVG and PDF, by name; they say who made them, and no date: same run, same bytes."""
        made = {}
        for kind, about in _ABOUT_FILES.items():
            buffer = io.BytesIO()
            with rc_context(STYLE):
                self._save(buffer, format=kind, dpi=300, metadata=about)
            self.figure.set_layout_engine("none")  # laid out once for all kinds
            made[f"{self.name}.{kind}"] = buffer.getvalue()
        return made

    def _save(self, buffer: io.BytesIO | io.StringIO, **how: Any) -> None:
        with warnings.catch_warnings():  # one a character; pages hold text, which the browser's fonts show
            warnings.filterwarnings("ignore", "Glyph .* missing from")
            self.figure.savefig(buffer, **how)


def plain(value: float) -> str:
    """A number as people read it: three digits, commas, no powers of ten for large ones."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def canvas(size: Size, height: float, columns: int = 1) -> tuple[Figure, Any]:
    """A figure with one row of panels that share their vertical axis."""
    figure = Figure(figsize=(INCHES[size], height), layout="constrained")
    return figure, figure.subplots(1, columns, sharey=True)


def epoch_axis(axes: Axes, epochs: int) -> None:
    """A horizontal axis of epochs, from 1: whole numbers, room around a single one, and nothing before the first."""
    axes.set(xlabel="epoch")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}" if value >= 1 else ""))
    if epochs < 3:
        first = min(1.0, axes.dataLim.x0)  # what came before the first epoch stands left of it
        axes.set_xlim(first - 0.5, epochs + 0.5)


def percent_axis(axes: Axes) -> None:
    """A vertical axis of shares, in per cent."""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))


def render(template: str, **shown: Any) -> Markup:
    """A template of this package, filled with what it shows."""
    return Markup(_environment().get_template(template).render(**shown))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ray_adaplr.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: redacted(value) if type(value) is str else value,  # no page shows a key of a URI
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = _read("page.js")
    environment.globals |= {
        "style": Markup(_read("page.css")),
        "script": Markup(script),
        # The page's own script may run and no other: a class named <script> stays a name.
        "script_digest": script_digest(script),
    }
    return environment
