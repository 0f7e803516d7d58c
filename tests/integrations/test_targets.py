"""The images of a run, opened as its models take them."""

import copy
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ray_adaplr.config import Config
from ray_adaplr.core.models import Classifier, ModelSpec, build
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.data.store_writer import write_store
from ray_adaplr.errors import InputError
from ray_adaplr.integrations.targets import open_images
from ray_adaplr.storage.models import fingerprint
from ray_adaplr.storage.run import Run

QUIET = Progress(quiet=True)
PICTURES = np.zeros((4, 20, 20, 1), np.uint8)


def model(side: int | None) -> Classifier:
    size = None if side is None else (side, side)
    return build(ModelSpec(num_classes=2, channels=1, width=4, image_size=size))


def test_what_options_leave_open_follows_the_first_model_that_says_its_size(tmp_path: Path) -> None:
    models = [model(None), model(16), model(8)]
    followed, larger = open_images(models, PICTURES, tmp_path / "followed", PrepareOptions(), QUIET)
    assert (followed.image_shape, larger) == ((16, 16, 1), None)
    asked, _ = open_images([model(None)], PICTURES, tmp_path / "asked", PrepareOptions(size=12), QUIET)
    assert asked.image_shape == (12, 12, 1)


def test_a_size_that_a_model_does_not_take_is_refused_before_images_are_read(tmp_path: Path) -> None:
    models = [model(None), model(16), model(8)]
    with pytest.raises(InputError, match="--size 12: the model takes images of 8x8 and 16x16; leave --size out"):
        open_images(models, PICTURES, tmp_path / "run", PrepareOptions(size=12), QUIET)
    assert not (tmp_path / "run").exists()
    smaller = PrepareOptions(size=99, at_most=True)  # which the pictures decide
    assert open_images([model(20)], PICTURES, tmp_path / "run", smaller, QUIET)[0].image_shape == (20, 20, 1)


@pytest.mark.parametrize(("knows", "sees"), [(8, None), (16, None), (18, 18), (64, 20)])
def test_guests_get_larger_images_where_they_know_a_larger_size_and_the_pictures_have_it(
    knows: int, sees: int | None, tmp_path: Path
) -> None:
    store, larger = open_images([model(16)], PICTURES, tmp_path, PrepareOptions(), QUIET, [model(knows)])
    assert store.image_shape == (16, 16, 1)
    assert (larger and larger.image_shape[0]) == sees


def test_a_colour_guest_of_a_grey_source_sees_colours_where_there_are_any(tmp_path: Path) -> None:
    colours = np.zeros((4, 20, 20, 3), np.uint8)
    guest = build(ModelSpec(num_classes=2, channels=3, width=4, image_size=(16, 16)))
    for pictures, channels in ((colours, 3), (PICTURES, 1)):
        out = tmp_path / str(channels)
        store, larger = open_images([model(16)], pictures, out, PrepareOptions(), QUIET, [guest])
        assert (store.image_shape, larger and larger.image_shape) == ((16, 16, 1), (16, 16, channels))
    _, larger = open_images([model(16)], colours, tmp_path / "asked", PrepareOptions(channels=1), QUIET, [guest])
    assert larger is None


def test_guests_look_at_several_targets_of_unlike_pictures_in_one_size_and_in_colours(tmp_path: Path) -> None:
    colours = np.zeros((4, 30, 30, 3), np.uint8)
    guest = build(ModelSpec(num_classes=2, channels=3, width=4, image_size=(40, 40)))
    both = [PICTURES, colours]
    store, larger = open_images([model(16)], both, tmp_path / "arrays", PrepareOptions(), QUIET, [guest])
    assert (store.image_shape, larger and larger.image_shape) == ((16, 16, 1), (40, 40, 3))
    assert larger is not None
    assert larger.ids.equals(store.ids)
    write_store(tmp_path / "kept", [(list("abcd"), PICTURES[:, :16, :16])], classes=[], domain="kept")
    mixed = [str(tmp_path / "kept"), colours]  # of the first there is nothing larger
    store, larger = open_images([model(16)], mixed, tmp_path / "mixed", PrepareOptions(), QUIET, [guest])
    assert (len(store), larger) == (8, None)


