"""Hugging Face Datasets come in: as objects, saved to disk, as a folder of images, by name."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ray_adaplr import ImageStore
from ray_adaplr.cli.main import main
from ray_adaplr.data.ingest import prepare
from ray_adaplr.data.open import as_store
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.errors import InputError

datasets = pytest.importorskip("datasets")
CLASSES = ["ant", "bee", "cat"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def dataset_of(pictures: np.ndarray, image: str = "image", label: str = "label", names: list[str] = CLASSES) -> Any:
    """A Dataset as `datasets` makes it: encoded images, and a ClassLabel whose number 0 no image has."""
    features = {image: datasets.Image(), label: datasets.ClassLabel(names=names), "note": datasets.Value("string")}
    rows = {image: [Image.fromarray(pixels) for pixels in pictures], label: [1 + i % 2 for i in range(len(pictures))]}
    return datasets.Dataset.from_dict(
        {**rows, "note": ["x"] * len(pictures)}, datasets.Features(features), split="train"
    )


def check(store: ImageStore, pictures: np.ndarray) -> None:
    truth = store.ground_truth()
    assert truth is not None
    assert store.classes == CLASSES
    assert truth.tolist() == [1 + i % 2 for i in range(len(pictures))]
    assert np.array_equal(store.read(np.arange(len(pictures))), pictures)


def test_a_dataset_in_memory_is_a_target_whatever_its_columns_are_called(tmp_path: Path, pictures: np.ndarray) -> None:
    check(as_store(dataset_of(pictures), tmp_path / "run"), pictures)
    check(as_store(dataset_of(pictures, "scan", "species"), tmp_path / "other"), pictures)
    changed = pictures.copy()
    changed[7] = 0
    check(as_store(dataset_of(changed), tmp_path / "run"), changed)  # beside the first, not in its place


def test_transforms_and_formats_of_a_dataset_have_no_effect(tmp_path: Path, pictures: np.ndarray) -> None:
    check(as_store(dataset_of(pictures).with_format("torch"), tmp_path / "torch"), pictures)
    check(as_store(dataset_of(pictures).with_transform(lambda _rows: {}), tmp_path / "transform"), pictures)


def test_a_saved_dataset_and_its_splits_are_prepared(
    tmp_path: Path, pictures: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset_of(pictures).save_to_disk(tmp_path / "one")
    check(prepare(f"hf:{tmp_path}/one", str(tmp_path / "store")), pictures)
    splits = {"train": dataset_of(pictures[:40]), "test": dataset_of(pictures[40:])}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "both")
    check(prepare(f"hf:{tmp_path}/both", str(tmp_path / "train")), pictures[:40])
    assert main(["prepare", f"hf:{tmp_path}/both:test", "--out", str(tmp_path / "test")]) == 0
    assert "20 images" in capsys.readouterr().out
    check(ImageStore.open(str(tmp_path / "test")), pictures[40:])
    named = prepare(f"hf:{tmp_path}/both", str(tmp_path / "named"), PrepareOptions(split="test"))
    check(named, pictures[40:])


def test_a_folder_of_images_is_prepared_through_datasets(tmp_path: Path, pictures: np.ndarray) -> None:
    for i, pixels in enumerate(pictures[:12]):
        place = tmp_path / "photos" / CLASSES[i % 3]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{i:02}.png")
    store = prepare(f"hf:{tmp_path}/photos", str(tmp_path / "store"))
    assert (len(store), store.classes) == (12, CLASSES)
    truth = store.ground_truth()
    assert truth is not None
    assert truth.tolist() == sorted(truth)  # a folder after another
    images = datasets.load_dataset("imagefolder", data_dir=str(tmp_path / "photos"), split="train")
    assert np.array_equal(as_store(images, tmp_path / "run").read(np.arange(12)), store.read(np.arange(12)))


def test_arrays_in_a_column_are_images_too(tmp_path: Path, pictures: np.ndarray) -> None:
    arrays = datasets.Dataset.from_dict({"img": pictures[:4].tolist()})
    store = as_store(arrays, tmp_path / "run")
    assert store.ground_truth() is None
    assert np.array_equal(store.read(np.arange(4)), pictures[:4])


def test_columns_are_named_for_parquet_too(tmp_path: Path, pictures: np.ndarray) -> None:
    two = dataset_of(pictures[:6]).add_column("kind", [0, 1, 2, 0, 1, 2]).rename_column("image", "scan")
    two.to_parquet(tmp_path / "two.parquet")
    chosen = PrepareOptions(image_column="scan", label_column="kind")
    for what in (str(tmp_path / "two.parquet"), two):
        truth = as_store(what, tmp_path / type(what).__name__, chosen).ground_truth()
        assert truth is not None
        assert truth.tolist() == [0, 1, 2, 0, 1, 2]


def test_a_row_that_is_no_image_is_rejected_with_its_reason(tmp_path: Path, pictures: np.ndarray) -> None:
    file = io.BytesIO()
    Image.fromarray(pictures[0]).save(file, "PNG")
    cells = [{"bytes": file.getvalue(), "path": None}, {"bytes": b"no image", "path": None}, None]
    broken = datasets.Dataset.from_dict({"image": cells}, datasets.Features({"image": datasets.Image()}))
    broken.save_to_disk(tmp_path / "broken")
    assert len(prepare(f"hf:{tmp_path}/broken", str(tmp_path / "store"))) == 1
    rejected = (tmp_path / "store" / "rejected.csv").read_text()
    assert rejected.splitlines() == ["id,reason", "1,not an image of a known format", "2,empty cell"]
    assert len(as_store(broken, tmp_path / "run")) == 1


def test_what_cannot_be_used_gets_a_sentence(tmp_path: Path, pictures: np.ndarray) -> None:
    small = dataset_of(pictures[:6])
    several = small.rename_column("label", "fine").add_column("x", [0] * 6)
    several = several.cast_column("x", datasets.ClassLabel(names=["a", "b"])).rename_column("x", "coarse")
    datasets.DatasetDict({"a": small, "b": small}).save_to_disk(tmp_path / "two")
    for target, more, words in (
        (datasets.DatasetDict({"train": small}), {}, r"has the splits train; give one of them"),
        (small.to_iterable_dataset(), {}, "a stream without a length"),
        (small.select([]), {}, "holds no row"),
        (small.remove_columns("image"), {}, r"no column `image` \(it has label, note\)"),
        (small, {"image_column": "photo"}, "no column `photo`"),
        (small, {"label_column": "kind"}, "no column `kind`; it has image, label, note"),
        (several, {}, r"several labels \(fine, coarse\)"),
        (f"hf:{tmp_path}/two", {}, "has no split 'train'; it has a, b"),
        (f"hf:{tmp_path}/two:c", {}, "has no split 'c'; it has a, b"),
        (f"hf:{tmp_path}/two:a[:10]", {}, "--limit"),
        (f"hf:{tmp_path}/nowhere", {}, "cannot be read as a Hugging Face dataset"),
        ("hf:nobody/nothing:train", {}, "cannot be read as a Hugging Face dataset"),
    ):
        with pytest.raises(InputError, match=words) as caught:
            as_store(target, tmp_path / "run", PrepareOptions(**more))
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
    assert as_store(several, tmp_path / "fine", PrepareOptions(label_column="fine")).classes == CLASSES
    assert as_store(several, tmp_path / "none", PrepareOptions(unlabelled=True)).ground_truth() is None


def test_without_datasets_there_is_the_pip_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(InputError, match=r"needs datasets: pip install 'ray-adaplr\[hf\]'"):
        prepare("hf:photos", str(tmp_path / "store"))
