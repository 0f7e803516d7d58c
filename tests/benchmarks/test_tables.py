"""Tables in Markdown files are those of the committed results."""

from pathlib import Path

import pytest

from benchmarks import tables


@pytest.mark.parametrize("file", tables.markdown_files(), ids=lambda file: str(file.relative_to(tables.ROOT)))
def test_a_page_shows_the_committed_results(file: Path) -> None:
    assert tables.filled(file.read_text()) == file.read_text(), "run `make tables`"


@pytest.mark.parametrize("name", tables.BLOCKS)
def test_every_block_can_be_made(name: str) -> None:
    made = tables.filled(f"before\n<!-- {name} -->\nold\n<!-- /{name} -->\nafter\n")
    assert "old" not in made
    assert made.startswith(f"before\n<!-- {name} -->\n| ")
    assert made.endswith(f" |\n<!-- /{name} -->\nafter\n")


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
    figures = {"inferred": 50.0, "source_test": 40.0, "adapted_test": 60.0, "cpu_seconds": 10.0, "method": "shot"}
    right = {"photo-sketch": 70.0, "photo-photo": 99.0}
    lines = tables.photos({"rows": [{**figures, "task": task, "adapted": each} for task, each in right.items()]})
    assert lines.splitlines()[2:] == [
        "| photo→sketch | 50.0 / 40.0 | 70.0 / 60.0 |",
        "| mean | 50.0 / 40.0 | 70.0 / 60.0 |",
        "| photo→photo | 50.0 / 40.0 | 99.0 / 60.0 |",
        "| CPU seconds |  | 10.0 |",
    ]
