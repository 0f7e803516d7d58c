"""A folder is the same thing on a disk and in a bucket: whole files by name."""

import os
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs
from s3_server import S3Place

from ray_adaplr.errors import InputError
from ray_adaplr.integrations.export import _check_out
from ray_adaplr.integrations.formats import FORMATS
from ray_adaplr.storage import folder as folders
from ray_adaplr.storage.folder import Folder, joined, read_file
from ray_adaplr.storage.ownership import check_ours, own_file
from ray_adaplr.storage.run_reader import read_run


@pytest.fixture(params=["local", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return Folder(tmp_path / "run" if request.param == "local" else request.getfixturevalue("s3").uri())


def test_files_are_written_listed_read_copied_and_deleted(folder: Folder) -> None:
    assert folder.names() == []
    folder.write("a.txt", "one")
    folder.write_json("deep/er/b.json", {"two": 2})
    assert folder.names() == ["a.txt"]
    assert (folder / "deep").exists("er/b.json")
    assert folder.read_json("deep/er/b.json") == {"two": 2}
    folder.copy("deep", folder / "copy")
    assert (folder / "copy").read_json("deep/er/b.json") == {"two": 2}
    folder.write("a.txt", "three")
    assert folder.read("a.txt") == b"three"
    folder.delete("deep")
    folder.delete("a.txt")
    folder.delete("never there")
    assert not folder.exists("deep/er/b.json")
    assert folder.names() == []
    with pytest.raises(FileNotFoundError):
        folder.read("a.txt")


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_others_may_read_a_file_as_the_users_umask_says(mask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        Folder(tmp_path).write("a.txt", "one")
        Folder(tmp_path).write("a.txt", "two")
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == mode


@pytest.mark.parametrize(
    ("place", "below"),
    [
        ("runs/1/", "runs/1/best.toml"),
        ("what?/1", "what?/1/best.toml"),
        ("s3://b/x", "s3://b/x/best.toml"),
        ("s3://b/x/?region=eu&scheme=http", "s3://b/x/best.toml?region=eu&scheme=http"),
    ],
)
def test_a_name_goes_before_the_options_of_a_uri(place: str, below: str) -> None:
    assert joined(place, "best.toml") == below


def test_a_single_file_is_read_from_where_it_was_written(folder: Folder) -> None:
    folder.write("a.txt", "one")
    assert read_file(joined(folder.uri, "a.txt"), "list") == b"one"
    with pytest.raises(InputError, match=r"there is no list .*nothing"):
        read_file(joined(folder.uri, "nothing.txt"), "list")


def test_requests_are_counted(s3: S3Place) -> None:
    Folder(s3.uri()).write("a.txt", "one")
    assert s3.requests["PUT"] >= 1


class BusyAtFirst:
    """A disk that is taken for a bucket: the first call after `refuse` was set fails, as a busy bucket's does."""

    type_name = "s3"

    def __init__(self) -> None:
        self.refuse, self.refused, self.disk = False, 0, fs.LocalFileSystem()

    def get_file_info(self, what: Any) -> Any:
        if self.refuse:
            self.refuse, self.refused = False, self.refused + 1
            raise OSError("AWS Error SLOW_DOWN during HeadObject operation: Please reduce your request rate.")
        return self.disk.get_file_info(what)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.disk, name)


def test_whoever_asks_for_files_asks_a_busy_bucket_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket, waits = BusyAtFirst(), []
    monkeypatch.setattr(folders, "_open", lambda uri: (bucket, uri.removeprefix("s3:/")))
    monkeypatch.setattr(folders.time, "sleep", waits.append)
    place = f"s3:/{tmp_path}"
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "new").mkdir()
    new = Folder(joined(place, "new"))
    asked = (
        lambda: Folder(place).info("a.txt"),
        lambda: Folder(place).infos(),
        lambda: Folder(place).exists("a.txt"),
        lambda: check_ours(new, "run"),
        lambda: own_file(joined(place, "b.txt"), b"", b""),
        lambda: read_run(joined(place, "new")),
        lambda: _check_out(joined(place, "new"), FORMATS["hf"]),
    )
    for number, ask in enumerate(asked, 1):
        bucket.refuse = True
        ask()
        assert (bucket.refused, len(waits)) == (number, number)
    assert Folder(place).info("a.txt").size == 3
    assert Folder(place).info("never there").type == fs.FileType.NotFound
