"""Ray Data comes in: pixels, encoded images and paths become the same store, in order."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ray_adaplr import AdaPLR, Config, ImageStore, ScalingConfig
from ray_adaplr.data.open import as_store
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.errors import InputError

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("unrendered")]
CLASSES = ["ant", "bee", "cat"]


def encoded(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def rows(pictures: np.ndarray, image: str = "image") -> list[dict[str, Any]]:
    return [{image: pixels, "label": CLASSES[i % 3], "id": f"row {i}"} for i, pixels in enumerate(pictures)]


def check(store: ImageStore, pictures: np.ndarray) -> None:
    truth = store.ground_truth()
    assert truth is not None
    assert store.classes == CLASSES
    assert truth.tolist() == [i % 3 for i in range(len(pictures))]
    assert store.ids.to_pylist() == [f"row {i}" for i in range(len(pictures))]
    assert np.array_equal(store.read(np.arange(len(pictures))), pictures)


def test_pixels_and_encoded_images_are_targets_and_are_found_again(
    ray_cluster: Any, tmp_path: Path, pictures: np.ndarray
) -> None:
    import ray.data

    pixels = ray.data.from_items(rows(pictures), override_num_blocks=4)
    store = as_store(pixels, tmp_path / "run")
    check(store, pictures)
    assert as_store(pixels, tmp_path / "run").paths == store.paths  # a resumed run's
    packed = [{**row, "bytes": encoded(row.pop("image"))} for row in rows(pictures)]
    check(as_store(ray.data.from_items(packed), tmp_path / "packed"), pictures)
    changed = pictures.copy()
    changed[7] = 0
    assert as_store(ray.data.from_items(rows(changed)), tmp_path / "run").paths != store.paths
    grey = as_store(pixels, tmp_path / "grey", PrepareOptions(size=8, channels=1, unlabelled=True))
    assert (grey.image_shape, grey.ground_truth()) == ((8, 8, 1), None)


def test_a_ray_dataset_of_files_is_adapted_to(
    ray_cluster: Any, source_folder: Path, tmp_path: Path, pictures: np.ndarray
) -> None:
    import ray.data

    for i, pixels in enumerate(pictures[:20]):
        Image.fromarray(pixels).save(tmp_path / f"{i:02}.png")
    files = ray.data.read_images([str(tmp_path / f"{i:02}.png") for i in range(20)], include_paths=True)
    quick = Config(epochs=1, distill_epochs=1, warm_start_epochs=1, n_e=2)
    fit = AdaPLR(quick, ScalingConfig(engine="local"), verbose=False).fit
    result = fit(source_folder, files, tmp_path / "run", channels=1)
    assert sorted(result.labels["id"].to_pylist()) == [str(tmp_path / f"{i:02}.png") for i in range(20)]


def test_what_cannot_be_used_gets_a_sentence(ray_cluster: Any, tmp_path: Path, pictures: np.ndarray) -> None:
    import ray.data

    broken = [{"bytes": encoded(pixels)} for pixels in pictures[:20]] + [{"bytes": b"no image"}]
    uneven = [{"image": pixels} for pixels in pictures[:20]] + [{"image": pictures[0, :8, :8]}]
    for items, more, words in (
        ([{"x": 1}], {}, r"no column `image` \(it has x\)"),
        (rows(pictures[:2]), {"label_column": "kind"}, "no column `kind`"),
        (rows(pictures[:2]), {"image_column": "photo"}, "no column `photo`"),
        ([{"image": pictures[0, :8]}], {}, "squares of one size"),
        (broken, {}, "row 20 of the Ray dataset is not an image"),
        (uneven, {}, "row 20 of the Ray dataset is not an image .it has another size"),
    ):
        with pytest.raises(InputError, match=words) as caught:
            as_store(ray.data.from_items(items), tmp_path / "run", PrepareOptions(**more))
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
