"""The image store: what is written is read back, and damage is told in one sentence."""

import json
import os
import pickle
import resource
import subprocess
import sys

import numpy as np
import pytest

from ray_adaplr.data.store import ImageStore
from ray_adaplr.data.store_writer import write_store
from ray_adaplr.errors import InputError


def pictures(n, size=6, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, size, size, channels), dtype=np.uint8)


def make(path, n=20, domain="photo", classes=("cat", "dog"), seed=0, truth=True, **options):
    images = pictures(n, seed=seed)
    labels = np.arange(n) % len(classes) if truth else None
    batches = (([f"{i}.png" for i in range(a, min(a + 7, n))], images[a : a + 7]) for a in range(0, n, 7))
    return write_store(path, batches, classes=list(classes), domain=domain, truth=labels, **options), images


batches_per_store = pytest.mark.parametrize("shard_bytes", [64 << 20, 5 * 6 * 6 * 3, 1], ids=["one", "four", "each"])


@batches_per_store
def test_images_ids_and_truth_come_back_as_they_were_written(tmp_path, shard_bytes):
    store, images = make(tmp_path / "s", shard_bytes=shard_bytes)
    assert len(store) == 20
    assert store.image_shape == (6, 6, 3)
    assert store.classes == ["cat", "dog"]
    assert store.domains == ["photo"]
    assert store.ids.to_pylist() == [f"{i}.png" for i in range(20)]
    assert store.domain_index.dtype == np.int16
    np.testing.assert_array_equal(store.ground_truth(), np.arange(20) % 2)
    order = np.random.default_rng(1).permutation(20)
    np.testing.assert_array_equal(store.read(order), images[order])
    np.testing.assert_array_equal(store.read(np.array([3, 3, 4])), images[[3, 3, 4]])
    assert store.read(np.array([], np.int64)).shape == (0, 6, 6, 3)


def test_what_read_gives_is_a_copy_that_may_be_written(tmp_path):
    store, images = make(tmp_path / "s")
    store.read(np.array([0, 1]))[:] = 0
    np.testing.assert_array_equal(store.read(np.array([0, 1])), images[:2])


@pytest.mark.parametrize("index", [[-1], [20], [0, 99]])
def test_an_index_outside_the_store_is_an_index_error(tmp_path, index):
    store, _ = make(tmp_path / "s")
    with pytest.raises(IndexError, match="of a store of 20"):
        store.read(np.array(index))


def test_ground_truth_lies_apart_and_nothing_else_opens_it(tmp_path):
    with_truth, _ = make(tmp_path / "a")
    without, _ = make(tmp_path / "b", truth=False)
    assert without.ground_truth() is None
    assert with_truth.fingerprint == without.fingerprint
    truth = tmp_path / "a" / "truth.arrow"
    truth.write_bytes(b"x" * truth.stat().st_size)  # same size, no Arrow file
    store = ImageStore.open(str(tmp_path / "a"))
    store.read(np.arange(20))
    assert len(store.ids) == 20
    with pytest.raises(InputError, match=r"truth\.arrow"):
        store.ground_truth()


def test_a_union_joins_stores_in_order_and_prefixes_ids_with_the_domain(tmp_path):
    _, photos = make(tmp_path / "photo", 5)
    _, sketches = make(tmp_path / "sketch", 8, domain="sketch", seed=1)
    union = ImageStore.open(str(tmp_path / "sketch"), str(tmp_path / "photo"))
    assert union.domains == ["sketch", "photo"]
    assert union.domain_index.tolist() == [0] * 8 + [1] * 5
    assert union.ids.to_pylist()[7:9] == ["sketch/7.png", "photo/0.png"]
    assert len(set(union.ids.to_pylist())) == 13
    np.testing.assert_array_equal(union.read(np.array([12, 0, 8])), [photos[4], sketches[0], photos[0]])
    assert len(union.ground_truth()) == 13
    assert union.fingerprint != ImageStore.open(*reversed(union.paths)).fingerprint


def test_a_union_with_an_unlabelled_store_has_classes_but_no_truth(tmp_path):
    make(tmp_path / "a", 4)
    write_store(tmp_path / "b", [(["x"], pictures(1))], classes=[], domain="wild")
    union = ImageStore.open(str(tmp_path / "b"), str(tmp_path / "a"))
    assert union.classes == ["cat", "dog"]
    assert union.ground_truth() is None


def test_stores_that_do_not_fit_together_are_refused(tmp_path):
    make(tmp_path / "a")
    make(tmp_path / "same")
    make(tmp_path / "classes", domain="b", classes=("cat", "cow"))
    write_store(tmp_path / "size", [(["x"], pictures(1, size=8))], classes=["cat", "dog"], domain="c")
    for other, words in [("same", "domain"), ("classes", "class names"), ("size", r"\(8, 8, 3\)")]:
        with pytest.raises(InputError, match=words):
            ImageStore.open(str(tmp_path / "a"), str(tmp_path / other))


def test_a_truncated_shard_is_told_on_open(tmp_path):
    make(tmp_path / "s")
    shard = tmp_path / "s" / "images-00000.arrow"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"images-00000\.arrow has \d+ bytes where store\.json says \d+"):
        ImageStore.open(str(tmp_path / "s"))
    shard.unlink()
    with pytest.raises(InputError, match="is missing"):
        ImageStore.open(str(tmp_path / "s"))


