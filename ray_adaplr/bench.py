"""`ray-adaplr bench`: speed as ratios of two things measured side by side, medians of several repeats.

The rows here need seconds each and no Ray; `--check` runs these alone and fails when one is worse than its goal by more
than the noise. The rows that run whole adaptations, and the alternatives, lie in `benchmarks/` of the source tree. All
rows have one torch thread, so that the second core and other processes matter little.
"""

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

REPEATS = 7


@dataclass(frozen=True)
class Row:
    """One ratio, or seconds; `value` is None where it could not be measured here, and `note` says why."""

    name: str
    value: float | None
    spread: tuple[float, float] | None
    goal: float
    higher_is_better: bool
    note: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, values: list[float], goal: float, *, higher_is_better: bool, **more: Any) -> "Row":
        """The median of several measurements."""
        return cls(name, statistics.median(values), (min(values), max(values)), goal, higher_is_better, **more)

    @property
    def met(self) -> bool:
        """Whether the goal is reached."""
        return self._reaches(self.value)

    @property
    def regressed(self) -> bool:
        """Whether even the best repeat misses the goal: worse by more than the noise."""
        return self.spread is not None and not self._reaches(self.spread[1 if self.higher_is_better else 0])

    def _reaches(self, value: float | None) -> bool:
        return value is not None and (value >= self.goal if self.higher_is_better else value <= self.goal)

    def __str__(self) -> str:
        if self.value is None or self.spread is None:
            return f"{self.name:78} {self.note}"
        sign, state = (">=" if self.higher_is_better else "<="), ("met" if self.met else "NOT MET")
        low, high = self.spread
        return f"{self.name:78} {self.value:6.2f}  ({low:.2f} to {high:.2f})  goal {sign} {self.goal:g}: {state}"


def add_parser(commands: Any) -> None:
    """Register `bench`."""
    parser = commands.add_parser("bench", help="speed, as ratios of things measured side by side")
    parser.add_argument("--out", metavar="FILE.json", help="also write the rows, with commit and machine")
    parser.add_argument("--only", metavar="WORD", help="the rows whose function has this word in its name")
    parser.add_argument("--check", action="store_true", help="the quick rows alone; exit code 1 when one got worse")
    parser.set_defaults(function=run)


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, write the file; 1 when a check failed."""
    import torch

    runs = None if options.check else _from_sources("speed_runs")
    measurements = [*QUICK, *(runs.MEASUREMENTS if runs else [])]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = []
    try:
        for measure in measurements:
            if not options.only or options.only in measure.__name__:
                for row in measure():
                    print(row, flush=True)
                    rows.append(row)
    finally:
        torch.set_num_threads(before)
    if options.out:
        write(Path(options.out), rows)
    return int(options.check and any(row.regressed for row in rows))


def write(file: Path, rows: list[Row]) -> None:
    """Write rows with what they depend on; rows of a part (`--only`) take the place of their namesakes in the file."""
    content: dict[str, Any] = {**circumstances(), "repeats": REPEATS}
    new = [{**asdict(row), "commit": content["commit"]} for row in rows]
    earlier = json.loads(file.read_text())["rows"] if file.exists() else []
    content["rows"] = list({row["name"]: row for row in [*earlier, *new]}.values())
    file.write_text(json.dumps(content, indent=1) + "\n")


def seconds_in_turn(*works: Callable[[], Any], repeats: int | None = None) -> list[list[float]]:
    """Seconds of each work, measured in turn so that a change in the machine's load meets all; [works][repeats]."""
    for work in works:
        work()  # caches and allocators get warm
    taken: list[list[float]] = [[] for _ in works]
    for _ in range(repeats or REPEATS):
        for work, times in zip(works, taken):
            started = time.perf_counter()
            work()
            times.append(time.perf_counter() - started)
    return taken


def ratios(top: list[float], bottom: list[float]) -> list[float]:
    """Quotients of what was measured in turn."""
    return [a / b for a, b in zip(top, bottom)]


def member_digits() -> list[Row]:
    """The 3-layer CNN of the digit experiments."""
    return [_member_epoch("digit_cnn", side=32, images=2048, goal=0.85)]


def member_resnet18() -> list[Row]:
    """A network whose own work outweighs everything else."""
    return [_member_epoch("resnet18", side=64, images=128, goal=0.92)]


