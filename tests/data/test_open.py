"""`as_store` takes whatever people have their images in, or says in one sentence what it cannot take."""

import io

import numpy as np
import pandas as pd
import pytest
import torch
from image_trees import class_folders, picture, save
from torch.utils.data import Dataset, Subset, TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor

from ray_adaplr.data.open import as_store
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.progress import Progress
from ray_adaplr.errors import InputError

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)


@pytest.fixture
def photos(tmp_path):
    return class_folders(tmp_path / "photos", suffix="png", size=(8, 8))


def wanted(photos):
    names = [f"{name}/00{i}.png" for name in ("cat", "dog") for i in range(3)]
    return np.stack([np.asarray(picture(100 * (i // 3) + i % 3, (8, 8))) for i in range(6)]), names


class Dictionaries(Dataset):
    """Items as those of Hugging Face, with its columns."""

    column_names = ("image", "label")
    features = True

    def __init__(self, photos):
        self.images = wanted(photos)[0]

    def __len__(self):
        return 6

    def __getitem__(self, row):
        return [0, 0, 0, 1, 1, 1] if row == "label" else {"image": self.images[row], "label": row // 3}


def forms(photos):
    pixels, names = wanted(photos)
    files = [photos / name for name in names]
    (photos.parent / "plain.txt").write_text("\n".join(map(str, files)))
    (photos.parent / "named.csv").write_text("path,label\n" + "".join(f"photos/{n},{n[:3]}\n" for n in names))
    (photos.parent / "other.csv").write_text("id;label;file\n" + "".join(f"7;{n[:3]};photos/{n}\n" for n in names))
    (photos.parent / "bare.csv").write_text("\n".join(f"photos/{n},{n[:3]}" for n in names))
    folder = ImageFolder(photos, ToTensor())
    return {
        "folder": photos,
        "list of files": files,
        "tuple of texts": tuple(map(str, files)),
        "list file": photos.parent / "plain.txt",
        "CSV": photos.parent / "named.csv",
        "CSV with other columns": photos.parent / "other.csv",
        "CSV without header": photos.parent / "bare.csv",
        "frame": pd.DataFrame({"path": files, "label": [n[:3] for n in names]}),
        "frame without labels": pd.DataFrame({"filename": list(map(str, files)), "size": 8}),
        "array": pixels,
        "channels first": np.moveaxis(pixels, -1, 1),
        "tensor": torch.from_numpy(pixels),
        "float tensor": torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255,
        "ImageFolder": folder,
        "part of an ImageFolder": Subset(folder, range(6)),
        "TensorDataset": TensorDataset(torch.from_numpy(pixels), torch.arange(6)),
        "dictionaries": Dictionaries(photos),
    }


LABELLED = {"folder", "CSV", "CSV with other columns", "CSV without header", "frame", "ImageFolder", "dictionaries"}


@pytest.mark.parametrize(
    "form",
    [
        "folder",
        "list of files",
        "tuple of texts",
        "list file",
        "CSV",
        "CSV with other columns",
        "CSV without header",
        "frame",
        "frame without labels",
        "array",
        "channels first",
        "tensor",
        "float tensor",
        "ImageFolder",
        "part of an ImageFolder",
        "TensorDataset",
        "dictionaries",
    ],
)
def test_every_form_of_images_gives_the_same_store(tmp_path, photos, form):
    target = forms(photos)[form]
    store = as_store(target, tmp_path / "run", model_classes=("dog", "cat", "fox") if form != "dictionaries" else ())
    np.testing.assert_array_equal(store.read(np.arange(6)), wanted(photos)[0])
    truth = store.ground_truth()
    assert (truth is not None) == (form in LABELLED)
    if truth is not None and store.classes[0] == "dog":
        assert [store.classes[label] for label in truth] == ["cat"] * 3 + ["dog"] * 3
    again = as_store(target, tmp_path / "run", model_classes=("dog", "cat", "fox") if form != "dictionaries" else ())
    assert again.paths == store.paths, "a resumed run finds its store"


def test_several_targets_are_one_union(tmp_path, photos):
    assert len(as_store([photos, PIXELS], tmp_path / "run")) == 12


def test_a_target_that_is_named_twice_is_refused(tmp_path, photos):
    with pytest.raises(InputError, match="named twice, and its images would count double"):
        as_store([photos, str(photos) + "/"], tmp_path / "run")


def test_targets_of_one_name_are_told_apart(tmp_path, photos):
    other = class_folders(tmp_path / "other" / photos.name, ("cat", "dog"), suffix="png", size=(8, 8))
    union = as_store([photos, other], tmp_path / "folders")
    assert union.domains == [photos.name, f"{photos.name}-1"]
    files = [str(file) for file in sorted(photos.rglob("*.png"))]
    frame = pd.DataFrame({"path": files})
    assert len(as_store([frame, frame[:2]], tmp_path / "frames")) == 8
    for prefix in ("", "guests-"):  # the images that guests look at have the names of the run's own
        union = as_store([files, files[:2], PIXELS], tmp_path / "lists", PrepareOptions(size=8), prefix=prefix)
        assert union.domains == ["images-0", "images-1", "images-2"]


def test_a_folder_of_several_domains_is_not_taken_for_one_in_silence(tmp_path):
    for camera in ("cam1", "cam2"):
        class_folders(tmp_path / "photos" / camera, suffix="png", size=(8, 8))
    photos, heard = tmp_path / "photos", io.StringIO()
    both = f"{photos}/cam1, {photos}/cam2 hold folders of the same names"
    with pytest.raises(InputError, match=f"{both}, which are classes: name each by itself, or give adapt --unlabelled"):
        as_store([PIXELS, photos], tmp_path / "run", model_classes=("cat", "dog"))
    assert not (tmp_path / "run").exists()
    each = as_store([photos / "cam1", photos / "cam2"], tmp_path / "each", model_classes=("cat", "dog"))
    assert (each.domains, len(each)) == (["cam1", "cam2"], 12)
    assert len(as_store(photos, tmp_path / "all", PrepareOptions(unlabelled=True), ("cat", "dog"))) == 12
    assert len(as_store(photos, tmp_path / "nameless", model_classes=(), progress=Progress(heard))) == 12
    assert f"{both}, and are one target: if the names are classes" in heard.getvalue()


def test_class_folders_with_equal_subfolders_a_link_and_numbers_are_no_domains(tmp_path):
    sides = tmp_path / "sides"
    for name in ("cat", "dog"):
        class_folders(sides / name, ("left", "right"), suffix="png", size=(8, 8))
    assert list(as_store(sides, tmp_path / "run", model_classes=("cat", "dog")).ground_truth()) == [0] * 6 + [1] * 6
    years, heard = tmp_path / "years", io.StringIO()
    class_folders(years / "2024", suffix="png", size=(8, 8))
    (years / "latest").symlink_to(years / "2024")
    assert len(as_store(years, tmp_path / "linked", model_classes=("cat", "dog"))) == 6
    for year in ("2023", "2024"):
        class_folders(tmp_path / "months" / year, ("01", "02"), suffix="png", size=(8, 8))
    as_store(tmp_path / "months", tmp_path / "numbers", model_classes=(), progress=Progress(heard))
    assert "the same names" not in heard.getvalue()


def test_subfolders_that_name_no_class_of_the_model_are_no_classes(tmp_path):
    photos = class_folders(tmp_path / "photos", ("2024-01", "2024-02"), suffix="png", size=(8, 8))
    store = as_store(photos, tmp_path / "run", model_classes=("cat", "dog"))
    assert (store.ground_truth(), store.classes) == (None, ["cat", "dog"])
    named = as_store(photos, tmp_path / "named", PrepareOptions(classes=("cat", "dog")), model_classes=())
    assert (named.ground_truth(), named.classes) == (None, ["cat", "dog"])
    unnamed = as_store(photos, tmp_path / "unnamed", model_classes=())
    assert (unnamed.ground_truth(), unnamed.classes) == (None, []), "a model without names has no class 2024-01"
    assert as_store(photos, tmp_path / "to evaluate").classes == ["2024-01", "2024-02"]
    with pytest.raises(InputError, match=r"'2024-01'.*--unlabelled"):
        as_store(photos, tmp_path / "other", PrepareOptions(classes=("cat", "dog")))


def test_two_of_ten_classes_keep_the_models_numbers_and_a_foreign_one_is_refused(tmp_path, photos):
    ten = (*(f"class-{i}" for i in range(8)), "dog", "cat")
    store = as_store(photos, tmp_path / "run", model_classes=ten)
    assert (store.classes, store.ground_truth().tolist()) == (list(ten), [9, 9, 9, 8, 8, 8])
    save(photos / "yak" / "0.png", picture(0, (8, 8)))
    with pytest.raises(InputError, match=r"'yak'.* take its images out, or give --unlabelled to prepare or adapt"):
        as_store(photos, tmp_path / "other", model_classes=ten)
    assert as_store(photos, tmp_path / "third", PrepareOptions(unlabelled=True), ten).ground_truth() is None


def test_a_size_that_is_asked_for_holds_for_every_form(tmp_path, photos):
    for number, target in enumerate((photos, PIXELS, ImageFolder(photos), TensorDataset(torch.from_numpy(PIXELS)))):
        store = as_store(target, tmp_path / f"run{number}", PrepareOptions(size=12, channels=1))
        assert store.image_shape == (12, 12, 1)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (None, "NoneType"),
        (7, "int"),
        ({"a": 1}, "dict"),
        (b"bytes", "bytes"),
        ((row for row in ()), "generator"),
        ([], "no store was named"),
        ("/nowhere", "does not exist"),
        (PIXELS[0, 0], "shape"),
        (PIXELS.astype(float) - 100, r"not normalised"),
        (torch.full((2, 3, 8, 8), float("nan")), "not normalised"),
        (PIXELS.astype(complex), "images"),
        (pd.DataFrame({"name": ["x"]}), "called path"),
        (pd.DataFrame({"path": []}), "0 rows"),
        (pd.DataFrame({"path": ["a.png", None]}), "without a path"),
        (pd.DataFrame({"path": ["a.png"], "label": [float("nan")]}), "label nan"),
        (TensorDataset(torch.zeros(0, 3, 8, 8)), "empty"),
        (TensorDataset(torch.zeros(4)), "is not an image"),
        ([np.zeros((8, 8, 3), np.uint8), np.zeros((8, 9, 3), np.uint8)], "one image"),
        (TensorDataset(torch.zeros(4, 3, 8, 8) - 2), "not normalised"),
        (torch.zeros(3, 8, 8), "looks like one image"),
        ([torch.zeros(3, 8, 8), torch.zeros(3, 8, 8)], "looks like one image"),
        (torch.full((2, 3, 8, 8), 1.2), "may be of 0..1 or of 0..255"),
        (TensorDataset(torch.stack([torch.ones(3, 8, 8), torch.full((3, 8, 8), 200.0)])), "give all as uint8"),
    ],
)
def test_what_is_no_target_gets_one_sentence_and_leaves_nothing(tmp_path, target, words):
    with pytest.raises(InputError, match=words) as caught:
        as_store(target, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_run_inside_the_folder_of_its_images_is_refused_and_leaves_no_stores_there(tmp_path, photos):
    before = sorted(photos.rglob("*"))
    for out in (photos, photos / "runs" / "1"):
        with pytest.raises(InputError, match="inside the folder of the images"):
            as_store(photos, out)
    assert sorted(photos.rglob("*")) == before


def test_a_folder_whose_subfolders_are_no_classes_is_unlabelled_and_says_so(photos, tmp_path, capsys, caplog):
    (photos / "__MACOSX" / "cat").mkdir(parents=True)
    (photos / "__MACOSX" / "cat" / "._000.png").write_bytes(b"no picture")
    (photos / "__MACOSX" / "000.png").write_bytes(b"no picture")
    assert len(as_store(photos, tmp_path / "usual", model_classes=["cat", "dog"])) == 6
    assert as_store(photos, tmp_path / "a", model_classes=["ant", "bee"], progress=Progress()).ground_truth() is None
    assert "is a class of the model (ant, bee), so none is a label" in capsys.readouterr().err
    assert as_store(photos, tmp_path / "b", model_classes=["Cat", "Dog"]).ground_truth() is None
    assert "so none is a label; 'cat' is 'Cat' but for capitals" in caplog.text
