"""A folder is the same thing on a disk and in a bucket: whole files by name."""

from pathlib import Path

import pytest
from s3_server import S3Place

from ray_adaplr.errors import InputError
from ray_adaplr.storage.folder import Folder, joined, read_file


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
