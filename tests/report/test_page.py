"""The page of a run in any state, and the page of several runs."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ray_adaplr.errors import InputError
from ray_adaplr.report.gallery import choose_changed, data_uri
from ray_adaplr.report.page import comparison_page, report_page

Make = Callable[..., Path]


def test_a_finished_run_shows_verdict_figures_gallery_and_origin(page: str) -> None:
    assert "labels changed; " in page
    assert "No sign of harm. Noise fell from" in page
    for title in ("Gamma against noise", "Confidence over epochs", "Remaining noise over confidence"):
        assert title in page
    for title in ("Labels before and after", "Images in each class", "Members&#39; agreement", "Smallest class"):
        assert title in page
    assert re.search(r"\d+\.\d% in the inferred labels \(the diamond\)", page)
    assert page.count('class="card"') > 50
    assert "ray-adaplr adapt --source source" in page
    assert '<th scope="row">torch</th>' in page


def test_where_most_labels_are_unsure_the_verdict_says_so(make_run: Make) -> None:
    run = make_run()
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"hcs_share": 0.3}))
    assert "No sign of harm, but most labels are unsure: look at some before you use them." in report_page(run)


@pytest.mark.parametrize(
    ("written", "shown"), [({"remarks": ["Said."]}, True), ({"guests": ["Said."]}, True), ({"remarks": 5}, False)]
)
def test_what_was_said_of_the_first_labels_is_shown_also_of_a_run_of_an_earlier_version(
    make_run: Make, written: dict[str, object], shown: bool
) -> None:
    run = make_run()
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | written))
    assert ("<p>Said.</p>" in report_page(run)) == shown


def test_class_names_in_any_script_are_text_and_no_warnings(make_run: Make, recwarn: pytest.WarningsRecorder) -> None:
    page = report_page(make_run(classes=["猫", "собака", "حصان"], epochs=2))
    assert page.count("猫") > 3
    assert not [str(warning.message) for warning in recwarn if "Glyph" in str(warning.message)]


def test_nothing_is_fetched_from_elsewhere(page: str) -> None:
    assert not re.search(r"""(src|href)=["']?(https?:|//)""", page)
    assert "default-src 'none'" in page


def test_without_ground_truth_no_word_of_accuracy_or_noise_appears(make_run: Make) -> None:
    page = report_page(make_run(truth=False)).lower()
    for word in ("accura", "noise", "noisy", "ground truth", "diagnostic <", "mislabel"):
        assert word not in page


def test_ground_truth_figures_are_marked_as_a_diagnostic(page: str) -> None:
    assert 'Gamma against noise <span class="mark">diagnostic</span>' in page
    assert "A diagnostic from ground truth, which had no part in training." in page


def test_an_empty_folder_says_that_there_is_nothing_to_judge(tmp_path: Path) -> None:
    page = report_page(tmp_path)
    assert "Nothing to judge yet" in page
    assert "unfinished" in page


def test_a_run_killed_in_mid_epoch_shows_the_epochs_that_ended(make_run: Make) -> None:
    run = make_run(finished=False, epochs=8)
    (run / "labels.parquet").unlink()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([*lines[:5], lines[5][:40]]))
    page = report_page(run)
    assert "unfinished, 5 of 8 epochs" in page
    assert "5 epochs so far" in page
    assert "The labels are not written yet" in page


@pytest.mark.usefixtures("unrendered")
def test_warnings_stand_at_the_top(make_run: Make) -> None:
    run = make_run(finished=False)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (run / "metrics.jsonl").write_text("\n".join(json.dumps(line | {"gamma": 0.01}) for line in lines))
    page = report_page(run)
    assert "Gamma never rose above 0.01" in page
    assert "Look before you trust it" in page


@pytest.mark.usefixtures("unrendered")
def test_noise_that_rose_is_told_and_changes_before_the_first_epoch_are_dated_so(make_run: Make) -> None:
    run = make_run(epochs=3)
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"noise_before": 0.2, "noise_after": 0.25}))
    with (run / "config.toml").open("a") as file:
        file.write("warmup = 3\n")
    page = report_page(run)
    assert "But noise did not fall: from 20.0% to 25.0%" in page
    assert "at the start</small>" in page
    assert "epoch 1</small>" not in page
    assert "epoch 3</small>" in page, "the last of three epochs"


@pytest.mark.usefixtures("unrendered")
def test_images_that_cannot_be_reached_give_way_to_a_sentence(make_run: Make) -> None:
    run = make_run()
    (run / "run.json").write_text(json.dumps({"target": ["/nowhere/store"]}))
    page = report_page(run)
    assert "could not be read from /nowhere/store" in page
    assert 'class="card"' not in page


