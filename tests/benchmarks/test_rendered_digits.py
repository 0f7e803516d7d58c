from pathlib import Path

import matplotlib
import numpy as np
import pytest

from benchmarks import rendered_digits
from benchmarks.rendered_digits import find_fonts, render
from ray_adaplr.data.ingest import prepare
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.errors import InputError

FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"


def test_fonts_without_digits_are_left_out_and_none_at_all_is_refused(tmp_path: Path) -> None:
    names = {path.name for path in find_fonts(FONTS)}
    assert "DejaVuSans.ttf" in names
    assert "STIXSizOneSymReg.ttf" not in names, "brackets and sums, no digits"
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    with pytest.raises(InputError, match="no TrueType or OpenType font with digits"):
        find_fonts(tmp_path)


def test_the_same_seed_renders_the_same_digits_and_all_classes_equally_often() -> None:
    fonts = find_fonts(FONTS)
    images, labels = render(fonts, 40, seed=3)
    again, _ = render(fonts, 40, seed=3)
    others, _ = render(fonts, 40, seed=4)
    assert images.shape == (40, 32, 32, 3)
    assert images.dtype == np.uint8
    np.testing.assert_array_equal(images, again)
    assert (images != others).any()
    assert np.bincount(labels).tolist() == [4] * 10
    assert (images.std((1, 2)).max(1) > 10).all(), "each shows something"


def test_the_folder_has_rendered_digits_as_the_domain_synth_beside_the_others(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    np.savez(data / "mnist_train.npz", images=np.zeros((3, 28, 28), np.uint8), labels=np.arange(3))
    words = ["--fonts", str(FONTS), "--data", str(data), "--out", str(out), "--train", "20", "--test", "10"]
    rendered_digits.main(words)
    store = prepare("digit5/synth", str(tmp_path / "store"), PrepareOptions(root=str(out), split="test"))
    assert len(store) == 10
    assert np.load(out / "mnist_train.npz")["images"].shape == (3, 28, 28)
