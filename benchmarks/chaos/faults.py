"""The kinds of fault, and how one run is tormented by one kind until it has ended all the same."""

import random
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.chaos.places import Bucket, Nodes
from benchmarks.chaos.processes import Command, named, send
from benchmarks.chaos.task import (
    Job,
    Moment,
    Task,
    bits_of_model,
    bits_of_run,
    bits_of_store,
    bits_of_sweep,
    draw_moments,
    moment_of,
    wait_for,
)
from ray_adaplr.storage.layout import SWEEP

Verdict = Literal["same bits", "different bits", "lost", "hang"]
HUNG = 1 / 15  # of a command's limit: after so many seconds a stopped member counts as hung
MORE_STARTS = 6  # of a command, beyond one per fault; later its run is lost


@dataclass
class Outcome:
    """What became of a run."""

    faults: list[Moment] = field(default_factory=list)
    starts: int = 0
    exit_codes: list[int] = field(default_factory=list)  # of starts that nobody killed
    verdict: Verdict = "lost"
    last_words: str = ""

    def lines(self, **about: Any) -> list[dict[str, Any]]:
        """One line per fault; one that tells of the run when none struck."""
        of_run = {"starts": self.starts, "exit_codes": self.exit_codes, "verdict": self.verdict}
        if self.verdict != "same bits":
            of_run["last_words"] = self.last_words
        struck = [{"struck": True, **asdict(moment)} for moment in self.faults]
        return [{**about, **line, **of_run} for line in struck or [{"struck": False}]]


class Arena:
    """The task, the places where its runs live, and the bits of each kind of run when nobody disturbs it."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._places: dict[type, Any] = {}
        self._bits: dict[str, str] = {}

    @property
    def nodes(self) -> Nodes:
        """Started when first asked for."""
        return self._place(Nodes)

    @property
    def bucket(self) -> Bucket:
        """Started when first asked for."""
        return self._place(Bucket)

    def out(self, name: str) -> str:
        """A folder of this machine."""
        return str(self.task.folder / name)

    def expected(self, name: str, make: Callable[[str], Job], bits: Callable[[str], str]) -> str:
        """The bits of an undisturbed job."""
        if name not in self._bits:
            job = make(self.out(f"undisturbed-{name}"))
            if job.start(0).wait(self.task.limit) != 0:
                raise SystemExit(f"the undisturbed {name} failed: {job.last_words()}")
            self._bits[name] = bits(job.out)
        return self._bits[name]

    def close(self) -> None:
        """End the places."""
        for place in self._places.values():
            place.close()

    def _place(self, kind: type) -> Any:
        if kind not in self._places:
            self._places[kind] = kind()
        return self._places[kind]


Strike = Callable[[Arena, Job, Command, Moment, random.Random], Moment | None]


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    `strike` makes one fault when the run has come to the target, and returns its moment; None when the command ended
    first.
    """

    name: str
    most: int  # faults in one run
    run: Literal["adapt", "pretrain", "prepare", "tune"]
    job: Callable[[Arena, str], Job]
    strike: Strike