@pytest.mark.slow
def test_a_run_of_25000_images_stays_below_five_megabytes(large_page: Path) -> None:
    assert large_page.stat().st_size < 5_000_000
    assert re.search(r"600 of \d,\d{3} changed labels are shown, drawn in turn", large_page.read_text())


@pytest.mark.usefixtures("unrendered")
def test_large_images_leave_room_for_200_cards_in_five_megabytes(make_run: Make) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4000, 96, 96, 3), np.uint8)  # noise: the worst to compress
    page = report_page(make_run(n=4000, epochs=3, images=images))
    assert len(page.encode()) < 4_000_000
    shown = re.search(r"([\d,]+) of ([\d,]+) changed labels are shown", page)
    assert shown is not None
    assert int(shown[1].replace(",", "")) >= 200


def test_many_classes_fit_on_the_page(make_run: Make) -> None:
    page = report_page(make_run(n=2000, classes=[f"a class with a long name {i}" for i in range(345)]))
    assert len(page.encode()) < 5_000_000
    assert "The 20 of 345 classes with most of these" in page


def test_a_run_where_no_label_changed_has_a_report(make_run: Make) -> None:
    run = make_run(epochs=1)
    table = pq.read_table(run / "labels.parquet")
    pq.write_table(table.set_column(2, "refined_label", table["initial_label"]), run / "labels.parquet")
    assert "No label changed: here are the 120 least sure ones" in (page := report_page(run))
    assert 'value="unsure" checked' in page
    assert 'value="changed" checked' not in page


def test_rare_class_pairs_are_drawn_as_often_as_common_ones() -> None:
    before = np.array([0] * 1000 + [1] * 5 + [2] * 50)
    after = np.array([1] * 1000 + [2] * 5 + [2] * 50)
    rows = choose_changed(before, after, 20)
    assert len(set(rows.tolist())) == 20
    assert (before[rows] == 1).sum() == 5
    assert not (before[rows] == 2).any()


def test_small_images_are_kept_bit_by_bit_and_large_ones_shrunk() -> None:
    assert data_uri(np.zeros((28, 28, 1), np.uint8), 256).startswith("data:image/png")
    large = data_uri(np.zeros((224, 300, 3), np.uint8), 96)
    assert large.startswith("data:image/jpeg")
    assert len(large) < 3000


def test_the_same_run_gives_the_same_bytes(finished_run: Path, page: str) -> None:
    assert report_page(finished_run) == page


@pytest.mark.usefixtures("unrendered")
def test_repeats_with_other_seeds_get_mean_and_deviation(make_run: Make) -> None:
    runs = [make_run(f"seed-{seed}", seed=seed) for seed in range(3)]
    page = comparison_page(runs)
    assert "3 runs side by side" in page
    assert "mean ± sd" in page
    assert re.search(r"Noise after \*</th>(<td>[\d.]+%</td>){3}<td>[\d.]+% ± [\d.]+%</td>", page)


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("target_fingerprint", "b"),
        ("source_fingerprint", "b"),
        ("given_labels", "b"),
        ("classes", ["one", "two"]),
    ],
)
def test_runs_of_other_images_models_or_classes_are_no_repeats(make_run: Make, key: str, other: object) -> None:
    same = {"target_fingerprint": "a", "source_fingerprint": "a", "given_labels": "", "classes": ["cat", "dog"]}
    runs = [make_run(name, seed=seed, finished=False, epochs=2) for seed, name in enumerate("ab")]
    for changes, repeats in (({}, True), ({key: other}, False)):
        for run, origin in zip(runs, (same, same | changes)):
            (run / "run.json").write_text(json.dumps(origin))
        page = comparison_page(runs)
        assert ("mean ± sd" in page) == ("Mean and standard deviation" in page) == repeats


@pytest.mark.usefixtures("unrendered")
def test_runs_with_other_settings_are_compared_by_what_differs(make_run: Make) -> None:
    runs = [make_run("a", alpha=0.9), make_run("b", alpha=0.8, truth=False)]
    page = comparison_page(runs)
    assert '<th scope="row">alpha</th><td>0.9</td><td>0.8</td>' in page
    assert "mean ± sd" not in page


@pytest.mark.usefixtures("unrendered")
def test_runs_in_various_states_can_be_compared(make_run: Make, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    page = comparison_page([make_run("a"), make_run("b", finished=False), tmp_path / "empty"])
    assert "empty" in page


def test_a_place_that_is_no_folder_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a folder; name the folder"):
        report_page(tmp_path / "nothing")


@pytest.mark.usefixtures("unrendered")
def test_labels_of_classes_the_summary_does_not_name_are_numbered(make_run: Make) -> None:
    run = make_run()
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"classes": ["zero", "one"]}))
    assert pa.types.is_int32(pq.read_table(run / "labels.parquet")["refined_label"].type)
    assert '"zero", "one", "2"' in report_page(run)
