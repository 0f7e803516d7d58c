"""Fills the reference pages from the code: the parser, the settings' models and the schema of a run's folder.

A page holds a line such as `{{ commands }}`; the hook puts the generated text there when the site is built, so nothing
that the code knows is typed a second time.
"""

import argparse
import inspect
import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ray_adaplr.cli.main import make_parser
from ray_adaplr.config import ABOUT_PRESETS, PRESETS, Config, ScalingConfig
from ray_adaplr.storage import layout


def on_page_markdown(markdown: str, **_: object) -> str:
    """Called by mkdocs with the text of every page."""
    for name, make in GENERATED.items():
        marker = f"{{{{ {name} }}}}"
        if marker in markdown:
            markdown = markdown.replace(marker, make())
    return markdown


def subcommands(parser: argparse.ArgumentParser) -> dict[str, tuple[str, argparse.ArgumentParser]]:
    """Every command of a parser: its line of help and its own parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            said = {choice.dest: choice.help or "" for choice in action._choices_actions}
            return {name: (said.get(name, ""), child) for name, child in action.choices.items()}
    return {}


def commands() -> str:
    """A section for each command: purpose, usage, and a table of its options by group."""
    parts = []
    for name, (said, parser) in subcommands(make_parser()).items():
        parts += [f"## {name}", _sentence(parser.description or said)]
        usage = re.sub(r"\s+", " ", parser.format_usage().removeprefix("usage:").strip())
        parts += [f"```text\n{_wrapped(usage)}\n```"]
        if parser.epilog:
            parts += [f"```text\n{inspect.cleandoc(parser.epilog)}\n```"]
        for group in parser._action_groups:
            rows = [_option(action) for action in group._group_actions if _shown(action)]
            if rows:
                title = (group.title or "").strip()
                parts += [f"**{title[:1].upper()}{title[1:]}**", _table(["", "meaning", "default"], rows)]
    return "\n\n".join(parts)


def settings() -> str:
    """A table of every setting of the method, then one of where a run works."""
    return "\n\n".join(
        [
            "## Settings of the method: `Config`",
            _sentence(inspect.getdoc(Config) or ""),
            _model_table(Config, {name: PRESETS[name] for name in ("quick", "paper")}),
            "## Where a run works: `ScalingConfig`",
            _sentence(inspect.getdoc(ScalingConfig) or ""),
            _model_table(ScalingConfig, {}),
        ]
    )


def presets() -> str:
    """A table of the presets: what each changes, the paper's family told by its difference from `paper`."""
    paper, rows = PRESETS["paper"], []
    for name, changes in PRESETS.items():
        of_family = name != "paper" and set(paper) <= set(changes)
        new = {key: value for key, value in changes.items() if not (of_family and paper[key] == value)}
        told = ", ".join(f"`{key}={_value(value)}`" for key, value in new.items())
        if of_family:
            told = f"as `paper`, with {told}" if told else "as `paper`"
        rows.append([f"`{name}`", _escaped(ABOUT_PRESETS.get(name, "")), told or "the defaults"])
    return _table(["preset", "for", "settings"], rows)


def run_folder() -> str:
    """Tables of the files in a run's folder and in a sweep's, from the comments beside their names."""
    rows: dict[str, list[list[str]]] = {"A run": [], "A sweep": []}
    parts, group = [], "A run"
    for line in inspect.getsource(layout).splitlines():
        if line.removeprefix("# ") in rows:
            group = line.removeprefix("# ")
        elif not line and rows["A run"]:
            group = ""
        elif group and (found := re.fullmatch(r'[A-Z]\w* = "([^" ]+)"(?:  # (.*))?', line)):
            rows[group].append([f"`{found[1]}`", _escaped(found[2] or "")])
    for title, files in rows.items():
        if files:
            parts += [f"## {title}", _table(["file or folder", "what it is"], files)]
    return "\n\n".join(parts)


def label_columns() -> str:
    """The columns of labels.parquet, as the schema names them."""
    return ", ".join(f"`{name}`" for name in layout.LABEL_COLUMNS)


GENERATED: dict[str, Callable[[], str]] = {
    "commands": commands,
    "settings": settings,
    "presets": presets,
    "run_folder": run_folder,
    "label_columns": label_columns,
}


def _model_table(model: type[BaseModel], variants: dict[str, dict[str, Any]]) -> str:
    rows = []
    for name, field in model.model_fields.items():
        others: dict[str, list[str]] = {}
        for preset, changes in variants.items():
            if name in changes and changes[name] != field.default:
                others.setdefault(_value(changes[name]), []).append(preset)
        differs = "; ".join(f"`{value}` in {', '.join(names)}" for value, names in others.items())
        meaning = _escaped(field.description or "")
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        stages = ", ".join(map(str, extra.get("stages", [])))  # type: ignore[arg-type]
        rows.append([f"`{name}`", meaning, _range(field), f"`{_value(field.default)}`", differs, stages])
    head = ["setting", "meaning", "values", "default", "other presets", "read by"]
    return _table(head if variants else head[:4], rows if variants else [row[:4] for row in rows])


def _range(field: FieldInfo) -> str:
    """What a setting may be: its type, and the bounds that the model checks."""
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = []
    for rule in field.metadata:
        found = {sign: getattr(rule, key) for key, sign in signs.items() if hasattr(rule, key)}
        bounds += [f"{sign} {bound:,}" for sign, bound in found.items() if abs(bound) < 1e9]
    return _escaped(", ".join([_kind(field.annotation), *bounds]))


def _kind(annotation: Any) -> str:
    """A type in a reader's words: `int`, `float, float`, `auto or drl`."""
    if annotation is type(None):
        return "none"
    parts = get_args(annotation)
    if get_origin(annotation) is Literal:
        return ", ".join(map(str, parts))
    if get_origin(annotation) is Annotated:
        return _kind(parts[0])
    if get_origin(annotation) is tuple:
        return "several numbers" if Ellipsis in parts else ", ".join(map(_kind, parts))
    return " or ".join(map(_kind, parts)) if parts else annotation.__name__


def _shown(action: argparse.Action) -> bool:
    return action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction)


def _option(action: argparse.Action) -> list[str]:
    names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.metavar or action.dest}`"
    if action.option_strings and action.nargs != 0:
        names += f" {_escaped(str(action.metavar or _choices(action) or action.dest.upper()))}"
    meaning = _escaped((action.help or "") % vars(action) if "%(" in (action.help or "") else action.help or "")
    if action.choices is not None and action.metavar and str(_choices(action)) not in meaning:
        meaning += f" ({_escaped(_choices(action))})"
    empty = action.default in (None, False, argparse.SUPPRESS) or action.default == []
    default = "required" if action.required and action.option_strings else "" if empty else f"`{action.default}`"
    return [names, meaning, default]


def _choices(action: argparse.Action) -> str:
    return ", ".join(map(str, action.choices)) if action.choices is not None else ""


def _value(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _sentence(text: str) -> str:
    text = re.sub(r"\s+", " ", text.strip())
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _escaped(text: str) -> str:
    """Text as it may stand in a cell of a table."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _wrapped(usage: str, width: int = 84) -> str:
    """A usage line in several lines, broken between options only."""
    lines = [""]
    for part in re.findall(r"\[[^\]]*\]|\S+", usage):
        if len(lines[-1]) + len(part) > width:
            lines.append("   ")
        lines[-1] += f" {part}" if lines[-1] else part
    return "\n".join(lines)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head)]
    lines += [["---"] * len(lines[0]), *map(list, rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
