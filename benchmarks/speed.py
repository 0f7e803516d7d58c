"""Speed as ratios of two things measured side by side, medians of several repeats.

    python -m benchmarks speed [--check] [--only WORD ...] [--out FILE] [--data DIR]

The rows in this file need seconds each and no Ray; `--check` runs these alone and fails when one is worse than its goal
by more than the noise. Rows that run whole adaptations are in `speed_runs.py`, those on several seats in
`speed_ranks.py`, SHOT's in `speed_shot.py`, that of a store on disk in `speed_store.py`. Rows have one torch thread
where they do not say otherwise, so that the second core and other processes matter little.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import augment_rivals, command_line, speed_ranks, speed_runs, speed_shot, speed_store
from benchmarks.measure import REPEATS, Measurement, noise_store, peak_memory, ratios, resident_bytes, seconds_in_turn
from benchmarks.provenance import provenance
from ray_adaplr.config import Config
from ray_adaplr.core.learner import Learner, TrainSettings
from ray_adaplr.core.models import Classifier, ModelSpec, build
from ray_adaplr.core.objectives import ResidualDraw, information_maximisation, negative_loss, residual_labels
from ray_adaplr.core.refine import LogitHistory, confidence_of, ensemble_logits, gamma_of, reassign
from ray_adaplr.engine.member import Member, MemberPlan
from ray_adaplr.stages.precision import measured


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the table, write the file; 1 when a check failed."""
    parser = command_line("speed", __doc__)
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="also write the rows, with commit and machine")
    only = "the rows whose functions have one of these words in their names"
    parser.add_argument("--only", nargs="+", metavar="WORD", help=only)
    parser.add_argument("--data", type=Path, metavar="DIR", help="npz files of the digit tasks, for the row of SHOT")
    parser.add_argument("--check", action="store_true", help="the quick rows alone; exit code 1 when one got worse")
    options = parser.parse_args(arguments)
    # Ray gives its workers a low priority; here they must have that of what they are compared with.
    os.environ.setdefault("RAY_worker_niceness", "0")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = []
    try:
        everything = [*QUICK, *speed_runs.MEASUREMENTS, *speed_ranks.MEASUREMENTS, *speed_store.MEASUREMENTS]
        if options.data:
            everything.append(partial(speed_shot.time_to_shot, options.data))
        for measure in QUICK if options.check else everything:
            name = getattr(measure, "__name__", "time_to_shot")
            if not options.only or any(word in name for word in options.only):
                for row in measure():
                    print(row, flush=True)
                    rows.append(row)
    finally:
        torch.set_num_threads(before)
    if options.out:
        write(options.out, rows)
    return int(options.check and any(row.regressed for row in rows))


def write(file: Path, rows: list[Measurement]) -> None:
    """Write rows with what they depend on; rows of a part (`--only`) take the place of their namesakes in the file."""
    content: dict[str, Any] = {**provenance(), "repeats": REPEATS}
    new = [{**asdict(row), "commit": content["commit"]} for row in rows]
    earlier = json.loads(file.read_text())["rows"] if file.exists() else []
    content["rows"] = list({row["name"]: row for row in [*earlier, *new]}.values())
    file.write_text(json.dumps(content, indent=1) + "\n")


def member_digits() -> list[Measurement]:
    """The 3-layer CNN of the digit experiments."""
    return [_member_epoch("digit_cnn", side=32, images=2048, goal=0.85)]


def member_resnet18() -> list[Measurement]:
    """A network whose own work outweighs everything else."""
    return [_member_epoch("resnet18", side=64, images=128, goal=0.92)]


def _member_epoch(network: str, side: int, images: int, goal: float, precision: str | None = None) -> Measurement:
    """A member's whole epoch against forward, backward and Adam on ready tensors."""
    spec, labels = ModelSpec(name=network, num_classes=10), np.arange(images) % 10
    with noise_store(images, side) as store:
        config = Config(batch_size=32, epochs=100, precision=precision).resolve(10)
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
    if precision:
        name = f"member's epoch ÷ bare fp32 loop, images/s ({network}, {side} px, precision=auto)"
    return Measurement.of(name, ratios(plain, real), goal, higher_is_better=True)


