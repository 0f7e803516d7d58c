"""A sweep that is killed in the middle and resumed, against the same sweep undisturbed.

    python -m benchmarks sweep_resume --data DIR [--images 1000] [--epochs 6] [--trials 12]

`ray-adaplr tune joint` on USPS -> MNIST with random cells and a fixed seed, three times on the two cores of one
machine: undisturbed; killed with SIGKILL when a third of the trials has ended, and resumed; the same with ASHA. Written
down: which trials ended or were stopped, how many lived at once, and whether best.toml is the same.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from benchmarks import digits_command_line
from benchmarks.provenance import provenance
from benchmarks.tasks import TASKS, start_of
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.models import save_model


def living_trials(out: Path) -> int:
    """Trials whose folder is locked by a live process."""
    lines = Path("/proc/locks").read_text().splitlines()  # 1: FLOCK ADVISORY WRITE pid major:minor:inode start end
    held = {int(line.split()[-3].rsplit(":", 1)[1]) for line in lines}
    return sum(lock.stat().st_ino in held for lock in out.glob("trials/*/.lock"))


def sweep(out: Path, arguments: list[str], kill_after: int | None) -> dict[str, Any]:
    """Run a sweep in a process of its own, perhaps kill it and resume; returns what came of it."""
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "ray_adaplr", "tune"]
    told: dict[str, Any] = {"arguments": [a for a in arguments if not a.startswith("/")], "most_at_once": 0}
    began = time.monotonic()
    resumed = ["--resume", "--quiet"]
    for attempt in ([*arguments, "--quiet"], resumed) if kill_after else ([*arguments, "--quiet"],):
        environment = {**os.environ, "RAY_worker_niceness": "0"}  # as any other process on a busy machine
        process = subprocess.Popen([*command, *attempt, "--out", str(out)], start_new_session=True, env=environment)
        while process.poll() is None:
            told["most_at_once"] = max(told["most_at_once"], living_trials(out))
            ended = len(list(out.glob("trials/*/labels.parquet")))
            if attempt is not resumed and kill_after and ended >= kill_after:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                told["killed_after_trials"] = ended
            time.sleep(0.2)
        told["exit_code"] = process.returncode
    rows = pq.read_table(out / "results.parquet").to_pylist()
    told["seconds"] = round(time.monotonic() - began, 1)
    told["trials"] = [
        {k: row[k] for k in ("trial", "alpha", "n_rl", "n_e", "epochs", "finished", "error", "score")} for row in rows
    ]
    told["ended"], told["failed"] = sum(r["finished"] for r in rows), sum(r["error"] is not None for r in rows)
    told["stopped_early"] = len(rows) - told["ended"] - told["failed"]
    told["best"] = next(
        row
        for row in told["trials"]
        if row["finished"] and row["score"] == max(other["score"] for other in told["trials"] if other["finished"])
    )
    told["best_config"] = (out / "best.toml").read_text()
    return told


def verdict(runs: dict[str, Any], trials: int) -> dict[str, bool]:
    """What the sweeps show, as far as they have been run."""
    found = {"all_trials_accounted_for": all(len(run["trials"]) == trials for run in runs.values())}
    if {"undisturbed", "killed"} <= set(runs):
        whole, killed = runs["undisturbed"], runs["killed"]
        found["same_best"] = whole["best_config"] == killed["best_config"]
        found["same_scores"] = [t["score"] for t in whole["trials"]] == [t["score"] for t in killed["trials"]]
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = digits_command_line("sweep_resume", __doc__)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--trials", type=int, default=12)
    names = ["undisturbed", "killed", "killed_asha"]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)
    start = start_of(replace(TASKS["usps-mnist"], target_limit=options.images), 0, options.data, options.work)
    place = options.work / "sweeps"
    save_model(Folder(place / "source"), start.source)
    arguments = ["joint", "--source", str(place / "source"), "--target", start.target.paths[0], "--search", "random"]
    arguments += ["--trials", str(options.trials), "--set", f"epochs={options.epochs}"]
    plans = {
        "undisturbed": (arguments, None),
        "killed": (arguments, options.trials // 3),
        "killed_asha": ([*arguments, "--scheduler", "asha"], options.trials // 3),
    }
    runs = json.loads(options.out.read_text())["runs"] if options.out.exists() else {}
    for name in options.only:
        runs[name] = sweep(place / name, *plans[name])
        options.out.write_text(
            json.dumps({**provenance(), **verdict(runs, options.trials), "runs": runs}, indent=1) + "\n"
        )
        run = runs[name]
        print(
            f"{name}: {run['ended']} ended, {run['stopped_early']} stopped early, {run['failed']} failed, "
            f"{run['most_at_once']} at once, {run['seconds']:.0f} s, best {run['best']}",
            flush=True,
        )
    print(verdict(runs, options.trials))