def torment(arena: Arena, kind: Kind, name: str, rng: random.Random) -> Outcome:
    """One run under several faults, started again until it ends, and compared with the undisturbed one."""
    make, bits = RUNS[kind.run]
    wanted = arena.expected(kind.run, lambda out: make(arena, out), bits)
    job, outcome = kind.job(arena, name), Outcome()
    targets = draw_moments(rng.randint((kind.most + 1) // 2, kind.most), rng)
    while outcome.starts < len(targets) + MORE_STARTS:
        command = job.start(outcome.starts)
        outcome.starts += 1
        while command.alive and len(outcome.faults) < len(targets):
            moment = kind.strike(arena, job, command, targets[len(outcome.faults)], rng)
            if moment:
                outcome.faults.append(moment)
        code = command.wait(arena.task.limit)
        command.sweep_up()
        outcome.last_words = job.last_words()
        if code is None:
            outcome.verdict = "hang"
            return outcome
        if code != -signal.SIGKILL:
            outcome.exit_codes.append(code)
        if code == 0:
            outcome.verdict = "same bits" if bits(_readable(arena, job)) == wanted else "different bits"
            return outcome
    return outcome


def kill_coordinator(arena: Arena, job: Job, command: Command, target: Moment, rng: random.Random) -> Moment | None:
    """SIGKILL at a random stage and epoch."""
    moment = wait_for(_seen(arena, job), command, target, rng)
    if moment:
        command.kill()
    return moment


def kill_soon(stage: str, seconds: float) -> Strike:
    """SIGKILL within so many seconds, for commands whose folder does not show how far they are."""

    def strike(arena: Arena, job: Job, command: Command, target: Moment, rng: random.Random) -> Moment | None:
        time.sleep(rng.uniform(0, seconds))
        if not command.alive:
            return None
        command.kill()
        return Moment(stage)

    return strike


def kill_sweep(arena: Arena, job: Job, command: Command, target: Moment, rng: random.Random) -> Moment | None:
    """SIGKILL within 20 seconds of its first file; before that there is nothing to resume."""
    while command.alive and not Path(job.out, SWEEP).exists():
        time.sleep(0.05)
    return kill_soon("tune", 20.0)(arena, job, command, target, rng)


def hit_member(*signals: signal.Signals) -> Strike:
    """Send these to a random member that is at work, half a second apart."""

    def strike(arena: Arena, job: Job, command: Command, target: Moment, rng: random.Random) -> Moment | None:
        reached = wait_for(job, command, target, rng)
        while reached and command.alive:
            victims = arena.nodes.members()
            if victims and send(victim := rng.choice(victims), signals[0]):
                moment = moment_of(job.out)
                for number in signals[1:]:
                    time.sleep(0.5)
                    send(victim, number)
                return moment
            time.sleep(0.02)
        return None

    return strike


def kill_node(arena: Arena, job: Job, command: Command, target: Moment, rng: random.Random) -> Moment | None:
    """A node with a member on it is lost and another one comes."""
    moment = wait_for(job, command, target, rng)
    if moment and command.alive:
        arena.nodes.replace(rng.randrange(2))
    return moment


def kill_ray(word: str) -> Strike:
    """SIGKILL to a part of the Ray that the command started."""

    def strike(arena: Arena, job: Job, command: Command, target: Moment, rng: random.Random) -> Moment | None:
        reached = wait_for(job, command, target, rng)
        while reached and command.alive:
            victims = named(command.descendants(), word)
            if victims and send(victims[0], signal.SIGKILL):
                moment = moment_of(job.out)
                command.wait(arena.task.limit)  # it cannot go on: one fault per start
                return moment
            time.sleep(0.02)
        return None

    return strike


def cut_line(arena: Arena, job: Job, command: Command, target: Moment, rng: random.Random) -> Moment | None:
    """The bucket cannot be reached for up to three seconds."""
    moment = wait_for(_seen(arena, job), command, target, rng)
    if moment:
        arena.bucket.outage(rng.uniform(0.1, 3.0))
    return moment


def _in_process(arena: Arena, name: str) -> Job:
    return arena.task.adapt(arena.out(name), "--engine", "local")


def _on_nodes(arena: Arena, name: str) -> Job:
    hung = str(HUNG * arena.task.limit)
    options = ["--address", arena.nodes.address, "--epoch-timeout", hung, "--max-restarts", "8"]
    return arena.task.adapt(arena.out(name), *options, environment=arena.nodes.environment)


def _on_own_ray(arena: Arena, name: str) -> Job:
    return arena.task.adapt(arena.out(name), environment={"RAY_AUTH_MODE": "token"})


def _in_bucket(arena: Arena, name: str) -> Job:
    return arena.task.adapt(arena.bucket.uri(name), "--engine", "local", environment=arena.bucket.environment)


def _seen(arena: Arena, job: Job) -> Job:
    """The job as it is looked at: a bucket not through the line that is cut."""
    return Job(job.first, _readable(arena, job), job.log)


def _readable(arena: Arena, job: Job) -> str:
    if not job.out.startswith("s3://"):
        return job.out
    return arena.bucket.direct(job.out.partition("?")[0].rpartition("/")[2])


RUNS: dict[str, tuple[Callable[[Arena, str], Job], Callable[[str], str]]] = {  # an undisturbed one, and its bits
    "adapt": (lambda arena, out: arena.task.adapt(out, "--engine", "local"), bits_of_run),
    "pretrain": (lambda arena, out: arena.task.pretrain(out), bits_of_model),
    "prepare": (lambda arena, out: arena.task.prepare(out), bits_of_store),
    "tune": (lambda arena, out: arena.task.tune(out), bits_of_sweep),
}
KINDS = [
    Kind("coordinator killed, in process", 12, "adapt", _in_process, kill_coordinator),
    Kind("prepare killed", 8, "prepare", lambda a, n: a.task.prepare(a.out(n)), kill_soon("prepare", 1.2)),
    Kind("pretrain killed", 8, "pretrain", lambda a, n: a.task.pretrain(a.out(n)), kill_soon("pretrain", 1.2)),
    Kind("member killed", 6, "adapt", _on_nodes, hit_member(signal.SIGKILL)),
    Kind("bucket cut off", 8, "adapt", _in_bucket, cut_line),
    Kind("member stopped for good", 2, "adapt", _on_nodes, hit_member(signal.SIGSTOP)),
    Kind("member stopped for half a second", 6, "adapt", _on_nodes, hit_member(signal.SIGSTOP, signal.SIGCONT)),
    Kind("coordinator killed, on Ray", 3, "adapt", _on_nodes, kill_coordinator),
    Kind("coordinator killed, in a bucket", 4, "adapt", _in_bucket, kill_coordinator),
    Kind("node killed and replaced", 2, "adapt", _on_nodes, kill_node),
    Kind("raylet killed", 2, "adapt", _on_own_ray, kill_ray("raylet/raylet")),
    Kind("GCS killed", 2, "adapt", _on_own_ray, kill_ray("gcs_server")),
    Kind("sweep killed", 2, "tune", lambda a, n: a.task.tune(a.out(n)), kill_sweep),
]
