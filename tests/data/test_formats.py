"""Every published layout is recognised by its names and read with the right labels, classes, domain and split."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from image_trees import class_folders, picture, save, write_idx, write_libsvm

from ray_adaplr.data.files import find_pictures
from ray_adaplr.data.ingest import prepare
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.errors import InputError

DATA = os.environ.get("ADAPLR_DATA")
DIGITS = [str(digit) for digit in range(10)]
rng = np.random.default_rng(0)
digits = rng.integers(0, 256, (12, 28, 28), dtype=np.uint8)
labels = np.arange(12, dtype=np.uint8) % 10


def test_a_folder_a_class_gives_sorted_classes(tmp_path):
    source = find_pictures(str(class_folders(tmp_path / "pets", ("dog", "cat"))))
    assert source.classes == ["cat", "dog"]
    assert source.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert source.ids[0] == "cat/000.jpg"
    assert source.domain == "pets"


def test_given_classes_fix_the_order_and_a_foreign_folder_is_told(tmp_path):
    folder = str(class_folders(tmp_path / "pets"))
    assert find_pictures(folder, PrepareOptions(classes=["dog", "cow", "cat"])).labels.tolist() == [2, 2, 2, 0, 0, 0]
    with pytest.raises(InputError, match="'cat'"):
        find_pictures(folder, PrepareOptions(classes=["dog", "cow"]))
    assert find_pictures(folder, PrepareOptions(classes=["dog", "cow"], subset=True)).ids == [
        "dog/000.jpg",
        "dog/001.jpg",
        "dog/002.jpg",
    ]
    with pytest.raises(InputError, match="spelling"):
        find_pictures(folder, PrepareOptions(classes=["Dog"], subset=True))


def test_a_flat_folder_and_a_folder_read_without_labels_are_unlabelled(tmp_path):
    for i in range(3):
        save(tmp_path / "flat" / f"{i}.png", picture(i))
    (tmp_path / "flat" / "notes.txt").write_text("not an image")
    flat = find_pictures(str(tmp_path / "flat"))
    assert (flat.labels, flat.classes, flat.ids) == (None, [], ["0.png", "1.png", "2.png"])
    assert find_pictures(str(class_folders(tmp_path / "pets")), PrepareOptions(unlabelled=True)).labels is None
    np.savez(tmp_path / "a.npz", images=digits, labels=labels)
    source = find_pictures(str(tmp_path / "a.npz"), PrepareOptions(unlabelled=True))
    assert (source.labels, source.classes) == (None, [])


def test_confusing_folders_are_refused(tmp_path):
    class_folders(tmp_path / "PACS" / "photo")
    class_folders(tmp_path / "PACS" / "sketch")
    with pytest.raises(InputError, match=r"several domains.*PACS/photo"):
        find_pictures(str(tmp_path / "PACS"))
    save(class_folders(tmp_path / "pets") / "loose.png", picture(0))
    with pytest.raises(InputError, match=r"loose\.png"):
        find_pictures(str(tmp_path / "pets"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no image file"):
        find_pictures(str(tmp_path / "empty"))
    with pytest.raises(InputError, match="does not exist"):
        find_pictures(str(tmp_path / "nowhere"))
    (tmp_path / "a.doc").touch()
    with pytest.raises(InputError, match="no known kind"):
        find_pictures(str(tmp_path / "a.doc"))


def test_lists_take_numbers_names_commas_or_paths_alone(tmp_path):
    class_folders(tmp_path / "images")
    (tmp_path / "number.txt").write_text("images/dog/000.jpg 1\nimages/cat/000.jpg 0\n")
    source = find_pictures(str(tmp_path / "number.txt"))
    assert (source.classes, source.labels.tolist()) == (["cat", "dog"], [1, 0])
    (tmp_path / "name.txt").write_text("dog/000.jpg woof\ncat/000.jpg miaow\n")
    source = find_pictures(str(tmp_path / "name.txt"), PrepareOptions(root=str(tmp_path / "images")))
    assert (source.classes, source.labels.tolist()) == (["miaow", "woof"], [1, 0])
    (tmp_path / "comma.csv").write_text("images/dog/000.jpg,1\nimages/cat/000.jpg,0\n")
    assert find_pictures(str(tmp_path / "comma.csv")).labels.tolist() == [1, 0]
    (tmp_path / "bare.txt").write_text("images/dog/000.jpg\nimages/cat/000.jpg\n")
    assert find_pictures(str(tmp_path / "bare.txt")).labels is None


@pytest.mark.parametrize("name", ["pets_train.csv.gz", "pets_train.txt.gz", "PETS_train.TSV.GZ"])
def test_a_list_packed_with_gzip_is_read_like_the_plain_one(tmp_path, name):
    images = sorted(str(file.relative_to(tmp_path)) for file in class_folders(tmp_path).rglob("*.*"))
    between = {"csv": ",", "txt": " ", "tsv": "\t"}[name.lower().split(".")[1]]
    lines = "".join(f"{image}{between}{image[:3]}\n" for image in images)
    (tmp_path / name).write_bytes(gzip.compress(lines.encode()))
    found = find_pictures(str(tmp_path / name))
    assert found.labels.tolist() == [image[:3] == "dog" for image in images]
    assert (found.classes, found.split) == (["cat", "dog"], "train")
    assert found.domain.lower() == "pets"
    (tmp_path / name).write_bytes(gzip.compress(lines.encode())[:30])
    with pytest.raises(InputError, match="cannot be unpacked with gzip"):
        find_pictures(str(tmp_path / name))


def test_a_list_whose_images_are_elsewhere_asks_for_the_root(tmp_path):
    (tmp_path / "l.txt").write_text("dog/1.jpg 0\n")
    with pytest.raises(InputError, match="--root"):
        find_pictures(str(tmp_path / "l.txt"))
    (tmp_path / "e.txt").write_text("\n")
    with pytest.raises(InputError, match="empty"):
        find_pictures(str(tmp_path / "e.txt"))


def test_an_image_listed_twice_is_told(tmp_path):
    class_folders(tmp_path)
    (tmp_path / "l.txt").write_text("dog/000.jpg 1\ndog/000.jpg 1\ncat/000.jpg 0\n")
    with pytest.raises(InputError, match="more than once"):
        prepare(str(tmp_path / "l.txt"), str(tmp_path / "s"))


def test_the_lists_of_pacs_count_from_one(tmp_path):
    class_folders(tmp_path / "kfold" / "photo", ("dog", "elephant"))
    lines = [f"photo/{name}/00{i}.jpg {c}" for c, name in ((1, "dog"), (2, "elephant")) for i in range(3)]
    (tmp_path / "kfold" / "photo_train_kfold.txt").write_text("\n".join(lines))
    source = find_pictures(str(tmp_path / "kfold" / "photo_train_kfold.txt"))
    assert (source.classes, source.labels.tolist()) == (["dog", "elephant"], [0, 0, 0, 1, 1, 1])


def test_visda_names_its_split_and_its_classes(tmp_path):
    for split, file in [("train", "src_1_{}.png"), ("validation", "{}.jpg")]:
        lines = []
        for number, name in enumerate(["aeroplane", "bicycle", "bus"]):
            save(tmp_path / split / name / file.format(number), picture(number))
            lines.append(f"{name}/{file.format(number)} {number}")
        (tmp_path / split / "image_list.txt").write_text("\n".join(lines))
    save(tmp_path / "test" / "trunk01" / "18ea52.jpg", picture(0))
    (tmp_path / "test" / "image_list.txt").write_text("trunk01/18ea52.jpg 11\n")
    for what, options in [("train", {}), ("", {"split": "train"}), ("train/image_list.txt", {})]:
        source = find_pictures(str(tmp_path / what), PrepareOptions(**options))
        assert (source.domain, source.split) == ("visda-train", "train")
        assert source.classes == ["aeroplane", "bicycle", "bus"]
    assert find_pictures(str(tmp_path), PrepareOptions(split="validation")).split == "validation"
    test = find_pictures(str(tmp_path / "test"))
    assert (len(test.classes), test.classes[11], test.labels.tolist(), test.split) == (12, "truck", [11], "test")


def test_domainnet_lists_give_domain_split_and_classes_and_a_subset(tmp_path):
    lines = []
    for number, name in [(0, "aircraft_carrier"), (1, "airplane"), (2, "alarm_clock")]:
        file = f"clipart/{name}/clipart_{number + 1:03d}_000001.jpg"
        save(tmp_path / file, picture(number))
        lines.append(f"{file} {number}")
    (tmp_path / "clipart_train.txt").write_text("\n".join(lines))
    (tmp_path / "splits").mkdir()
    (tmp_path / "splits" / "clipart_test.txt").write_text("\n".join(lines))
    source = find_pictures(str(tmp_path / "clipart_train.txt"))
    assert (source.domain, source.split) == ("clipart", "train")
    assert source.classes == ["aircraft_carrier", "airplane", "alarm_clock"]
    assert find_pictures(str(tmp_path / "splits" / "clipart_test.txt")).split == "test"
    few = find_pictures(
        str(tmp_path / "clipart_train.txt"), PrepareOptions(classes=["aircraft_carrier", "alarm_clock"], subset=True)
    )
    assert [few.classes[label] for label in few.labels] == ["aircraft_carrier", "alarm_clock"]
    assert few.ids[1].startswith("clipart/alarm_clock/")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_is_read_from_its_idx_files_or_their_folder(tmp_path, suffix):
    for prefix in ("train", "t10k"):
        write_idx(tmp_path / f"{prefix}-images-idx3-ubyte{suffix}", digits)
        write_idx(tmp_path / f"{prefix}-labels-idx1-ubyte{suffix}", labels)
    source = find_pictures(str(tmp_path / f"t10k-images-idx3-ubyte{suffix}"))
    assert (source.domain, source.split, source.classes) == ("mnist", "test", DIGITS)
    np.testing.assert_array_equal(source.images, digits)
    assert source.labels.tolist() == labels.tolist()
    assert find_pictures(str(tmp_path)).split == "train"
    assert find_pictures(str(tmp_path), PrepareOptions(split="test")).split == "test"


def test_damaged_idx_files_are_told(tmp_path):
    path = tmp_path / "train-images-idx3-ubyte"
    write_idx(path, digits)
    with pytest.raises(InputError, match=r"train-labels-idx1-ubyte is missing"):
        find_pictures(str(path))
    write_idx(tmp_path / "train-labels-idx1-ubyte", labels)
    for content in (path.read_bytes()[:-5], b"PK12345", b"", b"\0\0\x08\x03" + b"\xff" * 12):
        path.write_bytes(content)
        with pytest.raises(InputError, match="cannot be read as an idx file"):
            find_pictures(str(path))


def test_mnist_m_is_read_as_published(tmp_path):
    for split in ("train", "test"):
        lines = []
        for i in range(4):
            save(tmp_path / f"mnist_m_{split}" / f"{i:08d}.png", picture(i, (32, 32)))
            lines.append(f"{i:08d}.png {i + 5}")
        (tmp_path / f"mnist_m_{split}_labels.txt").write_text("\n".join(lines))
    for what in ("", "mnist_m_train", "mnist_m_train_labels.txt"):
        source = find_pictures(str(tmp_path / what))
        assert (source.domain, source.split, source.classes) == ("mnistm", "train", DIGITS)
        assert source.labels.tolist() == [5, 6, 7, 8]


def test_usps_is_read_from_libsvm_text(tmp_path):
    pixels = rng.uniform(-1, 1, (10, 256))
    write_libsvm(tmp_path / "usps.bz2", pixels, np.arange(1, 11))
    write_libsvm(tmp_path / "usps.t.bz2", pixels[:3], [10, 1, 2])
    train, test = find_pictures(str(tmp_path / "usps.bz2")), find_pictures(str(tmp_path / "usps.t.bz2"))
    assert (train.split, train.domain, train.labels.tolist()) == ("train", "usps", list(range(10)))
    assert (test.split, test.labels.tolist()) == ("test", [9, 0, 1])
    np.testing.assert_allclose(train.images, (pixels + 1).reshape(-1, 16, 16) / 2 * 255, atol=1)
    (tmp_path / "usps.bz2").write_bytes(b"no")
    with pytest.raises(InputError, match="libsvm"):
        find_pictures(str(tmp_path / "usps.bz2"))


def test_svhn_and_synthetic_digits_are_read_from_mat_files(tmp_path):
    savemat = pytest.importorskip("scipy.io").savemat
    pixels = rng.integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    savemat(tmp_path / "test_32x32.mat", {"X": pixels, "y": np.array([[10], [1], [9], [2]], np.uint8)})
    savemat(tmp_path / "synth_train_32x32.mat", {"X": pixels, "y": np.array([[0], [1], [9], [2]], np.uint8)})
    stacked = np.moveaxis(pixels, -1, 0)
    both = {"train_data": stacked, "train_label": [[3], [1], [0], [2]], "test_data": stacked[:1], "test_label": [[7]]}
    savemat(tmp_path / "syn_number.mat", both)
    svhn = find_pictures(str(tmp_path / "test_32x32.mat"))
    assert (svhn.domain, svhn.split, svhn.labels.tolist()) == ("svhn", "test", [0, 1, 9, 2])
    np.testing.assert_array_equal(svhn.images[2], pixels[..., 2])
    synth = find_pictures(str(tmp_path / "synth_train_32x32.mat"))
    assert (synth.domain, synth.split, synth.labels.tolist()) == ("synth", "train", [0, 1, 9, 2])
    five = find_pictures(str(tmp_path / "syn_number.mat"), PrepareOptions(split="test"))
    assert (five.domain, five.split, five.labels.tolist()) == ("synth", "test", [7])
    (tmp_path / "bad.mat").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"\.mat"):
        find_pictures(str(tmp_path / "bad.mat"))


@pytest.mark.parametrize(
    ("images", "shape"),
    [
        (digits, (28, 28, 1)),
        (rng.integers(0, 256, (12, 8, 8, 3), dtype=np.uint8), (8, 8, 3)),
        (rng.integers(0, 256, (12, 3, 8, 8), dtype=np.uint8), (8, 8, 3)),
        (digits / 255.0, (28, 28, 1)),
    ],
    ids=["grey", "rgb", "channels first", "floats"],
)
def test_npz_arrays_of_the_usual_layouts_are_read(tmp_path, images, shape):
    np.savez(tmp_path / "mnist_test.npz", images=images, labels=labels)
    store = prepare(str(tmp_path / "mnist_test.npz"), str(tmp_path / "s"))
    assert store.image_shape == shape
    assert (store.domains, store.splits) == (["mnist"], ["test"])
    assert store.ground_truth().tolist() == labels.tolist()
    assert store.ids[1].as_py() == "01"
    if images.dtype == np.uint8 and images.shape[1] != 3:
        np.testing.assert_array_equal(store.read(np.arange(12)), images.reshape(12, *shape))


def test_wrong_npz_files_are_told(tmp_path):
    path = tmp_path / "a.npz"
    cases = [
        ({"pictures": digits}, "no array `images`"),
        ({"images": digits, "labels": labels[:3]}, "3 labels"),
        ({"images": digits[0]}, "shape"),
        ({"images": digits.astype(int) * 1000}, r"0\.\.255"),
        ({"images": digits / 127.5 - 1}, r"0\.\.255"),
        ({"images": np.where(digits == digits[0], np.nan, 0.5)}, r"0\.\.255"),
    ]
    for arrays, words in cases:
        np.savez(path, **arrays)
        with pytest.raises(InputError, match=words):
            find_pictures(str(path))
    path.write_bytes(b"no")
    with pytest.raises(InputError, match="npz"):
        find_pictures(str(path))


def parquet_bytes(tmp_path):
    return [save(tmp_path / "p" / f"{i}.png", picture(i, (8, 8))).read_bytes() for i in range(6)]


@pytest.mark.parametrize("kind", ["bytes", "paths", "hugging face"])
def test_parquet_with_bytes_paths_or_structs_gives_the_same_store(tmp_path, kind):
    encoded = parquet_bytes(tmp_path)
    paths = [f"p/{i}.png" for i in range(6)]
    column = {"bytes": encoded, "paths": paths, "hugging face": [{"bytes": b, "path": None} for b in encoded]}[kind]
    table = pa.table({"image": column, "label": ["b", "a", "b", "a", "a", "c"]})
    pq.write_table(table, tmp_path / "wild.parquet", row_group_size=4)
    store = prepare(str(tmp_path / "wild.parquet"), str(tmp_path / "s"))
    assert (store.classes, store.ground_truth().tolist()) == (["a", "b", "c"], [1, 0, 1, 0, 0, 2])
    wanted = np.stack([np.asarray(picture(i, (8, 8))) for i in range(6)])
    np.testing.assert_array_equal(store.read(np.arange(6)), wanted)


def test_parquet_of_hugging_face_has_named_classes_ids_and_several_files(tmp_path):
    encoded = parquet_bytes(tmp_path)
    features = {"info": {"features": {"label": {"names": ["cat", "dog", "cow"], "_type": "ClassLabel"}}}}
    (tmp_path / "pets").mkdir()
    for part in range(2):
        rows = slice(3 * part, 3 * part + 3)
        images = [{"bytes": content, "path": "x.png"} for content in encoded[rows]]
        table = pa.table({"image": images, "label": [0, 1, 1], "id": [f"n{part}{i}" for i in range(3)]})
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
        pq.write_table(table, tmp_path / "pets" / f"train-0000{part}.parquet")
    pq.write_table(table, tmp_path / "pets" / "test-00000.parquet")
    assert find_pictures(str(tmp_path / "pets"), PrepareOptions(split="test")).ids == ["n10", "n11", "n12"]
    source = find_pictures(str(tmp_path / "pets"))
    assert source.classes == ["cat", "dog", "cow"]
    assert source.labels.tolist() == [0, 1, 1, 0, 1, 1]
    assert source.ids[3] == "n10"
    assert source.images[4] == encoded[4]
    assert find_pictures(str(tmp_path / "pets"), PrepareOptions(classes=["dog"], subset=True)).ids == [
        "n01",
        "n02",
        "n11",
        "n12",
    ]


@pytest.mark.parametrize("data", ["photos", "tables"])
def test_predictions_that_lie_beside_the_images_do_not_hide_them(tmp_path, data):
    save(tmp_path / "photos" / "cat.png", picture(0))
    (tmp_path / "tables").mkdir()
    image = (tmp_path / "photos" / "cat.png").read_bytes()
    pq.write_table(pa.table({"id": ["cat.png"], "image": [image]}), tmp_path / "tables" / "z.parquet")
    predictions = pa.table({"id": ["cat.png"], "label": [0], "class": ["cat"], "confidence": [0.9]})
    pq.write_table(predictions, tmp_path / data / "predictions.parquet")
    found = find_pictures(str(tmp_path / data))
    assert (found.ids, found.labels) == (["cat.png"], None)


def test_a_table_of_paths_beside_the_images_that_it_names_gives_their_labels(tmp_path):
    class_folders(tmp_path / "photos", ("a", "b"), each=1)
    table = pa.table({"file_name": ["a/000.jpg", "b/000.jpg"], "label": ["cat", "dog"]})
    pq.write_table(table, tmp_path / "photos" / "metadata.parquet")
    assert find_pictures(str(tmp_path / "photos")).classes == ["cat", "dog"]


def test_file_names_that_are_not_utf_8_stay_different(tmp_path):
    for byte in (b"\xe4", b"\xf6"):
        save(tmp_path / os.fsdecode(byte + b".png"), picture(0))
    assert find_pictures(str(tmp_path)).ids == ["\\xe4.png", "\\xf6.png"]
    assert len(prepare(str(tmp_path), str(tmp_path.with_name("store")), PrepareOptions(size=8))) == 2


def test_wrong_parquet_files_are_told(tmp_path):
    pq.write_table(pa.table({"picture": [b""]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="no column `image`"):
        find_pictures(str(tmp_path / "a.parquet"))
    (tmp_path / "b.parquet").write_bytes(b"no")
    with pytest.raises(InputError, match="Parquet"):
        find_pictures(str(tmp_path / "b.parquet"))
    pq.write_table(pa.table({"image": pa.array([], pa.binary())}), tmp_path / "c.parquet")
    with pytest.raises(InputError, match="holds no row"):
        find_pictures(str(tmp_path / "c.parquet"))


@pytest.mark.skipif(not DATA, reason="ADAPLR_DATA does not name the folder of real data")
def test_the_real_files_of_mnist_and_usps_agree_with_each_other():
    original = Path(DATA) / "original"
    mnist = find_pictures(str(original / "t10k-images-idx3-ubyte.gz"))
    assert np.bincount(mnist.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    text = find_pictures(str(original / "usps.t.bz2"))
    arrays = np.load(Path(DATA) / "usps_test.npz")
    assert np.abs(text.images.astype(int) - arrays["images"]).max() <= 1  # torchvision cuts off where those files round
    np.testing.assert_array_equal(text.labels, arrays["labels"])
