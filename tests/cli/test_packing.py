"""What travels with a job, and what never leaves this machine."""

import os
import zipfile
from pathlib import Path

import pytest

from ray_adaplr.cli import packing
from ray_adaplr.errors import InputError


def shipped(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    file = tmp_path_factory.mktemp("sent") / "sent.zip"
    return sorted(zipfile.ZipFile(packing.pack(str(folder), str(file))).namelist())


def fill(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


def test_data_runs_git_and_venv_stay_here(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    fill(tmp_path, "data/a.py", "runs/a.py", ".git/a", ".venv/a", "spaces/mine.py", "mine.toml")
    assert shipped(tmp_path, tmp_path_factory) == ["mine.toml", "spaces/mine.py"]


def test_files_that_hold_keys_stay_here(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    fill(tmp_path, "main.py", ".env", ".env.local", "prod.env", "sub/.aws/credentials", ".ssh/id_rsa", "id_ed25519")
    fill(tmp_path, "tls/server.KEY", "tls/ca.pem", ".netrc", "gcp-service-account.json", "a/credentials.json")
    fill(tmp_path, "me_accessKeys.csv", "rootkey.csv", "app-firebase-adminsdk-x1.json", "gcp-key.json", ".bash_history")
    fill(tmp_path, ".huggingface/token", ".s3cfg", ".boto", "client_secret_1.json", "x.tfstate", ".cache/hub/token")
    fill(
        tmp_path,
        "password.txt",
        "db_passwords.csv",
        "secret.json",
        "secrets.yaml",
        "id_rsa",
        "credentials",
        "kaggle.json",
    )
    fill(
        tmp_path,
        "openai-api-key.txt",
        "hf_token",
        "a/token.txt",
        "prod.tfvars",
        ".envrc",
        "auth_token",
        "k8s-secret.yaml",
    )
    assert shipped(tmp_path, tmp_path_factory) == ["main.py"]


def test_programs_and_lists_of_words_travel_whatever_they_are_about(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["find_secrets.py", "reset_password.ipynb", "tokenizer.json", "tokens.txt", "environment.yml", "keys.toml"]
    fill(tmp_path, *names)
    assert shipped(tmp_path, tmp_path_factory) == sorted(names)
    assert capsys.readouterr().out == ""


def test_what_is_kept_back_for_its_name_is_said(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path, "main.py", "sub/password.txt")
    shipped(tmp_path, tmp_path_factory)
    assert "not sent, because their names say that they hold keys: sub/password.txt\n" in capsys.readouterr().out


def test_ignore_lists_are_honoured_as_git_does(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    fill(
        tmp_path,
        "a.log",
        "keep.log",
        "build/x.py",
        "deep/build/x.py",
        "top.txt",
        "deep/top.txt",
        "deep/own.tmp",
        "z.py",
    )
    (tmp_path / ".gitignore").write_text("# logs\n*.log\n!keep.log\nbuild/\n/top.txt\n.gitignore\n.rayignore\n")
    (tmp_path / "deep/.rayignore").write_text("*.tmp\n")
    assert shipped(tmp_path, tmp_path_factory) == ["deep/top.txt", "keep.log", "z.py"]


def test_ignore_lists_above_count_within_a_repository_and_no_further(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    fill(tmp_path, "repo/jobs/a.py", "repo/jobs/mine.local", "repo/jobs/site/b.toml", "repo/jobs/other.txt")
    (tmp_path / ".gitignore").write_text("*.txt\n")
    (tmp_path / "repo/.gitignore").write_text("\ufeff*.local\njobs/**/b.toml\njobs/**/a.py\n", encoding="utf-8")
    kept = ["mine.local", "other.txt", "site/b.toml"]
    assert shipped(tmp_path / "repo/jobs", tmp_path_factory) == ["a.py", *kept], "it is no repository"
    (tmp_path / "repo/.git").mkdir()
    assert shipped(tmp_path / "repo/jobs", tmp_path_factory) == ["other.txt"]


def test_a_file_from_before_1980_travels(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    fill(tmp_path, "main.py")
    os.utime(tmp_path / "main.py", (0, 0))
    assert shipped(tmp_path, tmp_path_factory) == ["main.py"]


def test_links_that_lead_out_are_not_followed(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    inside, outside = tmp_path / "project", tmp_path / "private"
    fill(inside, "a.py")
    fill(outside, "secret.txt", "folder/b.txt")
    (inside / "secret.txt").symlink_to(outside / "secret.txt")
    (inside / "folder").symlink_to(outside / "folder")
    (inside / "same.py").symlink_to(inside / "a.py")
    fill(inside, "password.txt")
    (inside / "notes.txt").symlink_to(inside / "password.txt")
    os.mkfifo(inside / "pipe")
    assert shipped(inside, tmp_path_factory) == ["a.py", "same.py"]


def test_links_into_folders_that_stay_here_are_not_followed(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    fill(tmp_path, "main.py", ".aws/config", "sub/.git/config", "data/a.csv")
    for name, real in (("cloud.ini", ".aws/config"), ("origin.ini", "sub/.git/config"), ("a.csv", "data/a.csv")):
        (tmp_path / name).symlink_to(tmp_path / real)
    assert shipped(tmp_path, tmp_path_factory) == ["main.py"]


def test_the_size_is_checked_before_anything_is_zipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LIMIT", 10_000)
    (tmp_path / "big.bin").write_bytes(bytes(20_000))  # small when zipped
    with pytest.raises(InputError, match="Ray takes at most"):
        packing.pack(str(tmp_path), str(tmp_path / "sent.zip"))
    assert not (tmp_path / "sent.zip").exists()
    with pytest.raises(InputError, match="not a folder"):
        packing.pack(str(tmp_path / "nowhere"), str(tmp_path / "sent.zip"))
