"""Fills the reference pages from the code: the parser, the settings' models and the schema of a run's folder.

A page holds a line such as `{{ commands }}`; the hook puts the generated text there when the site is built, so nothing
that the code knows is typed a second time.
"""

import argparse
import inspect
import re
from collections.abc import Callable, Iterable

from pydantic import BaseModel

from ray_adaplr.cli.main import make_parser
from ray_adaplr.cli.settings import describe
from ray_adaplr.config import ABOUT_PRESETS, PRESETS, Config, ScalingConfig
from ray_adaplr.storage import layout

SHOWN_PRESETS = ("photographs", "uneven", "quick", "paper")  # beside the default, robust; all others are the paper's


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
    """A section for each command: purpose, example, usage, and a table of its options by group."""
    parts = []
    for name, (said, parser) in subcommands(make_parser()).items():
        purpose, _, example = (parser.description or said).partition("example:")
        parts += [f"## {name}", _sentence(purpose)]
        if example:
            parts += [f"```bash\n{example.strip()}\n```"]
        for group in parser._action_groups:
            rows = [_option(action) for action in group._group_actions if _shown(action)]
            if rows:
                title = (group.title or "").strip()
                parts += [_table([f"{title[:1].upper()}{title[1:]}", ""], rows)]
    return "\n\n".join(parts)


def settings() -> str:
    """A table of every setting of the method, then one of where a run works."""
    return "\n\n".join(
        [
            "## Settings of the method: `Config`",
            _sentence(inspect.getdoc(Config) or ""),
            _settings_table(Config),
            "## Where a run works: `ScalingConfig`",
            _sentence(inspect.getdoc(ScalingConfig) or ""),
            _settings_table(ScalingConfig),
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


GENERATED: dict[str, Callable[[], str]] = {
    "commands": commands,
    "settings": settings,
    "presets": presets,
    "run_folder": run_folder,
}


def _settings_table(model: type[BaseModel]) -> str:
    """A row per setting, as `ray-adaplr settings` describes it."""
    rows = []
    for setting in describe(model):
        others = [
            f"`{_value(value)}` in {preset}"
            for preset, value in setting["presets"].items()
            if preset in SHOWN_PRESETS and value != setting["default"]
        ]
        cells = [_escaped(setting["meaning"]), _escaped(setting["range"]), f"`{_value(setting['default'])}`"]
        rows.append([f"`{setting['name']}`", *cells, "; ".join(others), ", ".join(setting["stages"])])
    head = ["setting", "meaning", "values", "default", "other presets", "read by"]
    used = 6 if model is Config else 4
    return _table(head[:used], [row[:used] for row in rows])


def _shown(action: argparse.Action) -> bool:
    return action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction)


def _option(action: argparse.Action) -> list[str]:
    names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.metavar or action.dest}`"
    if action.option_strings and action.nargs != 0:
        names += f" {_escaped(str(action.metavar or _choices(action) or action.dest.upper()))}"
    meaning = _escaped((action.help or "") % vars(action) if "%(" in (action.help or "") else action.help or "")
    if action.choices is not None and action.metavar and str(_choices(action)) not in meaning:
        meaning += f" ({_escaped(_choices(action))})"
    if action.required and action.option_strings:
        meaning += " (required)"
    return [names, meaning]


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


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head)]
    lines += [["---"] * len(lines[0]), *map(list, rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
