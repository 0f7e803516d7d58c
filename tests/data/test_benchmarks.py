"""The benchmarks follow the paper's protocol."""

import os

import numpy as np
import pytest
from image_trees import class_folders, picture, save, write_idx

from ray_adaplr.data.benchmarks import get_benchmark, named_domain
from ray_adaplr.data.ingest import prepare
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.errors import InputError

DATA = os.environ.get("ADAPLR_DATA")


def test_the_four_benchmarks_of_the_paper_are_there_with_their_protocol():
    digit5, pacs, visda, domainnet = (get_benchmark(name) for name in ("digit5", "pacs", "visda", "domainnet"))
    assert (digit5.size, digit5.channels, len(digit5.domains), len(digit5.classes)) == (32, 3, 5, 10)
    assert [digit5.limit("svhn", split) for split in digit5.splits] == [25_000, 9_000]
    assert digit5.limit("usps", "train") is None
    assert (pacs.model, pacs.size, len(pacs.domains), len(pacs.classes)) == ("resnet18", None, 4, 7)
    assert (visda.model, visda.size, len(visda.classes)) == ("resnet101", 256, 12)
    assert (domainnet.model, domainnet.size, len(domainnet.domains), len(domainnet.classes)) == (
        "resnet101",
        256,
        6,
        345,
    )
    subset = get_benchmark("domainnet126")
    assert len(subset.classes) == 126
    assert set(subset.classes) < set(domainnet.classes)


def test_unknown_benchmarks_and_domains_are_told():
    with pytest.raises(InputError, match="digit5, pacs, visda, domainnet"):
        get_benchmark("office")
    assert named_domain("photos/sketch") is None
    with pytest.raises(InputError, match="art_painting, cartoon, photo, sketch"):
        named_domain("pacs/clipart")


def test_a_domain_of_a_benchmark_is_found_and_prepared_by_its_protocol(tmp_path, monkeypatch):
    monkeypatch.delenv("ADAPLR_DATA", raising=False)
    digits = np.random.default_rng(0).integers(0, 256, (30, 28, 28), dtype=np.uint8)
    for prefix in ("train", "t10k"):
        write_idx(tmp_path / "MNIST" / "raw" / f"{prefix}-images-idx3-ubyte", digits)
        write_idx(tmp_path / "MNIST" / "raw" / f"{prefix}-labels-idx1-ubyte", np.arange(30, dtype=np.uint8) % 10)
    store = prepare("digit5/mnist", str(tmp_path / "s"), PrepareOptions(root=str(tmp_path), split="test"))
    assert (store.image_shape, store.domains, store.splits, len(store)) == ((32, 32, 3), ["mnist"], ["test"], 30)
    small = prepare("digit5/mnist", str(tmp_path / "t"), PrepareOptions(root=str(tmp_path), scale=0.1, seed=3))
    assert (len(small), small.splits) == (3, ["train"])
    larger = prepare("digit5/mnist", str(tmp_path / "u"), PrepareOptions(root=str(tmp_path), scale=0.5, seed=3))
    assert set(small.ids.to_pylist()) < set(larger.ids.to_pylist())
    with pytest.raises(InputError, match=r"digit5/svhn is not below .*train_32x32\.mat"):
        prepare("digit5/svhn", str(tmp_path / "v"), PrepareOptions(root=str(tmp_path)))
    with pytest.raises(InputError, match="--root"):
        prepare("digit5/svhn", str(tmp_path / "v"))
    monkeypatch.setenv("ADAPLR_DATA", str(tmp_path))
    assert len(prepare("digit5/mnist", str(tmp_path / "w"), PrepareOptions(split="test"))) == 30


def test_photographs_keep_the_published_class_order(tmp_path):
    class_folders(tmp_path / "PACS" / "photo", ("house", "dog"), size=(227, 227))
    store = prepare("pacs/photo", str(tmp_path / "p"), PrepareOptions(root=str(tmp_path / "PACS")))
    assert (store.image_shape, store.ground_truth().tolist()) == ((227, 227, 3), [0, 0, 0, 5, 5, 5])
    lines = []
    for number, name in [(1, "airplane"), (308, "The_Eiffel_Tower")]:
        save(tmp_path / "DN" / f"real/{name}/real_000001.jpg", picture(number))
        lines.append(f"real/{name}/real_000001.jpg {number}")
    (tmp_path / "DN" / "real_test.txt").write_text("\n".join(lines))
    store = prepare(
        "domainnet/real", str(tmp_path / "r"), PrepareOptions(root=str(tmp_path / "DN"), split="test", size=8)
    )
    assert (len(store.classes), store.ground_truth().tolist()) == (345, [1, 308])
    store = prepare(
        "domainnet126/real", str(tmp_path / "f"), PrepareOptions(root=str(tmp_path / "DN"), split="test", size=8)
    )
    assert (len(store.classes), store.ground_truth().tolist()) == (126, [115])


@pytest.mark.skipif(not DATA, reason="ADAPLR_DATA does not name the folder of real data")
def test_the_real_digits_and_pictures_are_found(tmp_path):
    for domain in ("mnist", "mnistm", "svhn", "usps"):
        store = prepare(f"digit5/{domain}", str(tmp_path / domain), PrepareOptions(root=DATA, split="test", scale=0.02))
        assert store.image_shape == (32, 32, 3)
        assert store.splits == ["test"]
    store = prepare("pacs/cartoon", str(tmp_path / "cartoon"), PrepareOptions(root=f"{DATA}/PACS", scale=0.02))
    assert len(store.classes) == 7
