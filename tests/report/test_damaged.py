"""Cut, damaged and odd files: the page names what it could not read, and shows the rest."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ray_adaplr.report.live import describe_run
from ray_adaplr.report.page import comparison_page, report_page
from ray_adaplr.storage.run_reader import read_run

Make = Callable[..., Path]
FILES = ["metrics.jsonl", "labels.parquet", "summary.json", "config.toml", "run.json"]
pytestmark = pytest.mark.usefixtures("unrendered")


@pytest.fixture
def run(make_run: Make) -> Path:
    return make_run(epochs=3, classes=["a", "b", "c"], n=60)


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_off_in_the_middle_is_left_out_and_named(run: Path, name: str) -> None:
    content = (run / name).read_bytes()
    (run / name).write_bytes(content[: len(content) // 2] if name != "config.toml" else b"alpha = ")
    page = report_page(run)
    assert (f"{name} is cut off" in page) == (name != "metrics.jsonl")  # its last line may just be in the writing
    assert ("No sign of harm" in page) == (name == "metrics.jsonl")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b"", b"\0" * 64, b"\xff\xfe{", b"[" * 100_000, b"[]", b"null\n", b'{"a": NaN'])
def test_rubbish_is_never_a_traceback(run: Path, name: str, content: bytes) -> None:
    (run / name).write_bytes(content)
    assert "<h1>run</h1>" in report_page(run)
    assert "run · " in describe_run(read_run(run))


@pytest.mark.parametrize("name", FILES)
def test_rubbish_beside_another_run_is_never_a_traceback(make_run: Make, run: Path, name: str) -> None:
    (run / name).write_bytes(b"null\n")
    assert "2 runs side by side" in comparison_page([run, make_run("other", epochs=1, classes=["a", "b"], n=20)])


def test_broken_lines_of_the_metrics_are_counted(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([lines[0], lines[1][:50], "[]", *lines[2:]]) + "\n")
    page = report_page(run)
    assert "metrics.jsonl (2 of 5 lines) is cut off, altered or not readable" in page
    assert "No sign of harm" not in page


ODD = {
    "metrics.jsonl": [
        {"stage": "refine", "epoch": 10**12, "gamma": 0.5},
        {"stage": "refine", "epoch": -1},
        {"stage": "refine", "epoch": True},
        {"stage": "refine", "epoch": 3, "gamma": "high", "reassigned": [], "agreement": {}, "seconds": "x"},
        {"stage": "refine", "epoch": 3, "collapsed": 5, "confidence_histogram": 7},
        {"stage": "refine", "epoch": 3, "confidence_histogram": ["a"], "confidence_histogram_noisy": [1, 2]},
        {"stage": ["refine"], "epoch": 3},
    ],
    "summary.json": [
        {"classes": 5, "warnings": "text", "seconds": [1], "versions": 3, "target_per_domain": [1]},
        {"labels_per_domain": {"a": 1, "b": {"num_images": "x", "changed_share": 0.5, "hcs_share": 0.5}}},
        {"labels_per_domain": ["a"]},
        {"num_classes": 2_000_000_000, "changed_share": "a", "hcs_share": None, "seed": {}},
        {"noise_before": "x", "noise_after": [], "classes": [None, 1, {}]},
    ],
    "run.json": [{"target": 5, "command": ["a"], "classes": "abc"}, {"target": ["/dev/null"]}, {"target": [None]}],
}


@pytest.mark.parametrize(("name", "content"), [(name, value) for name, values in ODD.items() for value in values])
def test_odd_values_are_never_a_traceback(run: Path, name: str, content: dict) -> None:
    text = json.dumps(content) + "\n"
    (run / name).write_text((run / name).read_text() + text if name == "metrics.jsonl" else text)
    assert "<h1>run</h1>" in report_page(run)
    assert "2 runs side by side" in comparison_page([run, run])
    assert "run · " in describe_run(read_run(run))


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("refined_label", pa.array([2_000_000_000] * 60)),
        ("refined_label", pa.array([-1] * 60)),
        ("initial_label", pa.array([None] * 60, pa.int32())),
        ("initial_label", pa.array(["cat"] * 60)),
        ("confidence", pa.array([[0.5]] * 60)),
        ("high_confidence", pa.array([None] * 60, pa.bool_())),
        ("id", pa.array([None] * 60, pa.string())),
    ],
)
def test_a_table_of_labels_that_cannot_be_right_is_left_out(run: Path, column: str, values: pa.Array) -> None:
    table = pq.read_table(run / "labels.parquet")
    pq.write_table(table.set_column(table.column_names.index(column), column, values), run / "labels.parquet")
    page = report_page(run)
    assert "labels.parquet is cut off, altered or not readable" in page
    assert 'class="card"' not in page


def test_images_that_were_damaged_give_way_to_a_sentence(run: Path) -> None:
    store = Path(read_run(run).targets[0])
    for file in store.rglob("*"):
        if file.is_file():
            file.write_bytes(b"\0" * 100)
    assert "could not be read from" in report_page(run)


def test_an_empty_table_has_a_report(run: Path) -> None:
    pq.write_table(pq.read_table(run / "labels.parquet").slice(0, 0), run / "labels.parquet")
    assert "<h1>run</h1>" in report_page(run)
