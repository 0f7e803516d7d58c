"""What is disturbed: a small task of real digits, its commands, how far they have come, and their bits."""

import hashlib
import json
import random
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.chaos.processes import Command
from ray_adaplr.data.digits import demo_domain
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.layout import CONFIG, INFERRED, LABELS, LOCK, METRICS, SUMMARY, TARGET_MODEL

LIMIT = 300.0  # seconds that a command may take, far more than it needs; later it counts as a hang
EPOCHS = {"infer": 3, "refine": 10, "distill": 4}
STAGES = ("start", *EPOCHS, "end")
SETTINGS = {
    "n_e": 2,
    "warm_start_epochs": EPOCHS["infer"],
    "epochs": EPOCHS["refine"],
    "distill_epochs": EPOCHS["distill"],
    "pretrain_epochs": 30,
    "distill_on": "all",
    "alpha": 0.5,
}
TARGET_IMAGES = 300


@dataclass(frozen=True)
class Moment:
    """How far a command had come."""

    stage: str
    epoch: int = 0

    @property
    def rank(self) -> tuple[int, int]:
        """Later moments have higher ones."""
        return STAGES.index(self.stage), self.epoch


@dataclass(frozen=True)
class Job:
    """A command that is given again, in the same words, until it ends well."""

    first: list[str]
    out: str
    log: Path
    again: list[str] = field(default_factory=list)  # other words for the later times
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, number: int) -> Command:
        """Start it for the n-th time, from 0."""
        words = self.again if number and self.again else self.first
        return Command([*words, "--out", self.out], self.log, self.environment)

    def last_words(self) -> str:
        """The end of what it printed."""
        return self.log.read_text(errors="replace")[-400:].strip() if self.log.exists() else ""


class Task:
    """Inputs in a folder, and the commands that use them, each of which may take `limit` seconds."""

    def __init__(self, folder: Path, limit: float = LIMIT) -> None:
        self.folder, self.limit = folder, limit
        folder.mkdir(parents=True, exist_ok=True)
        self.images = folder / "digits.npz"
        if not self.images.exists():
            store = demo_domain("mnist", folder / "mnist")
            truth = store.ground_truth()
            assert truth is not None
            np.savez(self.images, images=store.read(np.arange(len(store))), labels=truth)

    @cached_property
    def target(self) -> Path:
        """A small store."""
        self._must_end(self.prepare(str(self.folder / "target"), size=16, limit=TARGET_IMAGES))
        return self.folder / "target"

    @cached_property
    def source(self) -> Path:
        """A model."""
        self._must_end(self.pretrain(str(self.folder / "source")))
        return self.folder / "source"

    def prepare(self, out: str, size: int = 96, limit: int | None = None) -> Job:
        """Decode and write images; by default for about a second."""
        words = ["prepare", str(self.images), "--size", str(size), "--channels", "1", "--workers", "2"]
        return self._job([*words, *(["--limit", str(limit)] if limit else [])], out)

    def pretrain(self, out: str) -> Job:
        """Train a source model in process."""
        return self._job(["pretrain", "--data", str(self.target), "--engine", "local", "--quiet", *_settings()], out)

    def adapt(self, out: str, *engine: str, environment: dict[str, str] | None = None) -> Job:
        """Infer, refine and distill."""
        words = ["adapt", "--source", str(self.source), "--target", str(self.target), "--quiet", *_settings(), *engine]
        return self._job(words, out, environment=environment or {})

    def tune(self, out: str) -> Job:
        """A sweep of three trials of three epochs."""
        words = ["tune", "alpha", "--source", str(self.source), "--target", str(self.target), "--quiet"]
        words += ["--search", "random", "--trials", "3", *_settings(epochs=3, n_e=1, alpha=None)]
        return self._job(words, out, again=["tune", "--resume", "--quiet"])

    def _job(self, words: list[str], out: str, **more: list[str] | dict[str, str]) -> Job:
        name = out.partition("?")[0].rstrip("/").rpartition("/")[2]
        return Job(words, out, self.folder / f"{name}.log", **more)  # type: ignore[arg-type]

    def _must_end(self, job: Job) -> None:
        if job.start(0).wait(self.limit) != 0:
            raise SystemExit(f"chaos could not prepare its task: {job.last_words()}")


def moment_of(out: str) -> Moment:
    """How far a run's folder shows it to be; any other folder is at its start."""
    folder = Folder(out)
    if folder.exists(SUMMARY):
        return Moment("end")
    stage = "distill" if folder.exists(LABELS) else "refine" if folder.exists(INFERRED) else "infer"
    if stage == "infer":
        return Moment("infer" if folder.exists(CONFIG) else "start")
    lines = folder.read(METRICS).decode().splitlines() if folder.exists(METRICS) else []
    return Moment(stage, sum(_stage_of(line) == stage for line in lines))


def draw_moments(count: int, rng: random.Random) -> list[Moment]:
    """So many moments of a run in order, the stages equally often."""
    stages = [rng.choice(list(EPOCHS)) for _ in range(count)]
    moments = [Moment(stage, 0 if stage == "infer" else rng.randrange(EPOCHS[stage])) for stage in stages]
    return sorted(moments, key=lambda moment: moment.rank)


def wait_for(job: Job, command: Command, target: Moment, rng: random.Random) -> Moment | None:
    """Until a run has come so far; the moment that it was, None when the command ended first."""
    while command.alive:
        now = moment_of(job.out)
        if now.rank > Moment("start").rank and now.rank >= target.rank:
            time.sleep(rng.uniform(0, 0.3 if now.stage == "infer" else 0.1))
            return moment_of(job.out) if command.alive else None
        time.sleep(0.1 if job.out.startswith("s3://") else 0.01)  # looks at a bucket cost its server more
    return None


def bits_of_run(out: str) -> str:
    """Labels and target model."""
    folder = Folder(out)
    return _digest(folder.read(LABELS), folder.read(f"{TARGET_MODEL}/model.safetensors"))


def bits_of_model(out: str) -> str:
    """A model's weights."""
    return _digest(Folder(out).read("model.safetensors"))


def bits_of_store(out: str) -> str:
    """All files of a store, by name, but for the lock, which names the process that held it."""
    files = sorted(path for path in Path(out).rglob("*") if path.is_file() and path.name != LOCK)
    return _digest(*(part for path in files for part in (path.name.encode(), path.read_bytes())))


def bits_of_sweep(out: str) -> str:
    """Every trial's settings and score, and the winner."""
    table = pq.read_table(f"{out}/results.parquet", columns=["trial", "alpha", "finished", "score"])
    return _digest(repr(table.to_pylist()).encode(), Path(out, "best.toml").read_bytes())


def _settings(**other: int | None) -> list[str]:
    chosen = {name: value for name, value in {**SETTINGS, **other}.items() if value is not None}
    return [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]


def _stage_of(line: str) -> str:
    try:
        return json.loads(line)["stage"]
    except (ValueError, KeyError):  # it is being written
        return ""


def _digest(*parts: bytes) -> str:
    return hashlib.blake2b(b"".join(parts), digest_size=8).hexdigest()
