"""The two ways a command ends badly, each with its exit code, and how the one sentence about it is made.

A sentence names the value, the rule and the way out.
"""

import difflib
import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Model = TypeVar("Model", bound=BaseModel)


class InputError(ValueError):
    """Bad input: one sentence that names the value, the rule and the way out. Exit code 2.

    `in_python` says it to who calls from Python, where that is more than another spelling of options.
    """

    def __init__(self, said: str = "", in_python: str = "") -> None:
        super().__init__(said)
        self.in_python = in_python


class RunFailed(RuntimeError):
    """The run could not go on although the input was right. Exit code 1; the message says why."""


def counted(number: int, thing: str) -> str:
    """A number of things in words: `1 image`, `1,797 images`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def without_force(words: Sequence[str]) -> list[str]:
    """A command's words without --force, also where it is cut short: with it, the command removes what it has done."""
    return [word for word in words if len(word) < 3 or not "--force".startswith(word)]


def same_command(words: Sequence[str] | None = None) -> str:
    """What a command that ended early is to be called again by; it is this process's where no words are given."""
    words = sys.argv if words is None else words
    return "the same command" + ("" if without_force(words) == list(words) else " without --force")


def few(names: Iterable[str], most: int = 5) -> str:
    """The first of some names for a sentence: `cat, dog, …`."""
    known = list(names)
    return ", ".join(known[:most] + ["…"] * (len(known) > most))


def first_line(error: BaseException) -> str:
    """What an error says, in one line; its kind where it says nothing."""
    return _lines(error)[0]


def last_line(error: BaseException) -> str:
    """The same from its end: of an error with a traceback, what was raised."""
    return _lines(error)[-1]


def _lines(error: BaseException) -> list[str]:
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The end of a sentence about an unknown name: the known one that was meant, or the way out, or all of them."""
    names = list(known)
    near = difflib.get_close_matches(name, names, 1)
    return f"; did you mean '{near[0]}'?" if near else f"; {otherwise or 'known are ' + ', '.join(names)}"


def need(what: str, extra: str, *packages: str) -> Any:
    """The last of some packages, imported; InputError with the pip command where `what` needs one that is missing."""
    for package in packages:
        try:
            found = importlib.import_module(package)
        except ImportError as error:
            raise InputError(f"{what} needs {package}: pip install 'ray-adaplr[{extra}]'") from error
    return found


def checked_model(
    kind: type[Model], values: dict[str, Any], called: Callable[[str, Any], str] = "{}={!r}".format
) -> Model:
    """A pydantic model of these values; InputError about the first that breaks a rule, which `called` puts in words."""
    try:
        return kind(**values)
    except (ValidationError, InputError) as error:
        broken = error if isinstance(error, ValidationError) else error.__cause__
        assert isinstance(broken, ValidationError)
        raise InputError(_about_the_first(broken, kind, values, called)) from broken


def option(default: Any, meaning: str, **rules: Any) -> Any:
    """A field of a `Checked` model: its default, what it means, and the rules that its values keep."""
    return Field(default, description=meaning, **rules)


class Checked(BaseModel):
    """A frozen model that raises InputError for a value that breaks a rule, however it is made."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    if not TYPE_CHECKING:  # a type checker knows the fields

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise InputError(_about_the_first(error, type(self), values, "{}={!r}".format)) from error


def _about_the_first(
    error: ValidationError, kind: type[BaseModel], values: dict[str, Any], called: Callable[[str, Any], str]
) -> str:
    first = error.errors()[0]
    rule = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return rule
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return f"there is no option '{name}'{nearest(name, kind.model_fields)}"
    return f"{called(name, values.get(name, 'nothing'))}: {rule[:1].lower()}{rule[1:]}"
