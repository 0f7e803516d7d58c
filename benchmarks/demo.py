"""The demo on three seeds: `python benchmarks/demo.py`. Writes results/demo.json, the source of the README's table."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import provenance  # the script's own folder is on the path

RESULTS = Path(__file__).parent / "results/demo.json"
KEYS = ("inferred", "refined", "target", "noise_before", "noise_after", "hcs_share", "hcs_noise", "changed_share")


def main() -> None:
    rows = []
    for seed in (0, 1, 2):
        with tempfile.TemporaryDirectory() as out:
            command = [sys.executable, "-m", "ray_adaplr", "demo", "--out", out, "--seed", str(seed), "--quiet"]
            started = time.monotonic()
            subprocess.run(command, check=True)
            summary = json.loads((Path(out) / "summary.json").read_text())
            rows.append({"seed": seed, "wall_seconds": round(time.monotonic() - started, 1)}
                        | {key: summary[key] for key in KEYS} | {"warnings": summary["warnings"]})  # fmt: skip
    RESULTS.write_text(json.dumps({"provenance": provenance(), "rows": rows}, indent=1) + "\n")
    print(f"written: {RESULTS}")


if __name__ == "__main__":
    main()
