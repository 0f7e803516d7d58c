"""`prepare` does what it is told, or says that it cannot: columns, splits and class names."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from image_trees import picture, save, write_idx, write_libsvm

from ray_adaplr.data.files import find_pictures
from ray_adaplr.data.open import as_store
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.errors import InputError

TEN = tuple(f"c{number}" for number in range(10))


@pytest.fixture
def photos(tmp_path):
    for row in range(4):
        save(tmp_path / "photos" / f"{row}.png", picture(row, (8, 8)))
    return tmp_path / "photos"


def named(pictures):
    return [pictures.classes[label] for label in pictures.labels]


def table(photos, header="path,label,Species"):
    rows = [f"photos/{row}.png,{row % 2},{['cat', 'dog', 'fox', 'cat'][row]}" for row in range(4)]
    file = photos.parent / "list.csv"
    file.write_text("\n".join([header, *rows] if header else rows))
    return str(file)


@pytest.mark.parametrize("column", ["Species", "species"])
def test_the_label_column_of_a_csv_file_is_the_one_that_was_named(photos, column):
    found = find_pictures(table(photos), PrepareOptions(label_column=column))
    assert named(found) == ["cat", "dog", "fox", "cat"]


def test_the_label_column_of_a_frame_is_the_one_that_was_named(tmp_path, photos):
    frame = pd.DataFrame({"path": [photos / f"{row}.png" for row in range(2)], "label": [0, 1], "Species": ["b", "a"]})
    store = as_store(frame, tmp_path / "run", PrepareOptions(label_column="Species"))
    assert (store.classes, store.ground_truth().tolist()) == (["a", "b"], [1, 0])


def test_the_column_of_paths_can_be_named_too(photos):
    file = table(photos, "place,label,species")
    found = find_pictures(file, PrepareOptions(image_column="place", label_column="species"))
    assert named(found) == ["cat", "dog", "fox", "cat"]


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("path,label,species", "no column `kind`; it has path, label, species"),
        ("place,label,kind", r"no column `path`; it has place, label, kind: give --image-column to prepare"),
        (None, "no column `path`"),
    ],
)
def test_a_column_that_is_not_there_is_told(photos, header, words):
    with pytest.raises(InputError, match=words):
        find_pictures(table(photos, header), PrepareOptions(label_column="kind"))


def test_a_csv_file_without_header_has_paths_first_and_labels_last(photos):
    assert named(find_pictures(table(photos, None))) == ["cat", "dog", "fox", "cat"]


def test_a_row_without_label_does_not_matter_where_labels_do_not_count(photos):
    (photos.parent / "list.csv").write_text("path,label\nphotos/0.png,\nphotos/1.png,cat\n")
    assert find_pictures(str(photos.parent / "list.csv"), PrepareOptions(unlabelled=True)).labels is None


def test_nor_do_two_columns_of_labels_in_parquet(tmp_path, photos):
    image = pa.array([(photos / "0.png").read_bytes()])
    file = str(tmp_path / "a.parquet")
    pq.write_table(pa.Table.from_arrays([image, pa.array([0]), pa.array([1])], ["image", "label", "label"]), file)
    with pytest.raises(InputError, match="label"):
        find_pictures(file, PrepareOptions())
    assert find_pictures(file, PrepareOptions(unlabelled=True)).labels is None


def test_a_split_that_no_parquet_file_is_named_after_is_refused(tmp_path, photos):
    content = (photos / "0.png").read_bytes()
    for name in ("train-0", "validation-0"):
        pq.write_table(pa.table({"image": [content]}), tmp_path / f"{name}.parquet")
    with pytest.raises(InputError, match=r"split 'test', only train-0.parquet, validation-0.parquet; name another"):
        find_pictures(str(tmp_path), PrepareOptions(split="test"))
    assert len(find_pictures(str(tmp_path), PrepareOptions(split="validation"))) == 1
    with pytest.raises(InputError, match=r"split 'test', only train-0.parquet"):
        find_pictures(str(tmp_path / "train-0.parquet"), PrepareOptions(split="test"))
    assert len(find_pictures(str(tmp_path / "train-0.parquet"), PrepareOptions(split="train"))) == 1


def digit_files(tmp_path, kind):
    """Ten images with the labels 0 to 9, published in one of the ways that digits are."""
    images, labels = np.zeros((10, 16, 16), np.uint8), np.arange(10, dtype=np.uint8)
    if kind == "idx":
        write_idx(tmp_path / "train-images-idx3-ubyte", images)
        write_idx(tmp_path / "train-labels-idx1-ubyte", labels)
        return tmp_path
    if kind == "usps":
        write_libsvm(tmp_path / "usps.bz2", np.zeros((10, 256)), labels + 1)
        return tmp_path / "usps.bz2"
    if kind == "svhn":
        savemat = pytest.importorskip("scipy.io").savemat
        content = {"X": np.zeros((32, 32, 3, 10), np.uint8), "y": np.where(labels == 0, 10, labels)[:, None]}
        savemat(tmp_path / "train_32x32.mat", content)
        return tmp_path / "train_32x32.mat"
    for row in range(10):
        save(tmp_path / "mnist_m_train" / f"{row}.png", picture(row, (8, 8)))
    (tmp_path / "mnist_m_train_labels.txt").write_text("".join(f"{row}.png {row}\n" for row in range(10)))
    return tmp_path


@pytest.mark.parametrize("kind", ["idx", "usps", "svhn", "mnist-m"])
def test_files_like_those_of_digits_take_other_class_names(tmp_path, kind):
    what = str(digit_files(tmp_path, kind))
    assert named(find_pictures(what)) == [str(digit) for digit in range(10)]
    other = find_pictures(what, PrepareOptions(classes=TEN))
    assert (other.classes, named(other)) == (list(TEN), list(TEN))
    assert named(find_pictures(what, PrepareOptions(classes=("7", "3"), subset=True))) == ["3", "7"]


def test_a_table_has_the_same_truth_as_parquet_and_as_csv(tmp_path):
    files = [str(save(tmp_path / name / f"{row}.png", picture(row, (8, 8)))) for row, name in enumerate(("cat", "dog"))]
    frame = pd.DataFrame({"path": files, "label": [0, 1]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    for classes in (None, ("dog", "cat")):
        found = [
            find_pictures(str(tmp_path / f"t.{kind}"), PrepareOptions(classes=classes)) for kind in ("csv", "parquet")
        ]
        assert [named(pictures) for pictures in found] == [["cat", "dog"]] * 2


def test_one_label_that_is_missing_does_not_take_the_others_along(tmp_path, photos):
    paths = [str(photos / f"{row}.png") for row in range(3)]
    for number, labels in enumerate((["cat", None, "dog"], [0, -1, 1])):
        pq.write_table(pa.table({"path": paths, "label": labels}), tmp_path / f"{number}.parquet")
        with pytest.raises(InputError, match="has no label for row 1; fill it in, or give --unlabelled"):
            find_pictures(str(tmp_path / f"{number}.parquet"), PrepareOptions())
        assert find_pictures(str(tmp_path / f"{number}.parquet"), PrepareOptions(unlabelled=True)).labels is None
    pq.write_table(pa.table({"path": paths, "label": [-1, -1, -1]}), tmp_path / "none.parquet")
    assert find_pictures(str(tmp_path / "none.parquet"), PrepareOptions()).labels is None
