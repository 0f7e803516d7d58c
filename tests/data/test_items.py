"""Items of a Dataset go through the same steps as files, and keep their own classes."""

import io

import numpy as np
import pytest
from image_trees import picture, save
from PIL import Image

from ray_adaplr.data.open import as_store
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.errors import InputError

COLOURS = picture(3, (8, 8))


class Items:
    """A Dataset of pairs, as torchvision's are."""

    def __init__(self, images, **known):
        self.images = images
        vars(self).update(known)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, row):
        return self.images[row], 0


def turned():
    """A photograph whose camera lay on its side."""
    image, exif = Image.new("RGB", (16, 16)), Image.Exif()
    image.paste((255, 255, 255), (0, 0, 8, 16))
    exif[0x112] = 6
    return image, {"exif": exif}


ODD = {
    "palette": (COLOURS.quantize(16), {}),
    "orientation": turned(),
    "transparent": (Image.new("RGBA", (16, 16), (9, 9, 9, 0)), {}),
    "transparent grey": (Image.new("LA", (16, 16), (50, 128)), {}),
    "16 bit": (Image.fromarray(np.full((16, 16), 30000, np.uint16)), {}),
    "one bit": (Image.new("1", (16, 16), 1), {}),
    "grey": (picture(1, (16, 16), "L"), {}),
}


def test_white_that_was_resized_stays_white(tmp_path):
    white = np.full((3, 8, 8), np.nextafter(np.float32(1), np.float32(2)))
    for number, target in enumerate((Items([white] * 2), np.stack([white] * 2))):
        assert as_store(target, tmp_path / str(number)).read(np.arange(2)).min() == 255
    floats = Items([np.zeros((8, 8)), np.full((8, 8), 200.0)])  # black says nothing of the scale
    assert as_store(floats, tmp_path / "floats").read(np.arange(2))[:, 0, 0, 0].tolist() == [0, 200]


@pytest.mark.parametrize("form", ["picture", "path", "bytes"])
@pytest.mark.parametrize("kind", ODD)
def test_an_item_is_read_like_a_file_of_the_same_image(tmp_path, kind, form):
    image, options = ODD[kind]
    file = save(tmp_path / "photo.png", image, **options)
    item = {"picture": Image.open(file), "path": str(file), "bytes": file.read_bytes()}[form]
    wanted = as_store([file], tmp_path / "files", PrepareOptions(size=16))
    found = as_store(Items([item] * 2), tmp_path / "items", PrepareOptions(size=16))
    assert found.image_shape == wanted.image_shape
    np.testing.assert_array_equal(found.read(np.array([1]))[0], wanted.read(np.array([0]))[0])


def test_the_users_own_picture_stays_as_it_is(tmp_path):
    image, options = turned()
    buffer = io.BytesIO()
    image.save(buffer, "PNG", **options)
    own = Image.open(buffer)
    as_store(Items([own]), tmp_path / "run", PrepareOptions(size=16))
    assert own.getexif()[0x112] == 6
    np.testing.assert_array_equal(np.asarray(own), np.asarray(image))


@pytest.mark.parametrize("place", [0, 1, 99])
def test_one_item_with_colours_makes_the_store_coloured(tmp_path, place):
    images = [picture(1, (8, 8), "L")] * 100
    images[place] = COLOURS
    store = as_store(Items(images), tmp_path / "run")
    assert store.image_shape == (8, 8, 3)
    np.testing.assert_array_equal(store.read(np.array([place]))[0], np.asarray(COLOURS))


def test_items_of_several_sizes_need_one_to_be_given_wherever_they_are(tmp_path):
    images = [picture(1, (8, 8))] * 100
    images[1] = picture(1, (9, 8))
    with pytest.raises(InputError, match="no common size; give a size"):
        as_store(Items(images), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("targets", "own", "model", "names"),
    [
        ([0, 0, 1], ["cat", "dog"], ("dog", "cat"), ["cat", "cat", "dog"]),
        ([0, 0, 1], ["2", "1"], ("1", "2"), ["2", "2", "1"]),
        ([0, 2, 1], ["0 - zero", "1 - one", "2 - two"], ("0", "1", "2"), ["0", "2", "1"]),  # as MNIST's are called
        (["dog", "cat", "cat"], ["cat", "dog"], (), ["dog", "cat", "cat"]),
        ([1, 0, 1], None, ("dog", "cat"), ["cat", "dog", "cat"]),
    ],
)
def test_numbers_of_a_dataset_stand_for_its_own_classes(tmp_path, targets, own, model, names):
    items = Items([COLOURS] * 3, targets=targets, classes=own)
    store = as_store(items, tmp_path / "run", model_classes=model)
    assert [store.classes[label] for label in store.ground_truth()] == names
    assert store.classes == list(model or own)


def test_a_class_of_a_dataset_that_the_model_does_not_know_is_refused(tmp_path):
    items = Items([COLOURS] * 3, targets=[0, 1, 1], classes=["cat", "yak"])
    with pytest.raises(InputError, match=r"'yak'.*--unlabelled"):
        as_store(items, tmp_path / "run", model_classes=("dog", "cat"))


def test_a_dataset_with_random_transforms_is_refused_and_leaves_no_store(tmp_path):
    class Shuffled(Items):
        def __getitem__(self, row):
            return (np.roll(np.asarray(COLOURS), next(turns), 1) if row == 2 else COLOURS), 0

    turns = iter(range(8))
    with pytest.raises(InputError, match="another image each time it is asked for one, such as item 2; leave random"):
        as_store(Shuffled([COLOURS] * 3), tmp_path / "run")
    assert not list(tmp_path.rglob("store.json"))


def test_an_array_of_another_type_is_refused_by_its_type(tmp_path):
    with pytest.raises(InputError, match="has images of the type bool; give uint8"):
        as_store(np.ones((4, 8, 8, 1), bool), tmp_path / "run")
