"""What the README and the docs say exists: links, commands, flags, settings, files, tests."""

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from benchmarks.__main__ import COMMANDS
from ray_adaplr import __version__
from ray_adaplr.cli.main import make_parser
from ray_adaplr.config import PRESETS, Config
from ray_adaplr.storage import layout

sys.path.insert(0, str(Path(__file__).parent))

from pages import FENCE, PAGES, ROOT, Code, all_code, anchors_of, command_lines, links_of

ROOMS = "core|storage|data|engine|stages|sweep|paper|report|integrations|cli"
MADE_BY_RUNS = ("runs", "stores", "sweeps", "models")  # folders in examples that a reader will have
SITE_HOOK = ROOT / "docs/hooks/reference.py"


def parsers() -> dict[str, argparse.ArgumentParser]:
    for action in make_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError("the command line has no commands")


PARSERS = parsers()
FLAGS = {flag for parser in PARSERS.values() for flag in parser._option_string_actions}


def shell_commands() -> Iterator[tuple[Code, list[str]]]:
    """Every command in a shell block, as words; and those of the examples' scripts."""
    scripts = [Code(path, "bash", path.read_text()) for path in (ROOT / "examples").glob("*.sh")]
    for code in [code for code in all_code() if code.language == "bash"] + scripts:
        for line in command_lines(code):
            yield code, shlex.split(line)


def test_links_lead_to_files_and_headings_that_exist() -> None:
    broken = []
    for page in PAGES:
        for link in links_of(page):
            if re.match(r"https?://", link):
                continue
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            if not target.exists():
                broken.append(f"{page.name}: {link} is not there")
            elif anchor and anchor not in anchors_of(target):
                broken.append(f"{page.name}: {link} has no such heading")
    assert not broken, "\n".join(broken)


def parse(words: list[str]) -> None:
    """The real parser takes these words; a job that is submitted is parsed as well."""
    options = make_parser().parse_args(words)
    job = [word for word in getattr(options, "job", None) or [] if word != "--"]
    if job and job != ["list"]:
        parse(job)


def test_every_command_in_a_block_parses(capsys: pytest.CaptureFixture[str]) -> None:
    found = [(code, words) for code, words in shell_commands() if words[0] == "ray-adaplr"]
    assert len(found) > 30
    for code, words in found:
        try:
            parse(words[1:])
        except SystemExit as end:
            if end.code:
                raise AssertionError(f"{code.page.name}: {shlex.join(words)}: {capsys.readouterr().err}") from None


def test_every_command_within_a_sentence_names_a_command_and_flags_of_it() -> None:
    for code in all_code():
        if code.language != "inline" or not code.text.startswith("ray-adaplr "):
            continue
        if code.page.name == "CHANGELOG.md":  # it names what is gone, too
            continue
        words = [word for word in code.text.split()[1:] if word not in ("COMMAND", "--help", "--version")]
        if words:
            assert words[0] in PARSERS, str(code)
            first, *job = " ".join(words).split(" -- ")
            for part in (first, *job):
                name = part.split()[0]
                unknown = set(re.findall(r"--[a-z][\w-]*", part)) - set(PARSERS[name]._option_string_actions)
                assert not unknown, f"{code} ({', '.join(unknown)})"


def test_every_flag_that_a_sentence_names_exists() -> None:
    programs = "\n".join(path.read_text() for path in (ROOT / "benchmarks").rglob("*.py"))
    of_benchmarks = set(re.findall(r'"(--[a-z][\w-]*)"', programs))
    for code in all_code():
        if code.language == "inline" and (flag := re.match(r"--[a-z][\w-]*", code.text)):
            assert flag[0] in FLAGS | of_benchmarks | {"--help", "--version"}, str(code)


