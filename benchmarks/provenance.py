"""What a result was made by and on: the commit, the machine and the versions of what it leans on."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from ray_adaplr.storage.machine import versions


def provenance() -> dict[str, Any]:
    """What a result was made by and on."""
    return {"commit": commit(), **environment()}


def environment() -> dict[str, Any]:
    """What the seconds depend on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {"cpu": names[0] if names else platform.processor(), "cores": os.cpu_count(), "threads": 1, **versions()}


def commit() -> str:
    """The commit the code is of, with a plus when files that make the result differ from it."""
    try:
        name = _git("rev-parse", "--short", "HEAD")
        changed = _git("status", "--porcelain", "--", "ray_adaplr", "benchmarks/*.py")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name + ("+" if changed else "")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
