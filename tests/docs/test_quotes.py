"""What "Read the report" quotes is what the code says, and no sign of harm is missing there."""

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from pages import ROOT

PAGE = ROOT / "docs/how-to/read-the-report.md"
SPEAKERS = ("report/page.py", "core/signs.py", "core/input_check.py", "stages/first_labels.py")
SIGNS_AT_THE_END = ("warnings", "_harm_in_labels", "_harm_in_epochs", "_hardly_sure")
SHORTEST = 12  # characters of what counts as a sentence


def sentences(tree: ast.AST) -> Iterator[str]:
    """Every text in the code, as a pattern in which a value may be anything."""
    nodes = list(ast.walk(tree))
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        pieces = node.values if isinstance(node, ast.JoinedStr) else [node]
        texts = [piece.value if isinstance(piece, ast.Constant) else None for piece in pieces]
        fixed = "".join(text for text in texts if isinstance(text, str))
        if len(fixed) > SHORTEST and id(node) not in parts | docstrings:
            yield "".join(re.escape(text) if isinstance(text, str) else ".*" for text in texts)


def quotes() -> list[str]:
    """The first cell of each row that quotes a sentence."""
    return re.findall(r"^\| `([^`|]+)` \|", PAGE.read_text(), re.MULTILINE)


def code_of(module: str) -> ast.Module:
    return ast.parse((ROOT / "ray_adaplr" / module).read_text())


def test_every_quoted_sentence_is_one_of_the_code() -> None:
    said = [pattern for module in SPEAKERS for pattern in sentences(code_of(module))]
    found = [quote for quote in quotes() if " " in quote]
    assert len(found) > 15
    for quote in found:
        assert any(re.fullmatch(pattern, quote) for pattern in said), quote


def test_every_sign_of_harm_is_explained() -> None:
    functions = [f for f in code_of("core/signs.py").body if isinstance(f, ast.FunctionDef)]
    for function in functions:
        if function.name in SIGNS_AT_THE_END:
            for pattern in sentences(function):
                if pattern.endswith(r"\."):
                    assert any(re.fullmatch(pattern, quote) for quote in quotes()), pattern


def test_the_counts_of_warnings_are_those_of_the_results() -> None:
    content = json.loads((ROOT / "benchmarks/results/alarms.json").read_text())
    alarms = {row["alarm"]: row["fired"] for group in content["counts"].values() for row in group}
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    words = {
        "dying out": "was dying out",
        "class gone": "no image has that label now",
        "few classes": "have collapsed",
        "hardly any sure": "Hardly any label",
        "sure labels below 10%": "Hardly any label",
        "sure ones swapped": "of the sure labels",
        "changed in one epoch above 40%": "changed at once",
        "rare class": "--preset uneven",
    }
    for alarm, said in words.items():
        fired = alarms[alarm]
        counts = f"{fired['harm'] + fired['useless']} / {fired['same']} / {fired['gain']}"
        assert counts in next(row for row in rows if said in row).split("|")[-2], alarm
