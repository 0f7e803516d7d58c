"""A store of other images, or of the same ones read in another way, is never taken for the one that is asked for."""

import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from image_trees import save
from PIL import Image

from ray_adaplr.data.ingest import prepare
from ray_adaplr.data.open import as_store
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.errors import InputError


def grey_values(store):
    """The first pixel of each image."""
    return store.read(np.arange(len(store)))[:, 0, 0, 0].tolist()


def flat(value, size=8):
    return np.full((size, size, 3), value, np.uint8)


def files(folder, value, count=4):
    """Bitmaps of one grey value, which all have the same length, and the same time of change."""
    for row in range(count):
        file = save(folder / f"{row}.ppm", Image.fromarray(flat(value)))
        os.utime(file, (1e9, 1e9))
    return folder


def refused(what, out, **options):
    with pytest.raises(InputError, match="already holds an image store, of other images or options"):
        prepare(str(what), str(out), PrepareOptions(**options))


def test_other_rows_of_a_saved_dataset_are_other_images(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image()})
    whole = datasets.Dataset.from_dict({"image": [flat(10 * row) for row in range(8)]}, features=features)
    whole.save_to_disk(tmp_path / "saved")
    saved = datasets.load_from_disk(tmp_path / "saved")
    parts = [saved.select(range(4)), saved.select([4, 5, 6, 7]), saved.select([3, 2, 1, 0])]
    stores = [as_store(part, tmp_path / "run") for part in parts]
    assert [grey_values(store) for store in stores] == [[0, 10, 20, 30], [40, 50, 60, 70], [30, 20, 10, 0]]
    for part, store in zip(parts, stores):
        assert as_store(part, tmp_path / "run").paths == store.paths, "a resumed run finds its store"


def test_another_column_of_images_is_another_store(tmp_path):
    columns = {name: [b"P6 8 8 255\n" + flat(value).tobytes()] * 3 for name, value in (("image", 9), ("depth", 5))}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    prepare(str(tmp_path / "a.parquet"), str(tmp_path / "s"))
    refused(tmp_path / "a.parquet", tmp_path / "s", image_column="depth")
    assert len(prepare(str(tmp_path / "a.parquet"), str(tmp_path / "s"), PrepareOptions(image_column="image"))) == 3


@pytest.mark.parametrize("labelled", [True, False])
def test_another_split_of_a_parquet_folder_is_another_store(tmp_path, labelled):
    for split, value in (("train", 9), ("test", 5)):
        image = b"P6 8 8 255\n" + flat(value).tobytes()
        columns = {"image": [image] * 4} | ({"label": list("abab")} if labelled else {})
        (tmp_path / "data").mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), tmp_path / f"data/{split}-0.parquet")
        os.utime(tmp_path / f"data/{split}-0.parquet", (1e9, 1e9))
    prepare(str(tmp_path / "data"), str(tmp_path / "s"), PrepareOptions(split="train", limit=3))
    refused(tmp_path / "data", tmp_path / "s", split="test", limit=3)
    prepare(str(tmp_path / "data"), str(tmp_path / "s"), PrepareOptions(limit=3))  # train is the default


def test_a_parquet_file_of_a_few_labelled_rows_that_was_edited_does_not_count_as_prepared(tmp_path):
    columns = {"image": [b"P6 8 8 255\n" + flat(9).tobytes()] * 4, "label": list("abab")}
    for time in (1e9, 2e9):
        pq.write_table(pa.table(columns), tmp_path / "a.parquet")
        os.utime(tmp_path / "a.parquet", (time, time))
        if time == 1e9:
            prepare(str(tmp_path / "a.parquet"), str(tmp_path / "s"), PrepareOptions(limit=3))
    refused(tmp_path / "a.parquet", tmp_path / "s", limit=3)


@pytest.mark.parametrize("kind", ["parquet", "struct", "csv"])
def test_a_list_with_another_root_is_another_store(tmp_path, kind):
    one, other = files(tmp_path / "one", 9), files(tmp_path / "other", 5)
    names = [f"{row}.ppm" for row in range(4)]
    what = tmp_path / ("list.csv" if kind == "csv" else "list.parquet")
    if kind == "csv":
        pd.DataFrame({"path": names}).to_csv(what, index=False)
    else:
        column = [{"bytes": None, "path": name} for name in names] if kind == "struct" else names
        pq.write_table(pa.table({"image": column}), what)
    prepare(str(what), str(tmp_path / "s"), PrepareOptions(root=str(one)))
    prepare(str(what), str(tmp_path / "s"), PrepareOptions(root=f"{one}/."))
    refused(what, tmp_path / "s", root=str(other))


def test_edited_files_that_a_parquet_file_names_do_not_count_as_prepared(tmp_path):
    folder = files(tmp_path / "photos", 9)
    pq.write_table(pa.table({"image": [f"photos/{row}.ppm" for row in range(4)]}), tmp_path / "a.parquet")
    prepare(str(tmp_path / "a.parquet"), str(tmp_path / "s"))
    prepare(str(tmp_path / "a.parquet"), str(tmp_path / "s"))
    (folder / "2.ppm").write_bytes(b"P6 8 8 255\n" + flat(5).tobytes())
    refused(tmp_path / "a.parquet", tmp_path / "s")


class Items:
    """A Dataset of pixels in memory."""

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, row):
        return self.images[row], 0


def test_any_changed_item_of_a_dataset_makes_another_store(tmp_path):
    items = Items(np.zeros((200, 8, 8, 3), np.uint8))
    first = as_store(items, tmp_path / "run")
    assert as_store(items, tmp_path / "run").paths == first.paths
    items.images[1] = 77  # between the 64 that are spread over all of them
    assert grey_values(as_store(items, tmp_path / "run"))[:3] == [0, 77, 0]


def test_other_labels_classes_domain_or_aspect_of_the_same_items_make_another_store(tmp_path):
    items = Items(np.zeros((3, 8, 16, 3), np.uint8))
    items.images[:, :, :4] = 255
    stores = [as_store(items, tmp_path / "run", PrepareOptions(size=8))]
    items.targets = [0, 1, 0]
    stores.append(as_store(items, tmp_path / "run", PrepareOptions(size=8)))
    stores.append(as_store(items, tmp_path / "run", PrepareOptions(size=8, classes=("u", "v"))))
    stores.append(as_store(items, tmp_path / "run", PrepareOptions(size=8, classes=("u", "v"), domain="d")))
    stores.append(as_store(items, tmp_path / "run", PrepareOptions(size=8, aspect="crop")))
    assert len({store.paths[0] for store in stores}) == 5
    assert stores[0].ground_truth() is None
    assert stores[1].ground_truth().tolist() == [0, 1, 0]
    assert stores[2].classes == ["u", "v"]
    assert stores[3].domains == ["d"]
    assert grey_values(stores[4]) == [0, 0, 0]
