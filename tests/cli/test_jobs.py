"""Submitting: what is sent, what is followed, and which exit code comes back; against a job server of a few lines."""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.job_submission import JobStatus

from ray_adaplr.cli import jobs
from ray_adaplr.cli.main import make_parser
from ray_adaplr.engine import auth
from ray_adaplr.engine.auth import token_place, with_token
from ray_adaplr.errors import InputError, RunFailed


class Server:
    """Keeps jobs as Ray's job server does; `log` is what each prints, `ends` how each ends."""

    def __init__(self, log: str = "", ends: str = "SUCCEEDED", code: int | None = 0) -> None:
        self.jobs: dict[str, Any] = {}
        self.log, self.ends, self.code = log, ends, code

    def get_address(self) -> str:
        return "http://head:8265"

    def list_jobs(self) -> list[Any]:
        return list(self.jobs.values())

    def submit_job(self, *, submission_id: str | None, **job: Any) -> str:
        name = submission_id or "raysubmit_1"
        if name in self.jobs:
            raise RuntimeError(f"Job with submission_id {name} already exists")
        self.jobs[name] = SimpleNamespace(
            submission_id=name, status=JobStatus.RUNNING, message=None, start_time=1, driver_exit_code=None, **job
        )
        return name

    def get_job_info(self, name: str) -> Any:
        if name not in self.jobs:
            raise RuntimeError("Request failed with status code 404")
        return self.jobs[name]

    def stop_job(self, name: str) -> None:
        self.jobs[name].status = JobStatus.STOPPED

    def get_job_logs(self, name: str) -> str:
        """Half of the log, then all of it, and the job is over."""
        half = self.jobs[name].message is None
        self.jobs[name].message = "half is out"
        if half:
            return self.log[: len(self.log) // 2]
        if not self.jobs[name].status.is_terminal():
            self.jobs[name].status, self.jobs[name].driver_exit_code = JobStatus(self.ends), self.code
        return self.log


def test_relative_paths_that_exist_here_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "mine.toml").touch()
    command = ["adapt", "--target", "photos", "--config=mine.toml", "--source", "s3://b/model", "--out", "runs/1"]
    here = str(tmp_path)
    expected = f"adapt --target {here}/photos --config={here}/mine.toml --source s3://b/model --out {here}/runs/1"
    assert jobs.absolute_paths(command) == (expected.split(), f"{here}/runs/1")
    for name in ("shares.txt", "off"):
        (tmp_path / name).touch()
    said = ["adapt", "--set", "prior=shares.txt", "--set=prior=shares.txt", "--set", "prior=off"]
    expected = f"adapt --set prior={here}/shares.txt --set=prior={here}/shares.txt --set prior=off"
    assert jobs.absolute_paths(said)[0] == expected.split()


def test_weights_guests_and_folders_of_other_tools_become_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("w.pt", "processor.json", "saved", "run", "year=2026"):
        (tmp_path / name).touch()
    for line, expected in {
        "adapt --source resnet50=w.pt": "adapt --source resnet50={}/w.pt",
        "adapt --guest=timm/vit=w.pt --out a=b": "adapt --guest=timm/vit={}/w.pt --out {}/a=b",
        "prepare year=2026": "prepare {}/year=2026",
        "adapt --guest-images saved": "adapt --guest-images {}/saved",
        "adapt --guest w.pt --normalize processor.json": "adapt --guest {}/w.pt --normalize {}/processor.json",
        "prepare hf:saved:test": "prepare hf:{}/saved:test",
        "adapt --source hf:saved": "adapt --source hf:{}/saved",
        "pretrain --start w.pt": "pretrain --start {}/w.pt",
        "export run": "export {}/run",
        "prepare --size 32 saved --out saved": "prepare --size 32 {}/saved --out {}/saved",
        "prepare --domain=run --on-ray saved": "prepare --domain=run --on-ray {}/saved",
        "serve --ensemble run": "serve --ensemble {}/run",
        "watch --once run": "watch --once {}/run",
        "adapt --source hf:someone/model --set epochs=3": "adapt --source hf:someone/model --set epochs=3",
    }.items():
        assert jobs.absolute_paths(line.split())[0] == expected.replace("{}", str(tmp_path)).split()


