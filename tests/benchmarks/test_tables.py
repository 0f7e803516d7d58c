"""Tables in Markdown files are those of the committed results."""

import json
from pathlib import Path

import pytest

from benchmarks import paper_tables, tables


@pytest.mark.parametrize("file", tables.markdown_files(), ids=lambda file: str(file.relative_to(tables.ROOT)))
def test_a_page_shows_the_committed_results(file: Path) -> None:
    assert tables.filled(file.read_text()) == file.read_text(), "run `make tables`"


@pytest.mark.parametrize("name", tables.BLOCKS)
def test_every_block_can_be_made(name: str) -> None:
    if not (tables.RESULTS / tables.BLOCKS[name][0]).exists():
        pytest.skip("its results are not there yet")
    made = tables.filled(f"before\n<!-- {name} -->\nold\n<!-- /{name} -->\nafter\n")
    assert "old" not in made
    assert made.startswith(f"before\n<!-- {name} -->\n| ")
    assert made.endswith(f" |\n<!-- /{name} -->\nafter\n")


def test_a_block_without_results_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    text = "<!-- speed -->\nNot measured yet.\n<!-- /speed -->\n"
    assert tables.filled(text) == text


def test_the_short_table_has_four_methods_and_four_tasks() -> None:
    lines = tables.filled("<!-- results -->\n<!-- /results -->").splitlines()[3:-1]
    assert [line.count("|") for line in lines] == [6] * 4
    assert all("–" not in line for line in lines)


def test_pages_in_folders_of_docs_are_found_and_a_check_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "docs" / "explanation" / "speed.md"
    page.parent.mkdir(parents=True)
    (tmp_path / "README.md").write_text("no tables\n")
    page.write_text("<!-- speed -->\n<!-- /speed -->\n")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    assert tables.markdown_files(tmp_path) == [tmp_path / "README.md", page]
    monkeypatch.setattr(tables, "markdown_files", lambda: [tmp_path / "README.md", page])
    assert tables.main(["--check"]) == 1
    assert page.read_text() == "<!-- speed -->\n<!-- /speed -->\n"
    assert tables.main([]) == 0
    assert "| ratio |" in page.read_text()
    assert tables.main(["--check"]) == 0


def test_a_domain_that_is_its_own_target_stays_out_of_the_mean() -> None:
    figures = {"inferred": 50.0, "source_test": 40.0, "adapted_test": 60.0, "cpu_seconds": 10.0}
    right = {"photo-sketch": 70.0, "art_painting-sketch": 90.0, "photo-photo": 99.0}
    lines = tables.photos({"rows": [photo_run("shot", task, each, 60.0, **figures) for task, each in right.items()]})
    assert lines.splitlines()[2:] == [
        "| photo→sketch | 50.0 / 40.0 | 70.0 / 60.0 |",
        "| art→sketch | 50.0 / 40.0 | 90.0 / 60.0 |",
        "| mean | 50.0 / 40.0 | 80.0 / 60.0 |",
        "| photo→photo | 50.0 / 40.0 | 99.0 / 60.0 |",
        "| CPU seconds |  | 10.0 |",
    ]


def photo_run(method: str, task: str, adapted: float, unseen: float | None, **more: object) -> dict[str, object]:
    return {"method": method, "task": task, "seed": 0, "adapted": adapted, "adapted_test": unseen, **more}


def test_differences_name_the_worst_task_and_leave_out_what_was_not_run_everywhere() -> None:
    times, clean = {"cpu_seconds": 10.0}, {"cpu_seconds": 15.0, "sure_noise": 0.1, "refined": 60.0}
    unsure = {**clean, "sure_noise": None}
    rows = [
        photo_run("shot", "photo-sketch", 50.0, 50.0, **times),
        photo_run("shot", "art_painting-photo", 80.0, 80.0, **times),
        photo_run("shot", "photo-photo", 99.0, 99.0, **times),
        photo_run("ours", "photo-sketch", 54.0, 49.0, **clean),
        photo_run("ours", "art_painting-photo", 81.0, 84.0, **unsure),
        photo_run("quick", "photo-sketch", 55.0, 55.0, **clean),
    ]
    assert tables.differences({"rows": rows}).splitlines()[2:] == [
        "| **ray_adaplr** | +2.5 | +1.5 | +1.0 (art→photo) | -1.0 (photo→sketch) | 1.5 | 0.25 |"
    ]