def clean_pass() -> list[Measurement]:
    """A member's pass over the clean images, for its vote, against the training of the same epoch."""
    images = 1797
    with noise_store(images, 32) as store:
        member, config = Member(), Config(batch_size=64, epochs=100).resolve(10)
        member.setup(MemberPlan(0, config, tuple(store.paths), "cpu", threads=1), build(ModelSpec(num_classes=10)))
        learner, labels = member.learner, np.arange(images) % 10
        assert learner is not None
        passes = [lambda size=size: learner.predict(size) for size in (512, 128, 64)]
        training, *taken = seconds_in_turn(lambda: member.train_epoch(0, labels), *passes)
    details = {"seconds": {"training": training, **dict(zip(("batches of 512", "128", "64"), taken))}}
    name = "member's clean pass ÷ its training, seconds of an epoch (digit CNN, 1,797 of 32 px)"
    return [Measurement.of(name, ratios(taken[0], training), 0.30, higher_is_better=False, details=details)]


def precision_digits() -> list[Measurement]:
    """The digit CNN in the precision that `auto` chooses here, against a bare loop in fp32."""
    return [_in_best_precision("digit_cnn", side=32, images=2048)]


def precision_resnet18() -> list[Measurement]:
    """The same for ResNet-18."""
    return [_in_best_precision("resnet18", side=64, images=128)]


def _in_best_precision(network: str, side: int, images: int) -> Measurement:
    config = Config(batch_size=32, epochs=100).resolve(10)
    with noise_store(images, side) as store:
        chosen, why = measured(config, build(ModelSpec(name=network, num_classes=10)), store.paths, "cpu")
    if chosen == "fp32":  # nothing to gain: the row without a precision has the figure
        name = f"member's epoch ÷ bare fp32 loop, images/s ({network}, {side} px, precision=auto)"
        return Measurement(name, None, None, 1.35, True, note=f"auto chose fp32: {why}")
    return _member_epoch(network, side, images, goal=1.35, precision=chosen)


def slow_reader() -> list[Measurement]:
    """An epoch whose images take 3 ms each to read, against the slower of steps and reading, both alone."""
    images, batch = 480, 16

    def instantly(index: np.ndarray) -> np.ndarray:
        return np.zeros((len(index), 8, 8, 3), np.uint8)

    def slowly(index: np.ndarray) -> np.ndarray:
        time.sleep(0.003 * len(index))
        return instantly(index)

    settings = TrainSettings(0, 1, batch, 1e-3, 1e-3, 0.0, "constant", augment=None)
    alone, both = (
        Learner(Classifier(SlowNetwork(), ModelSpec(num_classes=2, head="head")), read, np.arange(images), settings)
        for read in (instantly, slowly)
    )
    epochs = [lambda one=one: one.train_epoch(0, information_maximisation) for one in (alone, both)]
    steps, together, reading = seconds_in_turn(*epochs, lambda: [slowly(np.arange(batch)) for _ in range(30)])
    name = "epoch with a slow reader ÷ the slower of reader and step, wall (3 ms per image, batch 16)"
    slower = [max(pair) for pair in zip(steps, reading)]
    return [Measurement.of(name, ratios(together, slower), 1.05, higher_is_better=False)]


class SlowNetwork(nn.Module):
    """A network whose step takes 60 ms of somebody else's time, as on a device."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the mean colour."""
        time.sleep(0.06)
        return self.head(images.mean((2, 3)))


def augmentation() -> list[Measurement]:
    """Our fused augmentation against kornia's and torchvision's per-sample equivalents."""
    return augment_rivals.against_rivals()


def residual_draw() -> list[Measurement]:
    """Disjoint residual labels at DomainNet's size against `torch.rand` of that matrix."""
    n, classes = 120_000, 345
    labels, samples = np.arange(n) % classes, np.arange(n)

    def draw() -> None:
        residual_labels(labels, samples, ResidualDraw(classes, n_rl=114, n_e=3), member=1, epoch=0)

    drawn, plain = seconds_in_turn(draw, lambda: torch.rand(n, classes))
    name = "residual draw ÷ torch.rand, seconds (120,000 x 345, N_e 3, N_RL 114)"
    return [Measurement.of(name, ratios(drawn, plain), 4.0, higher_is_better=False)]


def coordinator() -> list[Measurement]:
    """History, confidence, gamma and reassignment of an epoch against one numpy pass over the history's bytes."""
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
    row = Measurement.of(name, ratios(ours, numpy_pass), 3.0, higher_is_better=False)
    peaks = []
    for _ in range(REPEATS):
        with peak_memory() as peak:
            epoch()
        peaks.append((peak[0] - before) / slots.nbytes)
    name = "coordinator's memory with the history ÷ its float16 history (the same)"
    return [row, Measurement.of(name, peaks, 1.3, higher_is_better=False)]


QUICK: list[Callable[[], list[Measurement]]] = [
    member_digits,
    member_resnet18,
    clean_pass,
    precision_digits,
    precision_resnet18,
    slow_reader,
    speed_runs.predict_on_cores,
    augmentation,
    coordinator,
    residual_draw,
]