def test_every_setting_that_a_command_changes_exists() -> None:
    said = [name for code in all_code() for name in re.findall(r"--set (\w+)=", code.text)]
    assert len(said) > 3
    assert set(said) <= set(Config.model_fields) | {"key", "KEY"}


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    said = {
        (str(code.page.name), name) for code in all_code() for name in re.findall(r"^make ([a-z-]+)", code.text, re.M)
    }
    workflows = "\n".join(path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml"))
    said |= {("workflow", name) for name in re.findall(r"\bmake ([a-z-]+)", workflows)}
    assert {name for _, name in said} >= {"demo", "test", "docs"}
    assert not {(page, name) for page, name in said if name not in targets}


def test_every_benchmark_command_exists() -> None:
    for code in all_code():
        for name in re.findall(r"python -m benchmarks (\w+)", code.text):
            if name.islower():
                assert name in COMMANDS, str(code)


def test_every_file_and_every_test_that_a_page_names_exists() -> None:
    ours = {path.name for path in ROOT.iterdir()} - {"runs", "stores"}
    for code in all_code():
        path, _, test = code.text.partition("::")
        if code.language != "inline" or not re.fullmatch(r"[\w.*-]+(/[\w.*-]+)*/?", path):
            continue
        if re.match(rf"({ROOMS})/\w+\.py$", path):
            path = f"ray_adaplr/{path}"
        first = path.split("/")[0]
        if "/" not in path or first not in ours or first in MADE_BY_RUNS:
            continue
        found = list(ROOT.glob(path)) if "*" in path else [ROOT / path]
        assert found, str(code)
        assert found[0].exists(), str(code)
        if test:
            assert f"def {test}(" in found[0].read_text(), str(code)


def test_a_rooms_readme_names_all_of_its_modules_and_no_others() -> None:
    for page in (ROOT / "ray_adaplr").glob("*/README.md"):
        first_cells = re.findall(r"^\| (`[^|]+) \|", page.read_text(), re.MULTILINE)
        named = re.findall(r"`(\w+)`", " ".join(first_cells))
        there = [path.stem for path in page.parent.glob("*.py") if path.stem != "__init__"]
        assert sorted(named) == sorted(there), page.parent.name


def test_python_blocks_compile() -> None:
    blocks = [code for code in all_code() if code.language == "python"]
    assert blocks
    for code in blocks:
        compile(code.text, str(code.page), "exec")


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_pages_speak_natural_english() -> None:
    stilted = re.compile(r"a (line|row|file|model) an? |begun anew|starts? anew|is told now", re.IGNORECASE)
    for page in PAGES:
        found = stilted.search(FENCE.sub("", page.read_text()))  # blocks may quote a program's output
        assert not found, f"{page.relative_to(ROOT)}: {found[0] if found else ''}"


def test_the_generated_reference_has_every_command_setting_and_file() -> None:
    sys.path.insert(0, str(SITE_HOOK.parent))
    import reference

    made = {name: make() for name, make in reference.GENERATED.items()}
    for name, parser in PARSERS.items():
        assert f"## {name}\n" in made["commands"]
        flags = set(parser._option_string_actions) - {"-h", "--help"}
        assert [flag for flag in sorted(flags) if f"`{flag}`" not in made["commands"]] == []
    assert all(f"| `{name}` |" in made["settings"] for name in Config.model_fields)
    assert "`labels.parquet`" in made["run_folder"]
    assert "|  |" not in made["run_folder"], "every file says what it is"
    markers = {name for page in PAGES for name in re.findall(r"\{\{ (\w+) \}\}", page.read_text())}
    assert markers == set(made)


def test_the_table_of_settings_shows_what_photographs_and_uneven_classes_take() -> None:
    sys.path.insert(0, str(SITE_HOOK.parent))
    import reference

    rows = {line.split("`")[1]: line for line in reference.settings().splitlines() if line.startswith("| `")}
    for preset in ("photographs", "uneven"):
        for name, value in PRESETS[preset].items():
            usual = Config.model_fields[name].default == value
            assert usual or f"`{value}` in {preset}" in rows[name]


def test_the_columns_of_the_labels_are_told_as_they_are_written() -> None:
    page = (ROOT / "docs/how-to/use-the-result.md").read_text()
    first_cells = re.findall(r"^\| (`[^|]+) \|", page, re.MULTILINE)
    named = re.findall(r"`(\w+)`", " ".join(first_cells))
    assert sorted(named) == sorted((*layout.LABEL_COLUMNS, "initial_class", "refined_class"))


def test_the_citation_names_this_version_and_the_papers_authors() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert f'\nversion = "{__version__}"\n' in (ROOT / "pyproject.toml").read_text()
    assert f"\n## [{__version__}] - " in (ROOT / "CHANGELOG.md").read_text()
    authors = [author["family-names"] for author in citation["preferred-citation"]["authors"]]
    assert authors == ["Ahmed", "Morerio", "Murino"]
    assert citation["preferred-citation"]["title"] in (ROOT / "README.md").read_text()


def test_the_hosted_workflow_runs_what_contributors_run() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    said = {step.get("run", "") for job in jobs.values() for step in job["steps"]}
    assert {"make lint", "make test", "make docs"} <= said
    oldest = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert oldest
    assert oldest[1] in jobs["test"]["strategy"]["matrix"]["python"]


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="pip install -e '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert "collapse_share" in (tmp_path / "reference/settings.html").read_text()
