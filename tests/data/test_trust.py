"""A store that was damaged, or made with intent, is refused in one sentence: it never crashes, and never trains."""

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ray_adaplr.cli import doctor
from ray_adaplr.data.store import ImageStore
from ray_adaplr.data.store_writer import write_store
from ray_adaplr.engine.survey import look
from ray_adaplr.errors import InputError

IMAGES = np.random.default_rng(0).integers(0, 256, (20, 6, 6, 3), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPLR_CACHE", str(tmp_path / "cache"))
    ids = [f"{i}.png" for i in range(20)]
    truth = np.arange(20) % 2
    write_store(tmp_path / "s", [(ids, IMAGES)], classes=["cat", "dog"], domain="d", truth=truth, shard_bytes=1000)
    return tmp_path / "s"


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 255
    path.write_bytes(content)


def sign_again(folder: Path) -> None:
    """Sizes and checksums in the manifest as an attacker would write them."""
    manifest = json.loads((folder / "store.json").read_text())
    for record in [*manifest["shards"], manifest["truth"]]:
        content = (folder / record["file"]).read_bytes()
        record["bytes"], record["crc32"] = len(content), f"{zlib.crc32(content):08x}"
    (folder / "store.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("shard", [0, 2])
def test_a_flipped_byte_in_any_shard_is_noticed_on_open(folder, shard):
    path = folder / f"images-0000{shard}.arrow"
    flip(path, path.stat().st_size // 2)
    with pytest.raises(InputError, match=rf"images-0000{shard}\.arrow differs from its checksum"):
        ImageStore.open(str(folder))


def test_the_doctor_names_a_node_on_which_a_byte_of_the_store_is_flipped(folder):
    good = doctor.Node("a", **look("a", None, str(folder)))
    assert doctor.check_store(str(folder), [good]).state == "ok"
    path = folder / "images-00001.arrow"
    flip(path, path.stat().st_size // 2)
    bad = doctor.Node("b", **look("b", None, str(folder)))
    line = doctor.check_store(str(folder), [good, bad])
    assert line.state == "fail"
    assert f"{folder} on b: " in line.text
    assert "images-00001.arrow differs from its checksum" in line.text


def test_a_flipped_byte_in_the_truth_is_noticed_when_it_is_asked_for(folder):
    flip(folder / "truth.arrow", (folder / "truth.arrow").stat().st_size // 2)
    store = ImageStore.open(str(folder))
    with pytest.raises(InputError, match="differs from its checksum"):
        store.ground_truth()
    with pytest.raises(InputError, match="differs from its checksum"):
        store.verify()


def test_a_store_is_read_once_and_then_only_when_a_file_has_changed(folder, monkeypatch):
    read = []
    monkeypatch.setattr("ray_adaplr.data.manifest.crc32_of_file", lambda path: read.append(path.name) or "no such sum")
    ImageStore.open(str(folder))  # the writer noted it
    assert read == []
    os.utime(folder / "images-00001.arrow")
    with pytest.raises(InputError, match=r"images-00001\.arrow"):
        ImageStore.open(str(folder))
    assert read == ["images-00001.arrow"]


def test_verify_reads_also_what_was_found_good_before(folder):
    path = folder / "images-00000.arrow"
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    with path.open("r+b") as file:  # in place, with the old time: as a failing disk does it
        file.write(content)
    os.utime(path, ns=times)
    store = ImageStore.open(str(folder))
    with pytest.raises(InputError, match="differs from its checksum"):
        store.verify()


def test_a_cache_that_cannot_be_written_only_costs_time(folder, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ADAPLR_CACHE", str(tmp_path / "file"))
    assert len(ImageStore.open(str(folder))) == 20


RECORD = {"file": "images-00000.arrow", "bytes": 900, "crc32": "00000000", "count": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"height": 0},
        {"height": -6},
        {"width": 10**9},
        {"width": 6.5},
        {"channels": 2},
        {"channels": "3"},
        {"count": -20},
        {"count": 10**30},
        {"count": 0, "shards": []},
        {"shards": None},
        {"shards": [7]},
        {"shards": [{**RECORD, "count": 10**9}], "count": 10**9},
        {"shards": [{**RECORD, "file": "/etc/passwd"}]},
        {"shards": [{**RECORD, "file": "../x.arrow"}]},
        {"shards": [{**RECORD, "file": ".."}]},
        {"shards": [{**RECORD, "file": "a/b.arrow"}]},
        {"shards": [{**RECORD, "file": "a\0b"}]},
        {"shards": [{**RECORD, "file": 3}]},
        {"shards": [{**RECORD, "bytes": -1}]},
        {"shards": [{**RECORD, "crc32": 5}]},
        {"shards": [RECORD, RECORD], "count": 2},
        {"truth": {"file": "images-00000.arrow", "bytes": 900, "crc32": "00000000"}},
        {"truth": []},
        {"classes": ["cat", "cat"]},
        {"classes": ["cat", "a\0b"]},
        {"classes": "cat"},
        {"classes": [1, 2]},
        {"domain": None},
        {"recipe": 5},
    ],
    ids=lambda change: json.dumps(change)[:60],
)
def test_a_manifest_with_impossible_content_is_refused(folder, change):
    path = folder / "store.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=r"store\.json|images-00000\.arrow") as caught:
        ImageStore.open(str(folder)).ground_truth()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", "3", "{", "[" * 100_000, '{"format": []}', "\ufeff{}", "\udcff", "1" * 5000]
)
def test_a_manifest_that_is_no_manifest_is_refused(folder, text):
    (folder / "store.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=r"store\.json is"):
        ImageStore.open(str(folder))


def bad_shard(name: str) -> bytes:
    """A shard of nine images, of which one thing is not as it should be."""
    pixels = pa.py_buffer(IMAGES[:9].tobytes())
    offsets = np.arange(10, dtype=np.int32)
    ids = pa.StringArray.from_buffers(9, pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"abcdefghi"))
    images = pa.FixedSizeBinaryArray.from_buffers(pa.binary(108), 9, [None, pixels])
    columns = {"id": ids, "image": images}
    if name == "empty cells":
        columns["id"] = pa.array([None] * 9, pa.string())
    elif name == "too few rows":
        columns = {"id": ids[:3], "image": images[:3]}
    elif name == "columns in another order":
        columns = {"image": images, "id": ids}
    elif name == "images of another size":
        columns["image"] = pa.array([b"x" * 200] * 9, pa.binary(200))
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content = sink.getvalue().to_pybytes()
    good = offsets.tobytes()
    assert content.count(good) == 1 or "id" not in name
    if name == "ids out of the file":
        content = content.replace(good, np.array([0, *[2**30] * 9], np.int32).tobytes())
    elif name == "ids that go back":
        content = content.replace(good, np.array([0, 5, 3, -7, 8, 9, 9, 9, 9, 9], np.int32).tobytes())
    elif name == "ids that are no text":
        content = content.replace(b"abcdefghi", b"\xff\xfe" * 4 + b"i")
    elif name == "images shorter than claimed":
        length = (972).to_bytes(8, "little")  # of the image buffer, in the metadata of the batch
        assert content.count(length) >= 1
        content = content.replace(length, (500).to_bytes(8, "little"))
    return content


@pytest.mark.parametrize(
    "name",
    [
        "ids out of the file",
        "ids that go back",
        "ids that are no text",
        "images shorter than claimed",
        "images of another size",
        "empty cells",
        "too few rows",
        "columns in another order",
    ],
)
def test_a_shard_made_with_intent_is_refused_before_it_is_used(folder, name):
    shard = folder / "images-00000.arrow"
    shard.write_bytes(bad_shard("nothing"))
    sign_again(folder)
    assert len(ImageStore.open(str(folder)).ids.to_pylist()) == 20, "the shard is good but for what is changed"
    shard.write_bytes(bad_shard(name))
    sign_again(folder)
    with pytest.raises(InputError, match=r"images-00000\.arrow|store\.json") as caught:
        ImageStore.open(str(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("labels", [[2**62] * 20, [-1] * 20, [7] * 20, [0] * 3])
def test_a_truth_that_names_no_classes_is_refused(folder, labels):
    batch = pa.record_batch([pa.array(labels, pa.int64())], names=["label"])
    with pa.ipc.new_file(str(folder / "truth.arrow"), batch.schema) as writer:
        writer.write_batch(batch)
    sign_again(folder)
    with pytest.raises(InputError, match=r"truth\.arrow"):
        ImageStore.open(str(folder)).ground_truth()


def test_no_flip_of_a_signed_shard_ends_the_process(folder, tmp_path):
    """Every byte of the framing is flipped in turn in a process of its own, which must answer each time."""
    code = """
import sys, zlib, json
from pathlib import Path
import numpy as np
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError
sys.path.insert(0, sys.argv[2])
from test_trust import sign_again
folder = Path(sys.argv[1])
shard = folder / "images-00000.arrow"
whole = shard.read_bytes()
places = [*range(0, 700, 3), *range(len(whole) - 500, len(whole), 3)]
for at in places:
    for bit in (1, 128):
        shard.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1:])
        sign_again(folder)
        try:
            store = ImageStore.open(str(folder))
            store.ids.to_pylist(), store.read(np.arange(20))
        except InputError:
            pass
print("alive")
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(folder), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600)
    assert done.stdout.strip() == "alive", f"exit {done.returncode}: {done.stderr[-2000:]}"