def _member_epoch(network: str, side: int, images: int, goal: float) -> Row:
    """A member's whole epoch against forward, backward and Adam on ready tensors."""
    import numpy as np
    import torch

    from ray_adaplr.config import Config
    from ray_adaplr.core.models import ModelSpec, build
    from ray_adaplr.core.negative import negative_loss
    from ray_adaplr.engine.member import Member, MemberPlan

    spec, labels = ModelSpec(name=network, num_classes=10), np.arange(images) % 10
    with noise_store(images, side) as store:
        config = Config(batch_size=32, epochs=100).resolve(10)
        member = Member()
        member.setup(MemberPlan(0, config, tuple(store.paths), "cpu", threads=1), build(spec))

        bare = build(spec).train()
        optimizer = torch.optim.Adam(bare.parameters(), weight_decay=5e-4, fused=True)
        ready = torch.rand(32, 3, side, side).contiguous(memory_format=torch.channels_last)
        targets = torch.arange(96).reshape(32, 3) % 10

        def bare_epoch() -> None:
            for _ in range(images // 32):
                optimizer.zero_grad(set_to_none=True)
                negative_loss(bare(ready), targets).backward()
                optimizer.step()

        real, plain = seconds_in_turn(lambda: member.train_epoch(0, labels), bare_epoch)
    name = f"member's epoch ÷ bare loop, images/s ({network}, {side} px, batch 32)"
    return Row.of(name, ratios(plain, real), goal, higher_is_better=True)


def augmentation() -> list[Row]:
    """Our fused augmentation against kornia's and torchvision's per-sample equivalents."""
    rivals = _from_sources("augment_rivals")
    return rivals.against_rivals() if rivals else []


def residual_draw() -> list[Row]:
    """Disjoint residual labels at DomainNet's size against `torch.rand` of that matrix."""
    import numpy as np
    import torch

    from ray_adaplr.core.negative import ResidualDraw, residual_labels

    n, classes = 120_000, 345
    labels, samples = np.arange(n) % classes, np.arange(n)

    def draw() -> None:
        residual_labels(labels, samples, ResidualDraw(classes, n_rl=114, n_e=3), member=1, epoch=0)

    drawn, plain = seconds_in_turn(draw, lambda: torch.rand(n, classes))
    name = "residual draw ÷ torch.rand, seconds (120,000 x 345, N_e 3, N_RL 114)"
    return [Row.of(name, ratios(drawn, plain), 4.0, higher_is_better=False)]


def coordinator() -> list[Row]:
    """History, confidence, gamma and reassignment of an epoch against one numpy pass over the history's bytes."""
    import numpy as np
    import torch

    from ray_adaplr.core.refine import LogitHistory, confidence_of, ensemble_logits, gamma_of, reassign

    n, classes, n_a = 120_000, 345, 10
    members = [np.random.default_rng(k).standard_normal((n, classes), np.float32) for k in range(3)]
    before = resident_bytes()
    history = LogitHistory(n, classes, n_a, torch.float16)
    for _ in range(n_a):
        history.push(torch.from_numpy(members[0]))
    labels, slots = torch.arange(n) % classes, history.slots.numpy()

    def epoch() -> None:
        history.push(ensemble_logits(members))
        probs = history.probabilities()
        confidence = confidence_of(labels, probs)
        reassign(labels, probs, confidence, gamma_of(confidence, 0.9))

    ours, numpy_pass = seconds_in_turn(epoch, lambda: slots.sum(dtype=np.float32))
    name = "coordinator's epoch ÷ one numpy pass, seconds (120,000 x 345, N_a 10)"
    row = Row.of(name, ratios(ours, numpy_pass), 3.0, higher_is_better=False)
    peaks = []
    for _ in range(REPEATS):
        with peak_memory() as peak:
            epoch()
        peaks.append((peak[0] - before) / slots.nbytes)
    name = "coordinator's memory with the history ÷ its float16 history (the same)"
    return [row, Row.of(name, peaks, 1.3, higher_is_better=False)]


QUICK: list[Callable[[], list[Row]]] = [member_digits, member_resnet18, augmentation, coordinator, residual_draw]


@contextmanager
def noise_store(images: int, side: int) -> Iterator[Any]:
    """A store of random RGB images."""
    import numpy as np

    from ray_adaplr.data.store_writer import write_store

    pixels = np.random.default_rng(0).integers(0, 256, (images, side, side, 3), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        ids = [str(i) for i in range(images)]
        yield write_store(f"{folder}/store", [(ids, pixels)], classes=[], domain="noise", truth=None)


def resident_bytes() -> int:
    """Memory of this process that no file backs; the images of a store are pages of its file."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Watches this process from a thread; the list holds the largest `resident_bytes` seen."""
    import threading

    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            peak[0] = max(peak[0], resident_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


def circumstances() -> dict[str, Any]:
    """What the figures depend on."""
    from ray_adaplr.storage.versions import versions

    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    machine = {"system": platform.platform(), "cores": os.cpu_count(), "cpu": _processor()}
    return {"commit": found or "unknown", "machine": machine, "versions": versions()}


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _from_sources(module: str) -> Any:
    """A module of `benchmarks/`, or None: an installed package does not have it."""
    folder = Path(__file__).parents[1] / "benchmarks"
    if not (folder / f"{module}.py").exists():
        print(f"the rows of {module} are left out: there is no {folder}")
        return None
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return importlib.import_module(module)