def test_a_foreign_shard_of_the_same_size_is_told_on_open(tmp_path):
    make(tmp_path / "s")
    shard = tmp_path / "s" / "images-00000.arrow"
    shard.write_bytes(b"\0" * shard.stat().st_size)
    with pytest.raises(InputError, match="differs from its checksum"):
        ImageStore.open(str(tmp_path / "s"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "version 2"),
        ({"format": "a shop"}, "'a shop'"),
        ({"count": 7}, "contradicts itself"),
        ({"colour": "red"}, "damaged"),
        ({"truth": {"file": "../t.arrow", "bytes": 1, "crc32": "0"}}, "outside its own folder"),
    ],
)
def test_a_foreign_manifest_is_told_on_open(tmp_path, change, words):
    make(tmp_path / "s")
    path = tmp_path / "s" / "store.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=words) as caught:
        ImageStore.open(str(tmp_path / "s"))
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_finished_store_is_told(tmp_path):
    make(tmp_path / "s")
    (tmp_path / "s" / "store.json").write_text("[]")
    with pytest.raises(InputError, match="not the manifest"):
        ImageStore.open(str(tmp_path / "s"))
    (tmp_path / "s" / "store.json").unlink()
    with pytest.raises(InputError, match="ray-adaplr prepare"):
        ImageStore.open(str(tmp_path / "s"))
    with pytest.raises(InputError, match="ray-adaplr prepare"):
        ImageStore.open(str(tmp_path / "nowhere"))


def test_a_failed_writer_leaves_no_store(tmp_path):
    def batches():
        yield ["a"], pictures(1)
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        write_store(tmp_path / "s", batches(), classes=[], domain="d", shard_bytes=1)
    assert not (tmp_path / "s" / "store.json").exists()


@pytest.mark.parametrize(
    ("batches", "options", "words"),
    [
        ([(["a", "a"], pictures(2))], {}, "repeated"),
        ([(["a"], pictures(1).astype(float))], {}, "uint8"),
        ([(["a"], pictures(1)), (["b"], pictures(1, size=9))], {}, "the first were"),
        ([(["a"], pictures(1))], {"truth": np.array([0, 1])}, "one label for each"),
        ([(["a"], pictures(1))], {"truth": np.array([2]), "classes": ["x", "y"]}, "2 classes"),
        ([], {}, "at least one"),
    ],
)
def test_wrong_input_of_the_writer_is_told(tmp_path, batches, options, words):
    with pytest.raises(InputError, match=words):
        write_store(tmp_path / "s", batches, **{"classes": [], "domain": "d", **options})


def test_a_finished_store_is_not_written_over(tmp_path):
    make(tmp_path / "s")
    with pytest.raises(InputError, match="already holds"):
        make(tmp_path / "s")


def test_of_two_writers_in_one_folder_the_second_is_refused_and_the_first_is_not_harmed(tmp_path):
    def batches():
        yield ["a"], pictures(1)
        with pytest.raises(InputError, match=r"is in use by a live run \(pid \d+ on .*\); wait or choose another"):
            write_store(tmp_path / "s", [(["x", "y"], pictures(2))], classes=[], domain="other")
        yield ["b"], pictures(1)

    store = write_store(tmp_path / "s", batches(), classes=[], domain="d", shard_bytes=1)
    assert (store.domains, store.ids.to_pylist()) == (["d"], ["a", "b"])
    store.verify()


@pytest.mark.parametrize("shard_bytes", [64 << 20, 1], ids=["one", "each"])
def test_images_that_are_not_in_memory_are_asked_for_before_they_are_copied(tmp_path, shard_bytes):
    images = np.repeat(pictures(120, size=16), 16, axis=1).repeat(16, axis=2)  # 256 px, 196 kB each
    batches = [([str(i) for i in range(120)], images)]
    store = write_store(tmp_path / "s", batches, classes=[], domain="d", truth=None, shard_bytes=shard_bytes)
    for file in (tmp_path / "s").glob("*.arrow"):  # out of the page cache, where the file's system has one
        with file.open("rb") as shard:
            os.fsync(shard.fileno())
            os.posix_fadvise(shard.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    wanted = np.arange(119, 0, -3)
    np.testing.assert_array_equal(store.read(wanted), images[wanted])
    waited = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before  # faults that wait for the disk
    assert waited <= 1  # one may be for code


def test_a_store_travels_to_another_process_by_its_path(tmp_path):
    store, images = make(tmp_path / "s")
    copy = pickle.loads(pickle.dumps(store))
    assert len(pickle.dumps(store)) < 1000
    np.testing.assert_array_equal(copy.read(np.arange(20)), images)


def test_a_million_small_images_open_at_once_and_without_memory(tmp_path):
    blank = np.zeros((50_000, 8, 8, 1), np.uint8)
    batches = (([f"{k}-{i}" for i in range(50_000)], blank) for k in range(20))
    write_store(tmp_path / "s", batches, classes=[], domain="d", shard_bytes=1 << 20)
    code = """
import sys, time, resource
import numpy as np
from ray_adaplr.data.store import ImageStore
rss = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096
before, begin = rss(), time.process_time()
store = ImageStore.open(sys.argv[1])
seconds = time.process_time() - begin
store.read(np.arange(0, len(store), len(store) // 64))
print(len(store), seconds, (rss() - before) / 2**20)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    out = subprocess.run([sys.executable, "-c", code, str(tmp_path / "s")], capture_output=True, text=True, env=env)
    count, seconds, megabytes = map(float, out.stdout.split())
    assert count == 1_000_000
    assert seconds < 0.1  # of a core
    assert megabytes < 50
