"""Benchmarks of ray_adaplr: `python -m benchmarks` lists them, `python -m benchmarks NAME --help` explains one.

Each is a module with a `main` that takes the command line's words and writes `results/NAME.json`. Nothing in the
product imports this package, and it is not installed with it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
WORK = ROOT / "runs" / "benchmarks"  # stores, source models and runs that several benchmarks share


def command_line(name: str, about: str | None) -> argparse.ArgumentParser:
    """The parser of a benchmark; its module's docstring is the text of `--help`."""
    keep_lines = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(f"python -m benchmarks {name}", description=about, formatter_class=keep_lines)


def digits_command_line(name: str, about: str | None, seeds: Sequence[int] = ()) -> argparse.ArgumentParser:
    """The same for a benchmark on the digit tasks: where their data is, where rows and runs go, and its usual seeds."""
    parser = command_line(name, about)
    parser.add_argument("--data", type=Path, required=True, help="folder of mnist_train.npz, mnist_test.npz, ...")
    parser.add_argument("--out", type=Path, default=RESULTS / f"{name}.json")
    parser.add_argument("--work", type=Path, default=WORK, help="stores, source models, runs")
    if seeds:
        parser.add_argument("--seeds", nargs="+", type=int, default=list(seeds))
    return parser
