"""Digests of a small whole run: do two states of the code give the same bits?

    python -m benchmarks bits [--against COMMIT]

The demo, shortened and in one process: prepare, pretrain, infer, refine, distill. Prints one digest for the labels, one
for the target model and one for the source model. With `--against` the same run is made from another commit, which is
checked out beside this one for that time; the exit code is 1 when a digest differs. Digests depend on the processor
and on the versions of torch and numpy, so compare them on one machine.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks import ROOT, command_line

# The settings of a label, and not the bytes of its file: the format may change without a change of the result.
COLUMNS = ("id", "initial_label", "refined_label", "confidence", "high_confidence", "last_changed_epoch")
LENGTHS = {"pretrain_epochs": 2, "warm_start_epochs": 2, "epochs": 3, "distill_epochs": 2}


def run_demo(code: Path, out: Path) -> None:
    """The shortened demo by the package that lies in `code`.

    Raises:
        SystemExit: it failed; what it printed is in the message.
    """
    command = [sys.executable, "-m", "ray_adaplr", "demo", "--out", str(out), "--engine", "local", "--quiet"]
    for name, length in LENGTHS.items():
        command += ["--set", f"{name}={length}"]
    environment = {**os.environ, "PYTHONPATH": str(code)}  # before an installed package
    done = subprocess.run(command, cwd=code, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the demo of {code} ended with exit code {done.returncode}:\n{done.stderr[-2000:]}")


def digests(run: Path) -> dict[str, str]:
    """What a run's folder holds, in 16 hex digits each."""
    table = pq.read_table(run / "labels.parquet")
    columns = "".join(repr(table[name].to_pylist()) for name in COLUMNS)
    return {
        "labels": _digest(columns.encode()),
        "target": _digest((run / "target_model" / "model.safetensors").read_bytes()),
        "source": _digest((run / "source" / "model.safetensors").read_bytes()),
    }


def digests_of(code: Path) -> dict[str, str]:
    """Run the code in a folder and digest what comes of it."""
    with tempfile.TemporaryDirectory() as made:
        run_demo(code, Path(made) / "run")
        return digests(Path(made) / "run")


@contextmanager
def checked_out(commit: str, root: Path = ROOT) -> Iterator[Path]:
    """Another commit of the repository in a temporary folder; nothing in the repository's own files is touched."""
    with tempfile.TemporaryDirectory() as made:
        place = Path(made) / "tree"
        _git(root, "worktree", "add", "--detach", str(place), commit)
        try:
            yield place
        finally:
            _git(root, "worktree", "remove", "--force", str(place))


def main(arguments: list[str] | None = None) -> int:
    """Print the digests, and those of another commit beside them."""
    parser = command_line("bits", __doc__)
    parser.add_argument(
        "--against", metavar="COMMIT", help="also run this commit (a hash, a branch, HEAD~1) and compare"
    )
    options = parser.parse_args(arguments)
    here = digests_of(ROOT)
    print("here:", _line(here), flush=True)
    if not options.against:
        return 0
    with checked_out(options.against) as code:
        there = digests_of(code)
    print(f"{options.against}:", _line(there))
    different = [name for name in here if here[name] != there[name]]
    print(f"DIFFERENT: {', '.join(different)}" if different else "the same bits")
    return int(bool(different))


def _line(found: dict[str, str]) -> str:
    return " ".join(f"{name} {digest}" for name, digest in found.items())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _git(root: Path, *arguments: str) -> None:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
