"""The demo on three seeds: `python -m benchmarks demo`. Writes results/demo.json, the source of the README's table."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import RESULTS, ROOT, command_line
from benchmarks.provenance import provenance

OUT = RESULTS / "demo.json"
KEYS = ("inferred", "refined", "target", "noise_before", "noise_after", "hcs_share", "hcs_noise", "changed_share")


def main(arguments: list[str] | None = None) -> None:
    command_line("demo", __doc__).parse_args(arguments)
    rows = []
    for seed in (0, 1, 2):
        with tempfile.TemporaryDirectory() as out:
            command = [sys.executable, "-m", "ray_adaplr", "demo", "--out", out, "--seed", str(seed), "--quiet"]
            started = time.monotonic()
            subprocess.run(command, cwd=ROOT, check=True)
            summary = json.loads((Path(out) / "summary.json").read_text())
            figures = {key: summary[key] for key in (*KEYS, "warnings")}
            rows.append({"seed": seed, "wall_seconds": round(time.monotonic() - started, 1), **figures})
    OUT.write_text(json.dumps({"provenance": provenance(), "rows": rows}, indent=1) + "\n")
    print(f"written: {OUT}")
