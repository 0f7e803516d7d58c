"""The course of a run of the paper's rows, taken from its folder while it is still under way."""

import json
from pathlib import Path

import pytest

from benchmarks.paper_curves import main, taken
from ray_adaplr.errors import InputError
from ray_adaplr.storage.run_reader import read_run


def lines(folder: Path, count: int, **more: object) -> None:
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("seed = 0\nalpha = 0.9\n")
    told = {"stage": "refine", "gamma": 0.25, "collapsed": [], "seconds": 3.0, "confidence_histogram": [1, 3], **more}
    (folder / "metrics.jsonl").write_text("".join(json.dumps({**told, "epoch": i}) + "\n" for i in range(count)))


def test_an_unfinished_run_gives_a_row_with_its_epochs_so_far(tmp_path: Path) -> None:
    run = tmp_path / "svhn-mnist/seed-0"
    lines(run, 12, noise=0.5, hcs_noise=None, min_class_share=0.1, confidence_histogram_noisy=[1, 1])
    out, picture = tmp_path / "curves.json", tmp_path / "curves.png"
    main([str(run), "--name", "as written", "--out", str(out), "--plot", str(picture)])
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["task"], row["epochs_done"], row["finished"], row["images"]) == ("svhn-mnist", 12, False, 4)
    assert row["by_epoch"]["gamma"] == [0.25] * 12
    assert list(row["histograms"]) == ["1", "10", "12"]  # those of figure 3, and the last
    assert picture.stat().st_size > 0


def test_a_run_without_ground_truth_is_refused(tmp_path: Path) -> None:
    lines(tmp_path / "run", 2)
    with pytest.raises(InputError, match="needs ground truth"):
        taken(read_run(tmp_path / "run"))
