"""`ray-adaplr`: the command line. Exit code 0 on success, 2 on bad input with one sentence, 1 on failure, 130 stopped.

Whatever goes wrong gets one sentence and a way on; the traceback of what nobody foresaw is kept in a file.
"""

import argparse
import atexit
import errno
import gc
import logging
import os
import re
import select
import shlex
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from typing import Any

from ray_adaplr import __version__
from ray_adaplr.cli import doctor, jobs, results, runs, settings, sweeps
from ray_adaplr.cli.options import EXIT_BAD_INPUT, EXIT_STOPPED, Parser, check
from ray_adaplr.errors import InputError, RunFailed, first_line, same_command, without_force
from ray_adaplr.storage.secrets import redacted

EXIT_FAILED = 1
_STOP_AGAIN = 0.05  # seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = make_parser().parse_args(arguments)
    options.command_line = redacted(shlex.join(["ray-adaplr", *arguments]))
    options.words = arguments
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, _stop)
    threading.excepthook = _uncaught
    sys.unraisablehook = _uncaught
    try:
        check(options)
        return options.function(options) or 0
    except InputError as error:
        return _end(EXIT_BAD_INPUT, str(error))
    except RunFailed as error:
        return _end(EXIT_FAILED, f"the run failed: {error}")
    except KeyboardInterrupt:
        print(f"\nstopped{_how_to_continue(options)}", file=sys.stderr)
        return EXIT_STOPPED
    except BrokenPipeError as error:
        if not _readers_are_gone():
            return _unforeseen(error, options)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # so that the interpreter's last flush is quiet
        return 0
    except Exception as error:
        return _unforeseen(error, options)


def _how_to_continue(options: argparse.Namespace) -> str:
    """How a stopped command goes on, where it keeps what it has done."""
    if options.function.__module__ not in (runs.__name__, sweeps.__name__):
        return ""
    resume = ["--resume"] if _lacks_resume(options) else []
    command = redacted(shlex.join(["ray-adaplr", *without_force(options.words), *resume]))
    return f"; the same command continues from the last checkpoint:\n  {command}"


def _lacks_resume(options: argparse.Namespace) -> bool:
    return options.function is sweeps.tune and not options.resume


def _continues(options: argparse.Namespace) -> str:
    return f"{same_command(options.words)}{' with --resume' if _lacks_resume(options) else ''} continues"


def _end(code: int, sentence: str) -> int:
    print(f"ray-adaplr: {redacted(sentence)}", file=sys.stderr)
    return code


def _unforeseen(error: Exception, options: argparse.Namespace) -> int:
    """The last resort: one sentence, where the whole traceback is, and how to continue."""
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        longest = max(re.split(r"[/'\s]", str(error)), key=len)
        return _end(EXIT_BAD_INPUT, f"'{longest}' is too long for the name of a file; choose a shorter one")
    if isinstance(error, OSError) and error.errno:  # a full disk, most often; every file written so far is whole
        threading.excepthook = lambda _: None  # open writers fail once more as the process ends
        sys.unraisablehook = lambda _: None
        where = f": {error.filename}" if error.filename else ""
        return _end(EXIT_FAILED, f"{error.strerror}{where}; nothing is lost: {_continues(options)}")
    if isinstance(error, OSError):
        from ray_adaplr.storage.folder import storage_trouble  # loads pyarrow, which `--help` does without

        if trouble := storage_trouble(error):
            return _end(EXIT_FAILED, f"{trouble}, {_continues(options)}: nothing is lost")
    kept = "could not be kept"
    try:
        with tempfile.NamedTemporaryFile("w", prefix="ray-adaplr-", suffix=".log", delete=False) as file:
            file.write(redacted(f"{options.command_line}\n\n{''.join(traceback.format_exception(error))}"))
        kept = f"is in {file.name}"
    except OSError:
        pass
    what = f"{type(error).__name__}: {first_line(error)}"
    return _end(
        EXIT_FAILED,
        f"something unforeseen happened ({what}); the traceback {kept}. What was written before is whole: "
        f"{_continues(options)}, and if this happens again, please report it with that file",
    )


def _stop(*_: object) -> None:
    """The first Ctrl-C or SIGTERM lets the run release what it holds; a second one ends the process at once."""
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, lambda *_: os._exit(EXIT_STOPPED))
    raise KeyboardInterrupt


def _readers_are_gone() -> bool:
    """Whether somebody who read our output has seen enough."""
    outputs = select.poll()
    for stream in (1, 2):
        outputs.register(stream, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in outputs.poll(0))


def _uncaught(problem: Any) -> None:
    """What comes where nobody can catch it: in a thread, or while Python clears an object away.

    A stop that was lost in this way comes again a moment later. A full disk is told once, by `main`; TensorBoard's
    thread and its clean-up would tell it again as tracebacks.
    """
    if isinstance(problem.exc_value, KeyboardInterrupt):
        signal.signal(signal.SIGALRM, _stop)
        signal.setitimer(signal.ITIMER_REAL, _STOP_AGAIN)
    elif not (isinstance(problem.exc_value, OSError) and problem.exc_value.errno == errno.ENOSPC):
        traceback.print_exception(problem.exc_type, problem.exc_value, problem.exc_traceback)


def command() -> int:
    """The console script: `main` in a process of its own, which can do without most looks for garbage.

    Torch makes objects by the hundred thousand as it loads, and all stay: 1 s of 2.9 s of a core that loading and
    leaving take. Triton counts what is left at the end, and would complain.
    """
    gc.set_threshold(50_000)
    atexit.register(lambda: None if "triton" in sys.modules else gc.freeze())
    return main()


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands; each sets `function` to what runs it."""
    parser = Parser(
        prog="ray-adaplr",
        description="Adapt a trained classifier to unlabelled images of a new domain, without its source data.\n\n"
        "example:\n  ray-adaplr demo --out runs/demo",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ray-adaplr {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for family in (runs, sweeps, results, settings, doctor):
        family.add_parsers(commands)
    jobs.add_parsers(commands, check_command)
    return parser


def check_command(arguments: Sequence[str]) -> None:
    """Read a command's options without running it: a wrong one is refused here, not by a cluster."""
    check(make_parser().parse_args(arguments))