def test_images_for_guests_without_guests_are_refused_before_any_are_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name one with --guest"):
        open_images([model(16)], PICTURES, tmp_path / "run", PrepareOptions(), QUIET, guest_images=PICTURES)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", [{"size": 32}, {"channels": 3}, {"aspect": "crop"}])
def test_options_that_would_do_nothing_to_a_store_are_refused(option: dict[str, Any], tmp_path: Path) -> None:
    store, _ = open_images([model(16)], PICTURES, tmp_path / "first", PrepareOptions(), QUIET)
    with pytest.raises(InputError, match=f"--{min(option)} says how pictures become a store, and the target is one"):
        open_images([model(16)], store.paths[0], tmp_path / "second", PrepareOptions(**option), QUIET)
    assert not (tmp_path / "second").exists()


def test_a_store_may_be_taken_as_unlabelled_and_stays_so_on_its_way_to_another_process(tmp_path: Path) -> None:
    named = {"classes": ["ok", "torn", "worn"], "domain": "parts", "truth": np.array([0, 1, 2, 0])}
    write_store(tmp_path / "store", [(list("abcd"), PICTURES)], **named)
    options = PrepareOptions(unlabelled=True)
    store, _ = open_images([model(20)], str(tmp_path / "store"), tmp_path / "run", options, QUIET)
    for seen in (store, pickle.loads(pickle.dumps(store))):
        assert seen.ground_truth() is None
        assert seen.classes == []  # of three, where the model has two
    assert not (tmp_path / "run").exists()


def test_a_run_of_another_model_or_of_other_classes_is_refused_before_images_are_read(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    Image.fromarray(PICTURES[0, :, :, 0]).save(tmp_path / "pictures" / "a.png")
    target, out, named = str(tmp_path / "pictures"), tmp_path / "run", model(16)
    named.spec = named.spec.model_copy(update={"classes": ("ok", "torn")})
    store, _ = open_images([named], target, out, PrepareOptions(), QUIET)
    origin = {"source_fingerprint": fingerprint(named), "classes": ["ok", "torn"]}
    origin["target_fingerprint"] = store.fingerprint
    Run(out).claim()
    Run(out).begin(Config(), {**origin, "given_labels": "some", "guest_fingerprint": ""})
    open_images([named], target, out, PrepareOptions(), QUIET)
    renamed = copy.deepcopy(named)
    renamed.spec = renamed.spec.model_copy(update={"classes": ("ok", "worn")})
    for other, words in (
        (renamed, "a run of other class names"),
        (build(named.spec, 1), "a run of another source model"),
    ):
        with pytest.raises(InputError, match=words):
            open_images([other], target, out, PrepareOptions(), QUIET)
    assert len(list((out / "stores").iterdir())) == 1
    open_images([renamed], target, out, PrepareOptions(), QUIET, force=True)


def test_calls_that_are_refused_and_files_that_were_only_touched_leave_no_store(tmp_path: Path) -> None:
    photos, run = tmp_path / "photos", Run(tmp_path / "run")
    photos.mkdir()
    for value in range(4):
        Image.new("L", (16, 16), value).save(photos / f"{value}.png")

    def open_again() -> list[str]:
        return open_images([model(16)], photos, tmp_path / "run", PrepareOptions(), QUIET)[0].paths

    paths = open_again()
    store = ImageStore.open(*paths)
    run.claim()
    origin = {"source_fingerprint": fingerprint(model(16)), "target_fingerprint": store.fingerprint}
    run.begin(Config(), {**origin, "given_labels": "", "guest_fingerprint": ""})
    for image in photos.iterdir():
        os.utime(image, (1e9, 1e9))
    assert open_again() == paths
    assert [each.name for each in (tmp_path / "run/stores").iterdir()] == ["0"]
    manifest = (tmp_path / "run/stores/0/store.json").stat().st_mtime_ns
    assert open_again() == paths
    assert (tmp_path / "run/stores/0/store.json").stat().st_mtime_ns == manifest  # nothing was made again
    Image.new("L", (16, 16), 99).save(photos / "3.png")
    with pytest.raises(InputError, match="holds a run of other images"):
        open_again()
    with pytest.raises(InputError, match="holds a run of other images"):
        open_images([model(16)], PICTURES, tmp_path / "run", PrepareOptions(), QUIET)
    assert [each.name for each in (tmp_path / "run/stores").iterdir()] == ["0"]
