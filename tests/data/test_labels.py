"""Labels of digits: names where the classes are called so, else numbers; and never silently another class."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from image_trees import picture, save

from ray_adaplr.data.files import find_pictures
from ray_adaplr.data.labels import as_written, class_numbers, read_given_labels
from ray_adaplr.data.open import as_store
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.store import ImageStore
from ray_adaplr.data.store_writer import write_store
from ray_adaplr.errors import InputError

IDS = ["a", "b", "c", "d"]


def listed(tmp_path, labels):
    """A CSV file of images with these labels."""
    rows = [f"flat/{row}.png,{label}\n" for row, label in enumerate(labels)]
    for row in range(len(labels)):
        save(tmp_path / "flat" / f"{row}.png", picture(row, (8, 8)))
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(rows))
    return str(tmp_path / "list.csv")


def named(pictures):
    return [pictures.classes[label] for label in pictures.labels]


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ((1, 2, 1), ("1", "2", "3")),
        ((0, 1, 2), ("2", "1", "0")),
        ((5, 7), ("7", "5")),
        (("01", "02"), ("01", "02", "03")),
    ],
)
def test_labels_that_are_all_names_of_classes_are_these_classes(tmp_path, labels, classes):
    found = find_pictures(listed(tmp_path, labels), PrepareOptions(classes=classes))
    assert found.classes == list(classes)
    assert named(found) == [str(label) for label in labels]


def test_a_frame_of_numbers_is_read_like_its_csv_file(tmp_path):
    listed(tmp_path, (1, 2, 1))
    frame = pd.DataFrame({"path": [tmp_path / f"flat/{row}.png" for row in range(3)], "label": [1, 2, 1]})
    store = as_store(frame, tmp_path / "run", PrepareOptions(classes=("1", "2", "3")))
    assert store.ground_truth().tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("labels", "classes", "names"),
    [
        ((1, 2, 3), None, ["1", "2", "3"]),  # counted from 1
        ((0, 2, 1), None, ["0", "2", "1"]),
        ((1, 2, 3), ("cat", "dog", "fox"), ["cat", "dog", "fox"]),
        ((1, 2, 0), ("cat", "dog", "fox"), ["dog", "fox", "cat"]),
        ((1, 2, 3), ("0", "1", "2"), ["0", "1", "2"]),  # the third is no name, so that these are numbers
    ],
)
def test_numbers_without_names_of_their_own_are_called_as_they_are_written(tmp_path, labels, classes, names):
    assert named(find_pictures(listed(tmp_path, labels), PrepareOptions(classes=classes))) == names


def test_a_subset_of_numbered_classes_keeps_those_that_were_named(tmp_path):
    found = find_pictures(listed(tmp_path, (1, 2, 3)), PrepareOptions(classes=("1", "3", "5"), subset=True))
    assert (found.ids, named(found)) == (["flat/0.png", "flat/2.png"], ["1", "3"])


def test_numbers_stand_for_the_names_that_come_with_the_data_whatever_the_classes_are_called():
    written = as_written(np.array([0, 1]), "the data", names=["1", "0"], classes=["0", "1"])
    assert class_numbers(written, ["0", "1"])[0].tolist() == [1, 0]
    with pytest.raises(InputError, match="the data has the label 2 and 2 class names"):
        as_written([0, 2], "the data", names=["1", "0"])


@pytest.fixture
def store(tmp_path) -> ImageStore:
    images = np.zeros((4, 8, 8, 3), np.uint8)
    return write_store(tmp_path / "store", [(IDS, images)], classes=["1", "2", "3"], domain="x")


@pytest.mark.parametrize("column", ["refined_label", "label"])
def test_integers_of_a_label_file_are_numbers_even_where_classes_are_called_by_numbers(tmp_path, store, column):
    beside = column.replace("label", "class")
    table = pa.table({"id": IDS, column: pa.array([0, 1, 2, 1], pa.int32()), beside: ["1", "2", "3", "2"]})
    pq.write_table(table, tmp_path / "given.parquet")
    assert read_given_labels(tmp_path / "given.parquet", store, 3).tolist() == [0, 1, 2, 1]


@pytest.mark.parametrize(
    ("content", "given"),
    [
        ("id,label,class\na,0,1\nb,1,2\nc,2,3\n", [0, 1, 2, -1]),  # as predict writes it
        ("id,label,class\nb,1,2\nc,2,2\n", [-1, 1, 1, -1]),
        ("id,refined_label\na,1\nb,2\n", [1, 2, -1, -1]),
        ("id,class\na,1\nb,2\n", [0, 1, -1, -1]),
        ("id,label\na,1\nb,3\n", [0, 2, -1, -1]),  # there is no number 3
        ("id,label\na,0\nb,1\n", [0, 1, -1, -1]),  # there is no name 0
    ],
)
def test_text_of_digits_is_read_in_the_one_way_that_fits(tmp_path, store, content, given):
    (tmp_path / "given.csv").write_text(content)
    assert read_given_labels(tmp_path / "given.csv", store, 3).tolist() == given


@pytest.mark.parametrize("column", ["refined_label", "label"])
def test_names_that_were_edited_beside_the_labels_are_not_dropped(tmp_path, store, column):
    beside = column.replace("label", "class")
    (tmp_path / "given.csv").write_text(f"id,{column},{beside}\na,0,1\nb,0,3\n")
    with pytest.raises(InputError, match=f"the image 'b' '1' and calls it '3' in the column `{beside}`; correct both"):
        read_given_labels(tmp_path / "given.csv", store, 3)
    (tmp_path / "given.csv").write_text(f"id,{beside}\na,1\nb,3\n")
    assert read_given_labels(tmp_path / "given.csv", store, 3).tolist() == [0, 2, -1, -1]


@pytest.mark.parametrize(
    "content",
    ["id,label\na,1\nb,2\n", "id,label\na,0\nb,1\nc,3\n", "id,label,class\na,1,3\nb,2,2\n"],
    ids=["both ways fit", "no way fits all", "the name beside it is a third class"],
)
def test_text_that_may_be_a_name_or_a_number_is_refused(tmp_path, store, content):
    (tmp_path / "given.csv").write_text(content)
    with pytest.raises(InputError, match=r"the label '1', which is the name of class number 0.* column `class`"):
        read_given_labels(tmp_path / "given.csv", store, 3)


@pytest.mark.parametrize("parted", [";", ",", "\t"])
def test_a_label_file_of_a_spreadsheet_is_read_whatever_parts_its_cells(tmp_path, store, parted):
    rows = [("id", " label "), ("a", "2 "), ("c", " 1")]
    (tmp_path / "labels.csv").write_text("\ufeff" + "".join(f"{one}{parted}{other}\r\n" for one, other in rows))
    assert read_given_labels(tmp_path / "labels.csv", store, 10).tolist() == [2, -1, 1, -1]


def test_a_label_file_without_a_row_is_refused(tmp_path, store):
    (tmp_path / "labels.csv").write_text("id,label\n")
    with pytest.raises(InputError, match="has a header and no rows"):
        read_given_labels(tmp_path / "labels.csv", store, 10)