def test_a_name_is_no_path_even_if_a_folder_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mnist", "resnet50", "digit5", "1"):
        (tmp_path / name).mkdir()
    for line in ("demo --source mnist", "pretrain --model resnet50", "paper digit5", "prepare --size 1"):
        assert jobs.absolute_paths(line.split()) == (line.split(), None)
    assert jobs.absolute_paths(["report", "1"])[0] == ["report", f"{tmp_path}/1"]
    assert jobs.absolute_paths(["predict", "--model", "1"])[0] == ["predict", "--model", f"{tmp_path}/1"]
    (tmp_path / "mine.py").touch()
    assert jobs.absolute_paths(["tune", "mine.py"])[0] == ["tune", f"{tmp_path}/mine.py"]
    assert jobs.absolute_paths(["adapt", "--out", "s3://b/runs/1"])[1] == "s3://b/runs/1"


@pytest.mark.parametrize("command", ["prepare", "report", "watch", "export", "serve"])
def test_every_option_without_a_value_is_known_where_a_path_may_follow_it(command: str) -> None:
    [commands] = (action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction))
    options = [action for action in commands.choices[command]._actions if action.nargs == 0]
    assert {action.option_strings[-1] for action in options} <= {*jobs.FLAGS, "--help"}


def test_with_a_working_folder_only_the_run_folder_stays_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").touch()
    sent, _ = jobs.absolute_paths(["adapt", "--config", "mine.toml", "--out", "runs/1"], only_out=True)
    assert sent == ["adapt", "--config", "mine.toml", "--out", f"{tmp_path}/runs/1"]


def test_the_package_travels_whole_and_finds_its_search_spaces_where_it_lands(tmp_path: Path) -> None:
    landed = [tmp_path / Path(package).name[:3] for package in jobs.packages()]  # Ray unpacks each into its own folder
    for package, folder in zip(jobs.packages(), landed):
        shutil.copytree(package, folder / Path(package).name)
    script = "from ray_adaplr.sweep.space import SPACES, load_space; load_space('joint', 10); print(SPACES)"
    paths = os.pathsep.join(map(str, landed))
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, "-c", script]
    ran = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(landed[1] / "tune_spaces")


def test_the_entrypoint_finds_a_python_with_ray_and_keeps_odd_arguments(tmp_path: Path) -> None:
    line = jobs.entrypoint(["demo", "--out", "a b'c", "--set", "x=$HOME"])
    assert line.startswith(f"for p in {shlex.quote(sys.executable)} python python3;")
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\n[ "$1" = -c ] || printf "%s|" "$@"\n')
    fake.chmod(0o755)
    ran = subprocess.run(line.replace(sys.executable, str(fake)), shell=True, capture_output=True, text=True)
    assert ran.stdout == "-m|ray_adaplr|demo|--out|a b'c|--set|x=$HOME|"
    nothing = subprocess.run(
        line.replace(sys.executable, "nope"),
        shell=True,
        capture_output=True,
        text=True,
        env={"PATH": str(tmp_path / "x")},
    )
    assert (nothing.returncode, nothing.stdout) == (127, "no Python has Ray\n")


def test_the_same_command_again_joins_the_live_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server, command = Server(), ["demo", "--out", str(tmp_path / "run")]
    first = jobs.submit(server, command)
    assert jobs.submit(server, command) == first
    assert "does this already" in capsys.readouterr().out
    assert len(server.jobs) == 1


def test_the_same_command_after_the_end_is_a_new_job_that_resumes(tmp_path: Path) -> None:
    server, command = Server(), ["demo", "--out", str(tmp_path / "run")]
    first = jobs.submit(server, command)
    server.stop_job(first)
    second = jobs.submit(server, command)
    assert (first[-2:], second[-2:]) == ("-1", "-2")
    assert server.jobs[second].metadata == {jobs.COMMAND: shlex.join(command)}


def test_a_command_with_keys_in_a_uri_is_not_sent_and_they_are_not_shown() -> None:
    server = Server()
    with pytest.raises(InputError, match=r"s3://\*\*\*@bucket/run.*AWS_SECRET_ACCESS_KEY") as refusal:
        jobs.submit(server, ["demo", "--out", "s3://KEY:SECRET@bucket/run?secret_key=HUSH"])
    assert not any(word in str(refusal.value) for word in ("KEY:", ":SECRET", "HUSH"))
    assert not server.jobs


def test_another_command_in_the_folder_of_a_live_job_is_refused(tmp_path: Path) -> None:
    server, out = Server(), str(tmp_path / "run")
    first = jobs.submit(server, ["demo", "--out", out])
    with pytest.raises(InputError, match=f"another command.*--stop {first}"):
        jobs.submit(server, ["demo", "--out", out, "--seed", "3"])


