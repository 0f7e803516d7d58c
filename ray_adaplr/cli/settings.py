"""`ray-adaplr settings`: every setting with its meaning, range, default, the stages that read it, and presets."""

import json
from argparse import Namespace
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ray_adaplr.cli.options import add_command, flag
from ray_adaplr.config import ABOUT_PRESETS, PRESETS, Config, ScalingConfig
from ray_adaplr.errors import InputError, nearest

_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def add_parsers(commands: Any) -> None:
    """Register `settings`."""
    parser = add_command(commands, settings)
    parser.add_argument("names", nargs="*", metavar="NAME", help="these settings only")
    parser.add_argument("--json", action="store_true", help="as JSON")


def settings(options: Namespace) -> None:
    """List every setting with its meaning, range, default, the stages that read it, and its value in each preset.

    Example: ray-adaplr settings alpha n_e
    """
    rows = [*describe(Config), *describe(ScalingConfig)]
    known = [row["name"] for row in rows]
    for name in options.names:
        if name not in known:
            raise InputError(f"there is no setting '{name}'{nearest(name, known)}")
    rows = [row for row in rows if row["name"] in (options.names or known)]
    if options.json:
        print(json.dumps({"presets": ABOUT_PRESETS, "settings": rows}, indent=1))
    else:
        print(as_text(rows))


def describe(model: type[BaseModel]) -> list[dict[str, Any]]:
    """One entry per setting of a model."""
    rows = []
    for name, field in model.model_fields.items():
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        given = {preset: values[name] for preset, values in PRESETS.items() if name in values}
        given = {preset: value for preset, value in given.items() if _shown(value) != _shown(field.default)}
        rows.append(
            {
                "name": name,
                "said": f"--set {name}=…" if model is Config else flag(name),
                "meaning": field.description,
                "range": range_of(field),
                "default": field.default,
                "stages": extra.get("stages", []),
                "presets": given if model is Config else {},
            }
        )
    return rows


def range_of(field: FieldInfo) -> str:
    """The values that a setting may have, in words: `a or b`, or the kind of number with its bounds."""
    kinds = get_args(field.annotation) if get_origin(field.annotation) not in (tuple, Literal) else ()
    return " or ".join(_words(kind, field.metadata) for kind in kinds or (field.annotation,))


def _words(kind: Any, rules: list[Any]) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        inner, second = get_args(kind)
        return _words(inner, []).replace("number", "numbers", 1) if second is Ellipsis else "low, high"
    if hasattr(kind, "__metadata__"):
        kind, rules = get_args(kind)[0], get_args(kind)[1].metadata
    words = {int: "whole number", float: "number", bool: "true, false", str: "text"}.get(kind, "none")
    bounds = [f"{_SIGNS[name]} {getattr(rule, name):g}" for rule in rules for name in _SIGNS if hasattr(rule, name)]
    return f"{words} {', '.join(bounds)}" if bounds and kind in (int, float) else words


def as_text(rows: list[dict[str, Any]]) -> str:
    """For the terminal."""
    lines = ["presets (--preset):"] + [f"  {name:20} {about}" for name, about in ABOUT_PRESETS.items()]
    for row in rows:
        lines.append(f"\n{row['said']}  (default {_shown(row['default'])})\n  {row['meaning']}\n  {row['range']}")
        if row["stages"]:
            lines.append(f"  read by {', '.join(row['stages'])}")
        if row["presets"]:
            lines.append("  " + ", ".join(f"{name}: {_shown(value)}" for name, value in row["presets"].items()))
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return "none" if value is None else json.dumps(value).strip('"')
