"""How a command ends: whatever happens, one sentence and the right exit code."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from s3_server import Fault, S3Place

from ray_adaplr.cli import options
from ray_adaplr.cli.main import main
from ray_adaplr.data.progress import Progress
from ray_adaplr.report import live
from ray_adaplr.storage import folder


def test_what_nobody_foresaw_gets_one_sentence_and_a_file_with_the_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(run: str, **options: object) -> None:
        raise KeyError("a surprise at s3://KEY:SECRET@bucket")

    monkeypatch.setattr(live, "follow_run", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["watch", "runs/a"]) == 1
    told = capsys.readouterr().err
    [file] = tmp_path.glob("ray-adaplr-*.log")
    assert len(told.strip().splitlines()) == 1
    assert "something unforeseen happened (KeyError" in told
    assert f"the traceback is in {file}" in told
    assert "the same command continues" in told
    kept = file.read_text()
    assert kept.startswith("ray-adaplr watch runs/a\n")
    assert "in broken" in kept
    assert "SECRET" not in told + kept


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("503", "the storage was out of reach for too long (When listing objects"),
        ("cut", "the storage was out of reach for too long (When listing objects"),
        ("denied", "the storage refuses the credentials (When listing objects"),
    ],
)
def test_storage_that_refuses_or_does_not_answer_is_nothing_to_report(
    fault: Fault, told: str, s3: S3Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(folder, "PATIENCE", 0.0)
    monkeypatch.setattr(live, "follow_run", lambda run, **options: folder.Folder(run).names())
    place, s3.fault = s3.uri(), fault
    assert main(["watch", place]) == 1
    [sentence] = capsys.readouterr().err.strip().splitlines()
    assert told in sentence
    assert sentence.endswith("the same command continues: nothing is lost")


def test_a_system_error_keeps_its_own_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(run: str, **options: object) -> None:
        raise OSError(28, "No space left on device", "runs/a/x")

    monkeypatch.setattr(live, "follow_run", full)
    assert main(["watch", "runs/a"]) == 1
    assert "No space left on device: runs/a/x; nothing is lost" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "again"),
    [
        (["adapt"], "the same command continues"),
        (["adapt", "--force"], "the same command without --force continues"),
        (["adapt", "--forc"], "the same command without --force continues"),
        (["tune", "alpha", "--force"], "the same command without --force with --resume continues"),
    ],
)
@pytest.mark.parametrize("error", [OSError(28, "No space left on device", "runs/a/x"), KeyError("a surprise")])
def test_no_failure_sends_anybody_into_removing_what_was_done(
    error: Exception, words: list[str], again: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(options: object) -> None:
        raise error

    monkeypatch.setattr(options, "settings_of", full)
    assert main([*words, "--out", "runs/a"]) == 1
    assert f": {again}" in capsys.readouterr().err


def test_a_broken_pipe_that_is_not_our_output_is_no_success(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(run: str, **options: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(live, "follow_run", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["watch", "runs/a"]) == 1
    assert "Broken pipe" in capfd.readouterr().err


def test_work_goes_on_when_nobody_reads_its_progress_any_more() -> None:
    read, write = os.pipe()
    os.close(read)
    stream = os.fdopen(write, "w")
    progress = Progress(stream)
    progress.stage("refine", 2)
    for done in (1, 2):
        progress.step(done)
    progress.say("done")
    progress.close()
    with contextlib.suppress(BrokenPipeError):
        stream.close()


def test_a_command_whose_output_nobody_reads_to_the_end_has_succeeded() -> None:
    shown = f"{sys.executable} -m ray_adaplr settings | head -1; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", shown], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_stop_that_python_drops_comes_again() -> None:
    program = """
import os, signal, sys, time
from ray_adaplr.cli.main import main
from ray_adaplr.report import live

class Cleared:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

def deaf(run, **options):
    Cleared()
    time.sleep(600)

live.follow_run = deaf
sys.exit(main(["watch", "runs/a"]))
"""  # which keeps nothing, so that there is nothing to continue
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 130
    assert "Traceback" not in ended.stderr
    assert ended.stderr == "\nstopped\n"


def test_help_of_every_command_loads_neither_torch_nor_ray() -> None:
    script = (
        "import sys\nfrom ray_adaplr.cli.main import make_parser\n"
        "for command in make_parser()._subparsers._group_actions[0].choices.values(): command.format_help()\n"
        "assert not {'torch', 'ray', 'pyarrow', 'numpy'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=600)
