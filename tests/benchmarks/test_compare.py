"""Rivals on anybody's store: one table, with ground truth or without, and JSON where it is asked for."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import main
from ray_adaplr.data.store import ImageStore
from ray_adaplr.data.store_writer import write_store

QUICK = ["--epochs=1", *(f"--set={name}" for name in ("epochs=1", "distill_epochs=1", "warm_start_epochs=1", "n_e=2"))]


def rows_of(text: str) -> list[dict[str, str]]:
    head, _, *lines = ([cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines())
    return [dict(zip(head, line)) for line in lines]


def test_all_methods_stand_in_one_table_and_in_json(
    source_folder: Path, digit_stores: dict[str, ImageStore], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, file = digit_stores["optdigits"].paths[0], tmp_path / "figures.json"
    methods = ["--methods", "shot", "aad", "adaplr"]
    words = ["compare", "--source", str(source_folder), "--target", place, *methods, *QUICK, "--json", str(file)]
    assert main(words) == 0
    rows = rows_of(capsys.readouterr().out)
    assert [row["method"] for row in rows] == ["source", "shot", "aad", "adaplr"]
    assert all(0 <= float(row["accuracy"]) <= 1 and float(row["infomax"]) > 0 for row in rows)
    assert all(float(row["cpu_seconds"]) > 0 for row in rows[1:])
    assert len({row["infomax"] for row in rows}) == 4
    written = json.loads(file.read_text())
    assert [round(row["accuracy"], 3) for row in written["rows"]] == [float(row["accuracy"]) for row in rows]
    assert written["settings"]["distill_epochs"] == 1
    assert written["images"] == 300


def test_without_ground_truth_the_label_free_scores_are_the_same(
    source_folder: Path, digit_stores: dict[str, ImageStore], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labelled = digit_stores["optdigits"]
    ids, images = labelled.ids.to_pylist(), labelled.read(np.arange(len(labelled)))
    bare = write_store(tmp_path / "bare", [(ids, images)], classes=labelled.classes, domain="optdigits")
    found = []
    for place in (labelled.paths[0], bare.paths[0]):
        command = ["compare", "--source", str(source_folder), "--target", place, "--methods", "shot", *QUICK]
        assert main(command) == 0
        found.append(rows_of(capsys.readouterr().out))
    assert [row["accuracy"] for row in found[1]] == ["–", "–"]
    assert [row["infomax"] for row in found[0]] == [row["infomax"] for row in found[1]]


def test_a_model_that_is_not_there_gets_a_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["compare", "--source", str(tmp_path / "none"), "--target", str(tmp_path)]) == 2
    assert "there is no model at" in capsys.readouterr().err