def test_two_submits_at_the_same_moment_end_in_one_job(tmp_path: Path) -> None:
    server, command = Server(), ["demo", "--out", str(tmp_path / "run")]
    first = jobs.submit(server, command)
    listed, answers = server.list_jobs, [[]]
    server.list_jobs = lambda: answers.pop() if answers else listed()  # type: ignore[method-assign]
    assert jobs.submit(server, command) == first


@pytest.mark.parametrize(
    ("ends", "code", "expected"),
    [("SUCCEEDED", 0, 0), ("FAILED", 2, 2), ("FAILED", -9, 137), ("STOPPED", None, 130), ("FAILED", None, 1)],
)
def test_the_log_is_shown_once_and_the_exit_code_is_the_commands(
    ends: str, code: int, expected: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    server = Server("one\ntwo\n", ends, code)
    assert jobs.follow(server, jobs.submit(server, ["doctor"])) == expected
    assert capsys.readouterr().out == "job raysubmit_1: ray-adaplr doctor\none\ntwo\n"


@pytest.mark.parametrize(("answer", "status"), [("s", "STOPPED"), ("", "RUNNING")])
def test_ctrl_c_asks_whether_to_stop_or_to_detach(
    answer: str, status: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server()

    def interrupted(name: str) -> str:
        raise KeyboardInterrupt

    server.get_job_logs = interrupted  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("builtins.input", lambda text: answer)
    job = jobs.submit(server, ["doctor"])
    assert jobs.follow(server, job) == 130
    assert server.jobs[job].status == status
    out = capsys.readouterr().out
    assert ("continues" in out) == (status == "RUNNING")


@pytest.mark.parametrize("asked", ["get_job_info", "get_job_logs"])
@pytest.mark.parametrize("error", [ConnectionError("refused"), RuntimeError("Request failed with status code 500: ?")])
def test_a_lost_cluster_is_told_with_the_way_back(asked: str, error: Exception) -> None:
    server = Server()
    job = jobs.submit(server, ["doctor"])

    def gone(name: str) -> None:
        raise error

    setattr(server, asked, gone)
    with pytest.raises(RunFailed, match=f"--address http://head:8265 --follow {job}"):
        jobs.follow(server, job)


def test_an_unknown_job_is_told() -> None:
    with pytest.raises(InputError, match="no job 'nono'"):
        jobs.stop(Server(), "nono")


def test_the_list_shows_what_was_submitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server()
    jobs.show_jobs(server)
    assert capsys.readouterr().out == "no jobs\n"
    job = jobs.submit(server, ["demo", "--out", str(tmp_path / "run")])
    capsys.readouterr()
    jobs.show_jobs(server)
    assert capsys.readouterr().out.split()[:2] == [job, "running"]


def test_a_token_is_found_where_ray_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    assert token_place() is None
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("t")
    assert token_place() == str(tmp_path / ".ray" / "auth_token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "t")
    assert token_place() == "RAY_AUTH_TOKEN"


@pytest.mark.parametrize(
    ("token", "mode", "sentence"),
    [
        ("", "token", "wants a token and there is none"),
        ("t", "token", "refused the token in RAY_AUTH_TOKEN"),
        ("t", "disabled", "RAY_AUTH_MODE=disabled; unset it"),
    ],
)
def test_a_refusal_says_what_is_missing(
    token: str, mode: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.exceptions import AuthenticationError

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    monkeypatch.setenv("RAY_AUTH_MODE", mode)

    def refused() -> None:
        raise AuthenticationError("401")

    with pytest.raises(InputError, match=sentence):
        with_token(refused, "http://head:8265")


def test_a_token_that_nobody_asked_for_is_named_at_once_and_where_workers_are_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(auth, "_turned_on", [])
    assert auth.if_no_token_is_taken() == ""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "t")
    monkeypatch.setenv("RAY_AUTH_MODE", "")  # noted, so that it is put back
    monkeypatch.delenv("RAY_AUTH_MODE")
    monkeypatch.setattr("ray._raylet.Config", SimpleNamespace(initialize=lambda _: None))
    assert with_token(lambda: os.environ["RAY_AUTH_MODE"], "head:6379") == "token"
    assert "the token in RAY_AUTH_TOKEN is used for the cluster at head:6379; one without token auth" in caplog.text
    assert "RAY_AUTH_MODE=disabled: RAY_AUTH_TOKEN is used" in auth.if_no_token_is_taken()
