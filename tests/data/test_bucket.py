"""Stores in a bucket: written there, resumed there, read from a copy on this machine. Against a real S3 server."""

import numpy as np
import pytest
from image_trees import class_folders

from ray_adaplr.cli.main import main
from ray_adaplr.data.ingest import prepare
from ray_adaplr.data.open import as_store
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.data.store_writer import write_store
from ray_adaplr.errors import InputError
from ray_adaplr.storage import lease

SMALL = PrepareOptions(size=40)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPLR_CACHE", str(tmp_path / "cache"))


def test_prepare_writes_a_store_into_a_bucket_with_the_bytes_of_a_local_one(tmp_path, s3):
    folder, uri = class_folders(tmp_path / "p", each=350, suffix="png"), s3.uri("store")
    (folder / "dog" / "bad.png").write_text("no picture")
    assert main(["prepare", str(folder), "--out", uri, "--size", "40"]) == 0
    near, far = prepare(str(folder), str(tmp_path / "near"), SMALL), ImageStore.open(uri)
    names = sorted(path.name for path in (tmp_path / "near").iterdir() if path.name != ".lock")
    assert "rejected.csv" in names
    assert s3.keys(uri) == names
    assert far.fingerprint == near.fingerprint
    assert far.ground_truth().tolist() == near.ground_truth().tolist()
    np.testing.assert_array_equal(far.read(np.arange(700)), near.read(np.arange(700)))
    assert not list((tmp_path / "cache").glob("prepare-*")), "the place of work is cleared"
    s3.forget()
    prepare(str(folder), uri, SMALL)
    assert s3.requests["PUT"] == 0, "the same call on a finished store writes nothing"


def test_whichever_request_fails_the_same_call_goes_on_and_ends_with_the_same_store(tmp_path, s3, monkeypatch):
    monkeypatch.setattr(lease, "SECONDS", 10.0)
    folder = class_folders(tmp_path / "p", each=300, suffix="png", size=(8, 8))
    wanted = prepare(str(folder), str(tmp_path / "near"), PrepareOptions(workers=1)).fingerprint
    for number in range(2, 100, 7):
        uri = s3.uri("store")
        s3.fail_at = number
        try:
            prepare(str(folder), uri, PrepareOptions(workers=1))
        except (OSError, InputError):
            noted = [key for key in s3.keys(uri) if key.startswith(".partial/0")]
            s3.forget()
            assert prepare(str(folder), uri, PrepareOptions(workers=1)).fingerprint == wanted
            made = {path.split("/")[-1].split("?")[0] for path in s3.paths if "PUT" in path and "/images-" in path}
            assert not {f"images-{key[9:14]}.arrow" for key in noted} & made, "a shard with a note is not made again"
        else:
            undisturbed = s3.requests.total() < number
            s3.forget()
            assert ImageStore.open(uri).fingerprint == wanted
            if undisturbed:
                return
        finally:
            s3.forget()
    pytest.fail("no prepare came through")


class SecondOne(Progress):
    """Starts another `prepare` into the same folder as soon as the first has made a shard."""

    def __init__(self, what, out):
        super().__init__(quiet=True)
        self.call, self.refused = (what, out), 0

    def step(self, *_, **__):
        with pytest.raises(InputError, match=r"in use by a live run .*pid"):
            prepare(*self.call, SMALL)
        self.refused += 1


@pytest.mark.parametrize("where", ["local", "s3"])
def test_of_two_prepares_at_once_one_goes_on_and_the_other_is_refused(tmp_path, where, request, monkeypatch):
    monkeypatch.setattr(lease, "SECONDS", 10.0)
    folder = class_folders(tmp_path / "p", suffix="png")
    out = str(tmp_path / "store") if where == "local" else request.getfixturevalue("s3").uri("store")
    second = SecondOne(str(folder), out)
    store = prepare(str(folder), out, SMALL, second)
    assert second.refused == 1
    assert store.fingerprint == prepare(str(folder), str(tmp_path / "alone"), SMALL).fingerprint
    assert prepare(str(folder), out, SMALL).fingerprint == store.fingerprint, "once made, it is opened without a lock"


def test_a_bucket_that_refuses_gets_one_sentence(tmp_path, s3):
    folder, uri = class_folders(tmp_path / "p"), s3.uri("store")
    s3.fault = "denied"
    with pytest.raises(InputError) as caught:
        prepare(str(folder), uri, SMALL)
    assert "\n" not in str(caught.value)


def test_an_array_becomes_a_store_in_the_bucket_of_its_run(s3):
    images, uri = np.random.default_rng(0).integers(0, 256, (9, 8, 8, 3), dtype=np.uint8), s3.uri("run")
    store = as_store(images, uri)
    np.testing.assert_array_equal(store.read(np.arange(9)), images)
    assert any(key.startswith("stores/0-") and key.endswith("store.json") for key in s3.keys(uri))
    s3.forget()
    assert as_store(images, uri).fingerprint == store.fingerprint
    assert s3.requests["PUT"] == 0


def test_a_finished_store_in_a_bucket_is_not_written_over(s3):
    uri, images = s3.uri("store"), np.zeros((1, 8, 8, 3), np.uint8)
    write_store(uri, [(["a"], images)], classes=[], domain="d")
    with pytest.raises(InputError, match="already holds"):
        write_store(uri, [(["a"], images)], classes=[], domain="d")
