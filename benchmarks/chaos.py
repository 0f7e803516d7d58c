"""Random kills of real runs: `make chaos`, or `python -m benchmarks chaos --kills 24 --seed 0`.

Every run is killed with SIGKILL at random moments, started again with the same command until it ends, and must end with
the bits of the run that nobody disturbed. Writes results/chaos.json and prints a table.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import RESULTS, command_line
from benchmarks.provenance import provenance
from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import ModelSpec
from ray_adaplr.data.digits import demo_domain
from ray_adaplr.data.store_writer import write_store
from ray_adaplr.stages.pretrain import SourcePlan, pretrain

OUT = RESULTS / "chaos.json"
KINDS = ("coordinator, in process", "coordinator, on Ray", "member, on Ray")
SETTINGS = ["epochs=60", "distill_epochs=10", "distill_on=all", "warm_start_epochs=3", "alpha=0.7"]


def prepare_task(folder: Path) -> tuple[str, str]:
    """A source model and a target store of 600 real digits."""
    whole = demo_domain("optdigits", folder / "whole")
    images = [(whole.ids.to_pylist()[:600], whole.read(np.arange(600)))]
    target = write_store(folder / "target", images, classes=whole.classes, domain="optdigits", truth=None)
    mnist = demo_domain("mnist", folder / "mnist")
    spec = ModelSpec(num_classes=10, channels=1, image_size=(16, 16), classes=tuple(mnist.classes))
    pretrain(SourcePlan(mnist, str(folder / "source"), spec, Config(pretrain_epochs=2), ScalingConfig(engine="local")))
    return str(folder / "source"), target.paths[0]


def start(source: str, target: str, out: Path, engine: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "ray_adaplr",
        "adapt",
        "--source",
        source,
        "--target",
        target,
        "--out",
        str(out),
        "--engine",
        engine,
        "--quiet",
    ]
    for setting in SETTINGS:
        command += ["--set", setting]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def bits(out: Path) -> str:
    parts = (out / "labels.parquet").read_bytes() + (out / "target_model/model.safetensors").read_bytes()
    return hashlib.blake2b(parts, digest_size=8).hexdigest()


def descendants(pid: int) -> set[int]:
    """All processes below one, by /proc."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
            except (OSError, IndexError):
                continue
    found, queue = set(), [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found |= set(children)
        queue += children
    return found


def member_pids(run: subprocess.Popen[bytes]) -> list[int]:
    found = []
    for pid in descendants(run.pid):
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::Member.train"):
                found.append(pid)
        except OSError:
            continue
    return sorted(found)


def wait_until_working(run: subprocess.Popen[bytes], out: Path, kind: str) -> None:
    """Until the run has something to lose: its folder, or members that train."""
    while run.poll() is None:
        if member_pids(run) if kind.startswith("member") else (out / "config.toml").exists():
            return
        time.sleep(0.05)


def torment(source: str, target: str, out: Path, kind: str, kills: int, rng: random.Random) -> dict:
    """One run, killed up to `kills` times, started again until it ends."""
    engine = "local" if kind.endswith("in process") else "ray"
    done, starts, said, code = 0, 0, "", -1
    while code != 0 and starts < kills + 3:
        run = start(source, target, out, engine)
        starts += 1
        aims = kills - done
        while aims > 0 and run.poll() is None:
            wait_until_working(run, out, kind)
            time.sleep(rng.uniform(0, 10 if kind.startswith("coordinator") else 2))
            if run.poll() is not None:
                break
            victims = [run.pid] if kind.startswith("coordinator") else member_pids(run)
            if not victims:
                continue
            os.kill(rng.choice(victims), signal.SIGKILL)
            done, aims = done + 1, aims - 1
            if kind.startswith("coordinator"):
                break
            time.sleep(3)  # the restarted member trains again
        _, error = run.communicate()
        code, said = run.returncode, error.decode()[-300:]
    return {
        "kind": kind,
        "kills": done,
        "starts": starts,
        "exit_code": code,
        "bits": bits(out) if code == 0 else "",
        "last_words": said if code else "",
    }


def main(arguments: list[str] | None = None) -> None:
    parser = command_line("chaos", __doc__)
    parser.add_argument("--kills", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    rng, left = random.Random(options.seed), options.kills
    rows: list[dict] = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        source, target = prepare_task(folder)
        quiet = torment(source, target, folder / "undisturbed", KINDS[0], 0, rng)
        while left > 0:
            kind = KINDS[len(rows) % len(KINDS)]
            row = torment(source, target, folder / f"run-{len(rows)}", kind, min(left, rng.randint(2, 4)), rng)
            row["same_bits"] = row["bits"] == quiet["bits"]
            left -= max(1, row["kills"])
            rows.append(row)
            print(
                f"{kind:26} {row['kills']} kills, {row['starts']} starts: exit {row['exit_code']}, "
                f"{'same bits' if row['same_bits'] else 'DIFFERENT BITS'}",
                flush=True,
            )
    totals = {
        "kills": sum(row["kills"] for row in rows),
        "runs": len(rows),
        "runs_lost": sum(row["exit_code"] != 0 for row in rows),
        "runs_with_different_bits": sum(not row["same_bits"] for row in rows),
    }
    record = {"provenance": provenance(), "seed": options.seed, "totals": totals, "rows": rows}
    OUT.write_text(json.dumps(record, indent=1) + "\n")
    print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in totals.items()))
    raise SystemExit(bool(totals["runs_lost"] or totals["runs_with_different_bits"]))
