"""Every bad input gets one sentence and an exit code at once; no traceback, and no file of the user's is touched."""

import contextlib
import functools
import importlib
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_adaplr.cli import main as command_line
from ray_adaplr.cli.main import main
from ray_adaplr.data.store import ImageStore

sys.path.insert(0, str(Path(__file__).parent))
from table import Case, all_cases

CASES = all_cases()
# Of a core, and of the thread that answers: how long the clock runs is up to the machine, and a Ray or a server that
# other tests left in this process has threads of its own.
MOST_SECONDS, MOST_SECONDS_OF_ALL = 5.0, 60.0
SPENT: list[float] = []


def test_the_table_has_five_hundred_lines_and_none_twice() -> None:
    assert len(CASES) >= 500
    assert len({(case.line, str(case.files)) for case in CASES}) == len(CASES)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): b"" if path.is_dir() else path.read_bytes() for path in folder.rglob("*")}


@pytest.fixture(scope="module", autouse=True)
def libraries_are_loaded() -> None:
    """What takes seconds to import on a busy machine is no part of an answer's time."""
    for name in ("torchvision.models", "ray.tune", "timm"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


@pytest.fixture(scope="module", autouse=True)
def one_parser() -> Iterator[None]:
    """Making the parser is half of an answer's time, and it is the same for all lines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_line, "make_parser", functools.lru_cache(command_line.make_parser))
        yield


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.line[:70])
def test_a_bad_input_gets_one_sentence(
    case: Case,
    source_folder: Path,
    digit_stores: dict[str, ImageStore],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ADAPLR_DATA", raising=False)
    for name, content in case.files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    before = contents(tmp_path)
    line = case.line.replace("{here}", str(tmp_path)).replace("{model}", str(source_folder))
    started = time.thread_time()
    try:
        code = main(shlex.split(line.replace("{store}", digit_stores["optdigits"].paths[0])))
    except SystemExit as stop:
        code = int(stop.code or 0)
    SPENT.append(time.thread_time() - started)
    told = capsys.readouterr().err
    assert code == case.code, told
    assert "Traceback" not in told
    assert "unforeseen" not in told
    assert len(told.strip().splitlines()) == 1, told
    assert case.words in told
    assert SPENT[-1] < MOST_SECONDS
    assert contents(tmp_path) == before


def test_all_answers_together_take_less_than_a_minute() -> None:
    if len(SPENT) != len(CASES):
        pytest.skip("only a part of the table was run")
    assert sum(SPENT) < MOST_SECONDS_OF_ALL
    print(f"{len(SPENT)} answers in {sum(SPENT):.1f} s, the slowest {max(SPENT):.2f} s")
