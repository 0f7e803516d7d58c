"""The README's figures are those of the committed results."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import readme  # noqa: E402


def test_the_readme_is_made_of_the_results() -> None:
    text = (ROOT / "README.md").read_text()
    assert readme.filled(text) == text, "run python benchmarks/readme.py"
