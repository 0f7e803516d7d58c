"""`ray-adaplr bench`: speed as ratios of two things measured side by side, medians of several repeats.

Measured so far: a member's real epoch against bare training of its network, the residual draw against `torch.rand`, and
the coordinator's work against one pass of numpy over the same bytes. One thread, so that two cores or noise from other
processes matter little.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REPEATS = 5


@dataclass(frozen=True)
class Row:
    """One ratio."""

    name: str
    value: float
    spread: tuple[float, float]
    goal: float
    higher_is_better: bool

    @property
    def met(self) -> bool:
        """Whether the goal is reached."""
        return self.value >= self.goal if self.higher_is_better else self.value <= self.goal


def add_parser(commands: Any) -> None:
    """Register `bench`."""
    parser = commands.add_parser("bench", help="speed, as ratios of things measured side by side")
    parser.add_argument("--out", metavar="FILE.json", help="also write the rows, with commit and machine")
    parser.set_defaults(function=run)


def run(options: argparse.Namespace) -> None:
    """Measure, print the table, write the file."""
    import torch

    from ray_adaplr.stages.summary import versions

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = [member_epoch(), residual_draw(), coordinator()]
    finally:
        torch.set_num_threads(before)
    for row in rows:
        sign, state = (">=" if row.higher_is_better else "<="), ("met" if row.met else "not met")
        low, high = row.spread
        print(f"{row.name:70} {row.value:6.2f}  ({low:.2f} to {high:.2f})  goal {sign} {row.goal:g}: {state}")
    if options.out:
        machine = {"machine": platform.platform(), "cores": os.cpu_count(), "commit": _commit(), "versions": versions()}
        content = {**machine, "repeats": REPEATS, "rows": [asdict(row) for row in rows]}
        Path(options.out).write_text(json.dumps(content, indent=1) + "\n")


def ratio(
    name: str, top: Callable[[], Any], bottom: Callable[[], Any], goal: float, higher_is_better: bool, inverse: bool
) -> Row:
    """Median of `top`'s seconds ÷ `bottom`'s, run in turn; `inverse` gives the ratio of their speeds."""
    top(), bottom()  # warm caches and allocators
    values = []
    for _ in range(REPEATS):
        seconds = [_seconds(top), _seconds(bottom)]
        values.append(seconds[1] / seconds[0] if inverse else seconds[0] / seconds[1])
    return Row(name, statistics.median(values), (min(values), max(values)), goal, higher_is_better)


def member_epoch() -> Row:
    """A member's whole epoch against forward, backward and Adam on ready tensors."""
    import numpy as np
    import torch

    from ray_adaplr.config import Config
    from ray_adaplr.core.models import ModelSpec, build
    from ray_adaplr.core.negative import negative_loss
    from ray_adaplr.data.store import write_store
    from ray_adaplr.engine.member import Member, MemberPlan

    images = np.random.default_rng(0).integers(0, 256, (1024, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(len(images)) % 10
    with tempfile.TemporaryDirectory() as folder:
        ids = [str(i) for i in range(len(images))]
        store = write_store(f"{folder}/store", [(ids, images)], classes=[], domain="noise", truth=None)
        config = Config(batch_size=32, epochs=100).resolve(10)
        member = Member(MemberPlan(0, config, tuple(store.paths), "cpu", threads=1))
        member.setup(build(ModelSpec(num_classes=10)))

        bare = build(ModelSpec(num_classes=10)).train()
        optimizer = torch.optim.Adam(bare.parameters(), weight_decay=5e-4, fused=True)
        ready = torch.rand(32, 3, 32, 32).contiguous(memory_format=torch.channels_last)
        targets = torch.arange(96).reshape(32, 3) % 10

        def bare_epoch() -> None:
            for _ in range(len(images) // 32):
                optimizer.zero_grad(set_to_none=True)
                negative_loss(bare(ready), targets).backward()
                optimizer.step()

        name = "member's epoch ÷ bare loop, images/s (digit CNN, 32 px, batch 32)"
        return ratio(name, lambda: member.train_epoch(0, labels), bare_epoch, 0.85, True, inverse=True)


def residual_draw() -> Row:
    """Disjoint residual labels at DomainNet's size against `torch.rand` of that matrix."""
    import numpy as np
    import torch

    from ray_adaplr.core.negative import residual_labels

    n, classes = 120_000, 345
    labels, samples = np.arange(n) % classes, np.arange(n)

    def draw() -> None:
        residual_labels(labels, samples, num_classes=classes, n_rl=114, member=1, n_e=3, mode="drl", seed=0, epoch=0)

    name = "residual draw ÷ torch.rand, seconds (120,000 x 345, N_e 3, N_RL 114)"
    return ratio(name, draw, lambda: torch.rand(n, classes), 4.0, False, inverse=False)


def coordinator() -> Row:
    """History, confidence, gamma and reassignment of an epoch against one numpy pass over the history's bytes."""
    import numpy as np
    import torch

    from ray_adaplr.core.refine import LogitHistory, confidence_of, ensemble_logits, gamma_of, reassign

    n, classes, n_a = 120_000, 345, 10
    members = [np.random.default_rng(k).standard_normal((n, classes), np.float32) for k in range(3)]
    history = LogitHistory(n, classes, n_a, torch.float16)
    for _ in range(n_a):
        history.push(torch.from_numpy(members[0]))
    labels, slots = torch.arange(n) % classes, history.slots.numpy()

    def epoch() -> None:
        history.push(ensemble_logits(members))
        probs = history.probabilities()
        confidence = confidence_of(labels, probs)
        reassign(labels, probs, confidence, gamma_of(confidence, 0.9))

    name = "coordinator's epoch ÷ one numpy pass, seconds (120,000 x 345, N_a 10)"
    return ratio(name, epoch, lambda: slots.sum(dtype=np.float32), 3.0, False, inverse=False)


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
