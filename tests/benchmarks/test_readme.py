"""The README's figures are those of the committed results."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_readme_is_made_of_the_results() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/readme.py"), "--check"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
