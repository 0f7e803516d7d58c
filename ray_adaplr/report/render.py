"""Pages from templates: every text is escaped unless it was made here, and nothing is fetched from elsewhere."""

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ray_adaplr.storage.secrets import redacted

TEMPLATES = "templates"


def render(template: str, **shown: Any) -> Markup:
    """A template of this package, filled with what it shows."""
    return Markup(_environment().get_template(template).render(**shown))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ray_adaplr.report", TEMPLATES),
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
        "script_digest": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }
    return environment


def _read(name: str) -> str:
    return files(__package__).joinpath(TEMPLATES).joinpath(name).read_text("utf-8")
