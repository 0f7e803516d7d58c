"""Reading runs, and the label-free signs of harm."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ray_adaplr.data.options import MOST_CLASSES
from ray_adaplr.storage.layout import LABEL_COLUMNS
from ray_adaplr.storage.run_reader import RunFolder, read_run

Make = Callable[..., Path]


def test_an_epoch_written_twice_counts_once_and_the_later_line_wins(make_run: Make) -> None:
    run = make_run(epochs=3)
    again = {"stage": "refine", "epoch": 1, "gamma": 0.77}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(again) + "\n")
    assert [record["epoch"] for record in read_run(run).refine] == [0, 1, 2]
    assert read_run(run).refine[1] == again


def test_half_lines_and_foreign_lines_are_skipped(tmp_path: Path) -> None:
    good = json.dumps({"stage": "refine", "epoch": 0, "gamma": 0.5})
    (tmp_path / "metrics.jsonl").write_bytes(f'[1]\n{good}\n{{"stage": "ref'.encode() + b"\xff\xc3")
    assert len(read_run(tmp_path).refine) == 1


def test_a_run_is_read_from_a_uri(make_run: Make) -> None:
    run = make_run(epochs=3)
    assert read_run(run.as_uri()).refine == read_run(run).refine


def test_a_healthy_run_gives_no_warning(make_run: Make) -> None:
    run = read_run(make_run(finished=False, epochs=40))
    assert run.warnings == []


def test_signs_of_harm_are_worked_out_when_the_run_did_not_get_to_its_summary(make_run: Make) -> None:
    run = make_run(finished=False)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (run / "metrics.jsonl").write_text("\n".join(json.dumps(line | {"collapsed": [3]}) for line in lines))
    assert any("dying out" in warning for warning in read_run(run).warnings)


def test_the_warnings_of_the_run_itself_are_taken_as_they_are(make_run: Make) -> None:
    run = make_run()
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"warnings": ["Stopped early."]}))
    assert read_run(run).warnings == ["Stopped early."]


def labelled_run(folder: Path, label: int) -> RunFolder:
    row = dict(zip(LABEL_COLUMNS, ("an image", 0, label, 0.9, True, 3), strict=True))
    pq.write_table(pa.Table.from_pylist([row]), folder / "labels.parquet")
    return read_run(folder)


def test_a_run_has_as_many_classes_as_a_store_may_have(tmp_path: Path) -> None:
    run = labelled_run(tmp_path, MOST_CLASSES - 1)
    assert (run.unread, len(run.classes)) == ([], MOST_CLASSES)
    assert len(labelled_run(tmp_path, 21_840).classes) == 21_841  # ImageNet-21k
    assert labelled_run(tmp_path, MOST_CLASSES).unread == ["labels.parquet"]
