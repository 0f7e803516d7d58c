"""Digests tell whether two states of the code give the same bits."""

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks import bits
from ray_adaplr.stages.adapt import Result


def copied_run(straight_run: Result, source_folder: Path, out: Path) -> Path:
    shutil.copytree(straight_run.path, out)
    shutil.copytree(source_folder, out / "source")
    return out


def test_a_digest_changes_with_what_it_stands_for_and_with_nothing_else(
    straight_run: Result, source_folder: Path, tmp_path: Path
) -> None:
    run = copied_run(straight_run, source_folder, tmp_path / "run")
    before = bits.digests(run)
    (run / "metrics.jsonl").write_text("")
    assert bits.digests(run) == before
    weights = run / "target_model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    after = bits.digests(run)
    assert {name for name in before if before[name] != after[name]} == {"target"}


def test_another_commit_is_checked_out_beside_and_removed_again(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", *identity, *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    for text in ("old", "new"):
        (tmp_path / "file").write_text(text)
        git("add", "file")
        git("commit", "-qm", text)
    with bits.checked_out("HEAD~1", tmp_path) as place:
        assert (place / "file").read_text() == "old"
        assert (tmp_path / "file").read_text() == "new"
    assert not place.exists()
    assert len(git("worktree", "list").splitlines()) == 1
    with pytest.raises(SystemExit, match="no-such-commit"), bits.checked_out("no-such-commit", tmp_path):
        pass


@pytest.mark.parametrize(("other", "code"), [("same", 0), ("changed", 1)])
def test_the_exit_code_tells_whether_the_bits_are_the_same(
    other: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {bits.ROOT: {"labels": "same", "target": "t"}}
    monkeypatch.setattr(bits, "digests_of", lambda place: found.get(place, {"labels": other, "target": "t"}))
    assert bits.main(["--against", "HEAD"]) == code
    assert ("DIFFERENT: labels\n" in capsys.readouterr().out) == bool(code)
