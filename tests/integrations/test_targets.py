"""The images of a run, opened as its models take them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_adaplr.core.models import Classifier, ModelSpec, build
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.progress import Progress
from ray_adaplr.errors import InputError
from ray_adaplr.integrations.targets import open_images

QUIET = Progress(quiet=True)
PICTURES = np.zeros((4, 20, 20, 1), np.uint8)


def model(side: int | None) -> Classifier:
    size = None if side is None else (side, side)
    return build(ModelSpec(num_classes=2, channels=1, width=4, image_size=size))


def test_what_options_leave_open_follows_the_first_model_that_says_its_size(tmp_path: Path) -> None:
    models = [model(None), model(16), model(8)]
    followed, larger = open_images(models, PICTURES, tmp_path / "followed", PrepareOptions(), QUIET)
    assert (followed.image_shape, larger) == ((16, 16, 1), None)
    asked, _ = open_images(models, PICTURES, tmp_path / "asked", PrepareOptions(size=12), QUIET)
    assert asked.image_shape == (12, 12, 1)


@pytest.mark.parametrize(("knows", "sees"), [(8, None), (16, None), (18, 18), (64, 20)])
def test_guests_get_larger_images_where_they_know_a_larger_size_and_the_pictures_have_it(
    knows: int, sees: int | None, tmp_path: Path
) -> None:
    store, larger = open_images([model(16)], PICTURES, tmp_path, PrepareOptions(), QUIET, [model(knows)])
    assert store.image_shape == (16, 16, 1)
    assert (larger and larger.image_shape[0]) == sees


def test_images_for_guests_without_guests_are_refused_before_any_are_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name one with --guest"):
        open_images([model(16)], PICTURES, tmp_path / "run", PrepareOptions(), QUIET, guest_images=PICTURES)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", [{"size": 32}, {"channels": 3}, {"aspect": "crop"}, {"unlabelled": True}])
def test_options_that_would_do_nothing_to_a_store_are_refused(option: dict[str, Any], tmp_path: Path) -> None:
    store, _ = open_images([model(16)], PICTURES, tmp_path / "first", PrepareOptions(), QUIET)
    with pytest.raises(InputError, match=f"--{min(option)} says how pictures become a store, and the target is one"):
        open_images([model(16)], store.paths[0], tmp_path / "second", PrepareOptions(**option), QUIET)
    assert not (tmp_path / "second").exists()