def test_a_task_that_leaves_no_unseen_images_has_dashes_for_them() -> None:
    figures = {"inferred": 50.0, "source_test": None, "cpu_seconds": 10.0}
    rows = [
        photo_run("shot", "photo-sketch", 60.0, None, **figures),
        photo_run("ours", "photo-sketch", 70.0, None, **figures, sure_noise=0.1, refined=60.0),
    ]
    assert tables.photos({"rows": rows}).splitlines()[2:] == [
        "| photo→sketch | 50.0 / – | 60.0 / – | 60.0 | 70.0 / – |",
        "| CPU seconds |  | 10.0 |  | 10.0 |",
    ]
    assert tables.differences({"rows": rows}).splitlines()[2:] == [
        "| **ray_adaplr** | +10.0 | – | +10.0 (photo→sketch) | – | 1.0 | 0.25 |"
    ]


def paper_run(task: str, on: str, images: int, figure: float) -> dict[str, object]:
    stages = {stage: {"mean": figure} for stage in paper_tables.STAGES}
    scale = {"target_images": images, "size": 16, "epochs": 30, "distill_epochs": 15, "seeds": 1}
    return {"task": task, "on": on, **scale, **stages}


def test_rows_with_rendered_digits_are_the_last_and_have_no_published_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in tables.RESULTS.glob("*.json"):
        (tmp_path / file.name).symlink_to(file)
    rows = [paper_run("rest-synth", "synth", 5000, 70.0), paper_run("rest-mnist", "mnist", 5000, 98.0)]
    rendered = tmp_path / "paper-digit5-rendered.json"
    rendered.unlink(missing_ok=True)
    monkeypatch.setattr(paper_tables, "RESULTS", tmp_path)
    before = paper_tables.rows_of_the_paper({"rows": []})
    rendered.write_text(json.dumps({"rows": rows}))
    after = paper_tables.rows_of_the_paper({"rows": []})
    assert after.removeprefix(before).splitlines()[1:] == [
        "| digit5 | rest, with rendered digits→MNIST | – | 98.0 / 98.0 / 98.0 | 5,000, 16, 30 + 15 | – | 1 |",
        "| digit5 | rest→rendered digits | – | 70.0 / 70.0 / 70.0 | 5,000, 16, 30 + 15 | – | 1 |",
    ]


def test_two_finished_runs_of_one_task_have_the_figures_of_their_own_number_of_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    courses = {name: [0.1] for name in ("noise", "gamma", "hcs_noise")}
    run = {"task": "usps-mnist", "epochs_done": 1, "finished": True, "alarm_epoch": None, "by_epoch": courses}
    monkeypatch.setattr(paper_tables, "RESULTS", tmp_path)
    files = {"paper-tenth.json": paper_run("usps-mnist", "mnist", 2500, 85.0)}
    files["paper-full.json"] = paper_run("usps-mnist", "mnist", 25000, 99.0)
    for name, row in files.items():
        (tmp_path / name).write_text(json.dumps({"rows": [row]}))
    lines = paper_tables.courses({"rows": [{**run, "images": 2500}, {**run, "images": 25000}]}).splitlines()[2:]
    assert [line.split(" | ")[1:3] for line in lines] == [
        ["2,500, 1", "85.0 / 85.0 / 85.0"],
        ["25,000, 1", "99.0 / 99.0 / 99.0"],
    ]


def test_the_plain_rule_says_how_its_source_was_trained_and_counts_epochs_from_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {
        "plain": "Class 9 was dying out in the labels (first in epoch 1): refinement was doing harm.",
        "augmented": "Class 9 was dying out in the labels (first in epoch 2): harm, unless such images are rare.",
    }
    rows = [
        {"study": "n_e", "variant": "3", "task": "usps-mnist", "settings": how, "seed": 0, "warnings": [warning]}
        | {"inferred_noise": 0.3, "by_epoch": {"noise": [0.3], "gamma": [0.0]}}
        for how, warning in said.items()
    ]
    settings = {how: {"task": {"source_augmented": how == "augmented"}} for how in said}
    monkeypatch.setattr(paper_tables, "RESULTS", tmp_path)
    (tmp_path / "ablations.json").write_text(json.dumps({"settings": settings, "rows": rows}))
    lines = [line.split(" | ") for line in paper_tables.conditions({"rows": []}).splitlines()[3:]]
    assert [(line[1], line[-1]) for line in lines] == [
        ("`robust`'s training, seed 0", "epoch 2 |"),
        ("`robust`'s training, an augmented source, seed 0", "epoch 2 |"),
    ]
