"""Options of commands, made from the settings' own models: a flag's default and help are written once, in the model.

A value is read by its model too, so that a wrong one is refused by the same rule and in the same words everywhere.
"""

import argparse
import inspect
import json
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ray_adaplr.config import PRESETS, Config, ScalingConfig, read_toml
from ray_adaplr.errors import InputError, checked_model

if TYPE_CHECKING:
    from ray_adaplr.data.progress import Progress
    from ray_adaplr.stages.record import Tracker

EXIT_BAD_INPUT, EXIT_STOPPED = 2, 130
Model = TypeVar("Model", bound=BaseModel)


class Parser(argparse.ArgumentParser):
    """Bad arguments get one sentence, not a page of usage."""

    def error(self, message: str) -> NoReturn:
        """Print the sentence and end with exit code 2."""
        print(f"{self.prog}: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(EXIT_BAD_INPUT)


@dataclass(frozen=True)
class Settings:
    """What all commands that train are told."""

    config: Config
    scaling: ScalingConfig
    progress: "Progress"


def add_command(commands: Any, run: Callable[..., int | None], name: str = "", about: str = "") -> Parser:
    """A command that `run` carries out. Its help is run's docstring (or `about`): what it is for, and an example."""
    about = inspect.cleandoc(about or run.__doc__ or "")
    parser = commands.add_parser(
        name or run.__name__,
        help=about.split(". ")[0].splitlines()[0].rstrip("."),
        description=about.replace("Example: ", "example:\n  "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(function=run, models=[])
    return parser


def add_flags(
    parser: Parser, model: type[BaseModel], names: Iterable[str] | None = None, title: str = "", otherwise: str = ""
) -> None:
    """A flag for each field of a model, or for those that are named, with `otherwise` as defaults; `given` reads it."""
    group = parser.add_argument_group(title) if title else parser
    for name in names or model.model_fields:
        _add_flag(group, name, model.model_fields[name], otherwise)
    parser.set_defaults(models=[*parser.get_default("models"), model])


def _add_flag(parser: Any, name: str, field: FieldInfo, otherwise: str) -> None:
    kind = _kind(field.annotation)
    text = field.description or ""
    if otherwise and kind is not bool:
        text = f"{text.partition('; default:')[0]}; default: {otherwise}"
    if field.default is not None and field.default is not False and "default:" not in text:  # 0 is one to name
        text += f" ({field.default})"
    options: dict[str, Any] = {"dest": name, "default": None, "help": text.replace("%", "%%")}
    if kind is bool:
        options["action"] = "store_true"
    elif get_origin(kind) in (list, tuple):
        options |= {"action": "append", "metavar": "NAME"}
    elif get_origin(kind) is Literal:
        options["metavar"] = "{" + ",".join(map(str, get_args(kind))) + "}"
    else:
        options["metavar"] = {int: "N", float: "X"}.get(kind, "TEXT")
    parser.add_argument(flag(name), **options)


def add_classes(parser: Parser, otherwise: str) -> None:
    """--classes: a file, which `read_classes` reads."""
    parser.add_argument(
        "--classes", dest="class_list", metavar="FILE", help=f"file with one class name per line; {otherwise}"
    )


def flag(name: str) -> str:
    """The flag of a field."""
    return "--" + name.replace("_", "-")


def _kind(annotation: Any) -> Any:
    """A field's type, of `X | None` the X."""
    if get_origin(annotation) in (Union, types.UnionType):
        return next(part for part in get_args(annotation) if part is not type(None))
    return annotation


def given(options: argparse.Namespace, model: type[Model], **more: Any) -> Model:
    """The model with what was said on the command line, and with `more` over it; InputError for a wrong value."""
    values: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        value = getattr(options, name, None)
        choices = {str(choice): choice for choice in get_args(_kind(field.annotation))}
        if value is not None and name not in more:
            values[name] = choices.get(value, value) if isinstance(value, str) else value
    return checked_model(model, values | more, lambda name, value: f"{flag(name)} {value}")


def add_training(parser: Parser) -> None:
    """--out and the settings of a command that trains."""
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the results")
    parser.add_argument("--preset", default="robust", metavar="NAME", help=f"{', '.join(PRESETS)} (robust)")
    parser.add_argument("--seed", metavar="N", help="short for --set seed=N")
    add_running(parser)


def add_running(parser: Parser) -> None:
    """Changes of single settings, and where it runs."""
    text = "one setting; repeatable; `ray-adaplr settings` lists all"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=text)
    parser.add_argument("--config", metavar="FILE.toml", help="settings that override the preset's")
    parser.add_argument("--force", action="store_true", help="start again even if there is an earlier result")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    add_flags(parser, ScalingConfig, title="where it runs")


def add_track(parser: Parser) -> None:
    """--track, which `tracker_of` reads."""
    text = "show the run there too: parameters, every epoch, report and labels"
    parser.add_argument("--track", choices=["mlflow", "wandb"], help=text)


def tracker_of(options: argparse.Namespace, group: str = "") -> "Tracker | None":
    """What --track asks for; the runs of a sweep are one group."""
    if options.track is None:
        return None
    from ray_adaplr.integrations.tracking import make_tracker

    return make_tracker(options.track, group)


def changes_of(options: argparse.Namespace) -> dict[str, Any]:
    """The single settings that were changed: --set, and the flags that are short for it."""
    changes = dict(parse_setting(text) for text in options.set)
    for name in ("seed", "stop"):
        if getattr(options, name, None) is not None:
            changes[name] = getattr(options, name)
    return changes


def all_changes(options: argparse.Namespace) -> dict[str, Any]:
    """What is changed of the preset: the settings of --config's file, and the single ones over them."""
    from ray_adaplr.storage.folder import read_file

    file = options.config
    return (read_toml(file, read_file(file, "config file")) if file else {}) | changes_of(options)


def settings_of(options: argparse.Namespace) -> Settings:
    """All settings of a command that trains, checked."""
    from ray_adaplr.data.progress import Progress

    config = Config.load(options.preset, changes=all_changes(options))
    return Settings(config, given(options, ScalingConfig), Progress(quiet=options.quiet))


def check(options: argparse.Namespace) -> None:
    """Read every value as the command will; InputError for a wrong one."""
    for model in options.models:
        given(options, model)
    if getattr(options, "preset", None):
        Config.load(options.preset, changes=all_changes(options))


def read_classes(file: str | None) -> list[str] | None:
    """The lines of a class list; None without a file."""
    if file is None:
        return None
    from ray_adaplr.data.options import checked_names
    from ray_adaplr.storage.folder import read_file

    try:
        content = read_file(file, "class list")
    except InputError as error:
        raise InputError(f"{error}; --classes is a text file with one class name per line") from error
    try:
        names = checked_names(line.strip() for line in content.decode("utf-8-sig").splitlines() if line.strip())
    except ValueError as error:  # not UTF-8, or an InputError
        raise InputError(f"the class list {file}: {error}") from error
    if not names:
        raise InputError(f"the class list {file} is empty; it needs one name per line")
    return names


def parse_setting(text: str) -> tuple[str, Any]:
    """`key=value` from the command line; the value is read as JSON, else taken as a word."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set {text}: write it as key=value, e.g. --set alpha=0.9")
    try:
        return name, json.loads(value)
    except (json.JSONDecodeError, RecursionError):
        return name, value
    except ValueError as error:  # a number of more than 4,300 digits
        raise InputError(f"--set {name}: the number is too long") from error
