"""A store behind a URI is copied to this machine once, whole, and checked."""

import os
import subprocess
import sys

import numpy as np
import pytest

from ray_adaplr.data.store import ImageStore
from ray_adaplr.data.store_writer import write_store
from ray_adaplr.errors import InputError


@pytest.fixture
def remote(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPLR_CACHE", str(tmp_path / "cache"))
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    ids = [str(i) for i in range(40)]
    write_store(tmp_path / "far", [(ids, images)], classes=[], domain="d", shard_bytes=2000)
    return tmp_path / "far"


def entries(tmp_path):
    return [path for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock" and path.name != "verified"]


def test_a_uri_is_cached_and_reads_like_the_store_itself(tmp_path, remote):
    near = ImageStore.open(str(remote))
    far = ImageStore.open(remote.as_uri())
    np.testing.assert_array_equal(far.read(np.arange(40)), near.read(np.arange(40)))
    assert far.fingerprint == near.fingerprint
    assert far.paths == [remote.as_uri()]
    for shard in remote.glob("*.arrow"):
        shard.unlink()
    assert len(ImageStore.open(remote.as_uri()).read(np.arange(40))) == 40
    assert len(entries(tmp_path)) == 1


def test_many_processes_at_once_fill_the_cache_once(tmp_path, remote):
    code = """
import os, sys
import pyarrow.fs as pafs
copy = pafs.copy_files
def counted(source, *args, **kwargs):
    os.write(1, f"copied {source}\\n".encode())  # at once: threads would print into each other's lines
    copy(source, *args, **kwargs)
pafs.copy_files = counted
from ray_adaplr.data.store import ImageStore
print("sum", int(ImageStore.open(sys.argv[1]).read(range(40)).sum()), flush=True)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, remote.as_uri()]
    runs = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(5)]
    lines = [line for run in runs for line in run.communicate()[0].splitlines()]
    assert [run.returncode for run in runs] == [0] * 5
    assert sum(line.startswith("copied") for line in lines) == len(list(remote.glob("*.arrow")))
    assert len([line for line in lines if line.startswith("sum")]) == 5
    assert len({line for line in lines if line.startswith("sum")}) == 1
    assert len(entries(tmp_path)) == 1


def test_what_a_killed_copy_left_is_not_taken_for_a_store(tmp_path, remote):
    ImageStore.open(remote.as_uri())
    (entry,) = entries(tmp_path)
    entry.rename(entry.with_suffix(".tmp"))
    next(entry.with_suffix(".tmp").glob("*.arrow")).unlink()
    assert len(ImageStore.open(remote.as_uri()).read(np.arange(40))) == 40


def test_a_copy_that_differs_from_its_checksum_is_refused(tmp_path, remote):
    shard = remote / "images-00001.arrow"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 255
    shard.write_bytes(content)
    with pytest.raises(InputError, match="checksum"):
        ImageStore.open(remote.as_uri())
    assert not [entry for entry in entries(tmp_path) if entry.suffix != ".tmp"]


@pytest.mark.parametrize("uri", ["file:///nowhere/at/all", "gopher://hole/x"])
def test_an_address_without_a_store_is_told(uri, remote):
    with pytest.raises(InputError, match="check address"):
        ImageStore.open(uri)


def test_stores_from_both_sides_make_one_union(tmp_path, remote):
    write_store(tmp_path / "near", [(["x"], np.zeros((1, 8, 8, 3), np.uint8))], classes=[], domain="e")
    assert len(ImageStore.open(remote.as_uri(), str(tmp_path / "near"))) == 41
