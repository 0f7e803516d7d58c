"""Random schedules of faults against the real coordinator, ensemble, checkpoints and storage, in one process.

Hypothesis draws what goes wrong: members die before or after their work, a file is torn, the disk is full, the
coordinator is killed, a second run is started. Whatever happens, a last undisturbed call gives the bits of an
undisturbed run, the newest whole checkpoint never goes back, and no two runs write at once. Ray is played by few lines
that run actors at once; `make schedules` runs 2,000 schedules, the suite a few.
"""

import atexit
import contextlib
import copy
import errno
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from benchmarks.provenance import provenance
from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.feed import USUAL_CACHE
from ray_adaplr.core.models import ModelSpec, build
from ray_adaplr.data.store_writer import write_store
from ray_adaplr.engine import engine as engines
from ray_adaplr.engine import ensemble as ensembles
from ray_adaplr.engine import waiting
from ray_adaplr.engine.checkpoint import Checkpoints, DamagedCheckpoint, load_member
from ray_adaplr.engine.member import Member
from ray_adaplr.errors import InputError
from ray_adaplr.stages import adapt as stage
from ray_adaplr.stages import record
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.stages.refine import new_state
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.layout import CHECKPOINTS, LABELS, METRICS
from ray_adaplr.storage.metrics import parse_lines

EPOCHS, MEMBERS, IMAGES, CLASSES = 4, 2, 12, 4
CONFIG = Config(epochs=EPOCHS, n_e=MEMBERS, n_a=2, warm_start="off", warmup=0, alpha=0.3, batch_size=4)
SCHEDULES = int(os.environ.get("ADAPLR_SCHEDULES", "8"))


class Killed(BaseException):
    """The coordinator's process ends here."""


class Faults:
    """What is to go wrong in the next call of `adapt`; all of it is used up or forgotten with that call."""

    def __init__(self) -> None:
        self.members: dict[tuple[int, int, str], int] = {}  # (member, epoch, "before" | "after" | "save") -> how often
        self.full_after: int | None = None  # writes until the disk is full
        self.killed_at: tuple[str, int] | None = None  # ("epoch" | "manifest", its number)
        self.intruder_at: int | None = None

    def strikes(self, member: int, epoch: int, when: str) -> bool:
        left = self.members.get((member, epoch, when), 0)
        self.members[member, epoch, when] = max(0, left - 1)
        return left > 0

    def write(self, path: str) -> None:
        """Before each file is written."""
        if self.full_after is not None:
            self.full_after -= 1
            if self.full_after < 0:
                raise OSError(errno.ENOSPC, "No space left on device", path)
        name = os.path.basename(path)
        if self.killed_at and self.killed_at[0] == "manifest" and name == f"manifest-{self.killed_at[1]:06d}.json":
            raise Killed


class Actor:
    """A member as an actor: a call runs at once, and its outcome is a reference to look into."""

    def __init__(self, k: int, faults: Faults) -> None:
        self._k, self._faults, self._member, self._dead = k, faults, Member(), False

    def __getattr__(self, name: str) -> Any:
        if name == "__ray_ready__":
            return _Method(lambda: None)
        return _Method(lambda *args: self._call(name, *args))

    def _call(self, name: str, *args: Any) -> Any:
        epoch = {"train_epoch": 0, "save": 1}.get(name)
        number = args[epoch] if epoch is not None else -1
        self._die_if(self._dead or (name == "train_epoch" and self._faults.strikes(self._k, number, "before")))
        self._die_if(name == "save" and self._faults.strikes(self._k, number, "save"))
        try:
            result = getattr(self._member, name)(*args)
        except Exception as error:  # as Ray has it: whatever a task raises is the cause of its own error
            raise ray.exceptions.RayTaskError(name, "", error) from error
        self._die_if(name == "train_epoch" and self._faults.strikes(self._k, number, "after"))
        return result

    def _die_if(self, dead: bool) -> None:
        if dead:
            self._dead = True
            raise ray.exceptions.ActorDiedError()


class _Method:
    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def options(self, **_: Any) -> "_Method":
        return self

    def remote(self, *args: Any) -> "_Ref":
        sent = copy.deepcopy([arg.value if isinstance(arg, _Ref) else arg for arg in args])
        try:
            return _Ref(self._call(*sent), None)
        except Exception as error:
            return _Ref(None, error)


class _Ref:
    def __init__(self, value: Any, error: Exception | None) -> None:
        self.value, self.error = value, error


class PlayedRay:
    """The few functions of Ray that an ensemble calls."""

    exceptions = ray.exceptions

    @staticmethod
    def put(value: Any) -> _Ref:
        return _Ref(value, None)

    @staticmethod
    def get(ref: _Ref, timeout: float | None = None) -> Any:
        if ref.error:
            raise ref.error
        return ref.value

    @staticmethod
    def wait(refs: list[_Ref], **_: Any) -> tuple[list[_Ref], list[_Ref]]:
        return refs[:1], refs[1:]

    @staticmethod
    def cancel(*_: Any, **__: Any) -> None:
        """Nothing is under way."""


class PlayedSeats:
    """Seats for played actors."""

    ranks = 1

    def __init__(self, faults: Faults) -> None:
        self._faults, self._actors = faults, dict[int, Actor]()

    def actor(self, k: int) -> Actor:
        return self._actors.setdefault(k, Actor(k, self._faults))

    def dismiss(self, k: int) -> None:
        self._actors.pop(k, None)

    def heard(self, seat: int, warnings: list[str]) -> None: ...

    def has_node(self, k: int) -> bool:
        return True


class NoBoard:
    """TensorBoard's writer would take most of a toy run's time."""

    def __init__(self, *_: Any) -> None: ...

    def epoch(self, *_: Any) -> None: ...

    def close(self) -> None: ...


class World:
    """A toy task, and calls of `adapt` on it in which things go wrong."""

    def __init__(self) -> None:
        self.place = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        atexit.register(shutil.rmtree, self.place, ignore_errors=True)
        images = np.random.default_rng(0).integers(0, 256, (IMAGES, 8, 8, 1), dtype=np.uint8)
        ids = [str(i) for i in range(IMAGES)]
        self.store = write_store(self.place / "store", [(ids, images)], classes=[], domain="toy")
        self.model = build(ModelSpec(num_classes=CLASSES, channels=1, width=2))
        self.out = self.place / "run"
        self.undisturbed = self.outcome(self.call(Faults()))

    def call(self, faults: Faults) -> str:
        """Adapt until an end, good or bad; returns what ended it, or nothing."""
        scaling = ScalingConfig(engine="local", max_restarts=50)
        plan = RunPlan([self.model], self.store, str(self.out), CONFIG, scaling)

        def watch(line: dict[str, Any]) -> None:
            if faults.intruder_at == line["epoch"]:
                with pytest.raises(InputError, match="in use by a live run"):
                    adapt(plan, until="refine")
            if faults.killed_at == ("epoch", line["epoch"]):
                raise Killed

        class Engine(engines.LocalEngine):
            def ensemble(self, config: Any, store: Any, models: Any, checkpoints: Checkpoints) -> Any:
                plans = engines._plans(config, store, "cpu", scaling.threads, USUAL_CACHE)
                return ensembles.RayEnsemble(plans, models, checkpoints, scaling, PlayedSeats(faults))  # type: ignore[arg-type]

        write_local, append = Folder._write_local, Folder.append

        def write(path: str, data: bytes) -> None:
            faults.write(path)
            write_local(path, data)

        def append_line(self: Folder, name: str, content: str) -> None:
            faults.write(self.path(name))
            append(self, name, content)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ensembles, "ray", PlayedRay)
            patch.setattr(waiting, "ray", PlayedRay)
            patch.setattr(stage, "make_engine", lambda *_: Engine(scaling))
            patch.setattr(record, "BoardWriter", NoBoard)
            patch.setattr(Folder, "_write_local", staticmethod(write))
            patch.setattr(Folder, "append", append_line)
            try:
                adapt(plan, until="refine", watch=watch)
            except (Killed, Exception) as error:
                return repr(error)
        return ""

    def outcome(self, ended_by: str) -> tuple[bytes, list[bytes], list[int]]:
        """What must not depend on faults: labels with confidences, the members' weights, the epochs written."""
        assert ended_by == "", ended_by
        weights = [(self.out / f"ensemble/{k}/model.safetensors").read_bytes() for k in range(MEMBERS)]
        epochs = [line["epoch"] for line in parse_lines((self.out / METRICS).read_bytes())]
        return (self.out / LABELS).read_bytes(), weights, epochs

    def newest_checkpoint(self) -> int:
        """Epoch of the newest whole checkpoint, members' files included; -1 when there is none."""
        checkpoints = Checkpoints(Folder(self.out / CHECKPOINTS))
        while state := checkpoints.restore(new_state(np.zeros(IMAGES, np.int64), CLASSES, CONFIG)):
            try:
                for place in filter(None, map(checkpoints.member_state, range(MEMBERS))):
                    load_member(*place)
                return state.epoch - 1
            except DamagedCheckpoint as damage:
                checkpoints.pass_over(damage)
        return -1


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    import logging

    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


COUNTS: Counter[str] = Counter()
WORLD: list[World] = []  # one for all schedules: its store and its undisturbed run are the same

members, epochs = st.integers(0, MEMBERS - 1), st.integers(0, EPOCHS - 1)


class Schedules(RuleBasedStateMachine):
    """Faults are noted for the next call, then the call is made."""

    def __init__(self) -> None:
        super().__init__()
        if not WORLD:
            WORLD.append(World())
        self.world, self.faults, self.newest = WORLD[0], Faults(), -1
        shutil.rmtree(self.world.out, ignore_errors=True)

    @rule(k=members, epoch=epochs, when=st.sampled_from(["before", "after", "save"]), often=st.integers(1, 2))
    def lose_a_member_or_its_reply(self, k: int, epoch: int, when: str, often: int) -> None:
        self.faults.members[k, epoch, when] = often

    @rule(writes=st.integers(0, 40))
    def fill_the_disk(self, writes: int) -> None:
        self.faults.full_after = writes

    @rule(where=st.sampled_from(["epoch", "manifest"]), epoch=epochs)
    def kill_the_coordinator(self, where: str, epoch: int) -> None:
        self.faults.killed_at = (where, epoch)

    @rule(epoch=epochs)
    def start_a_second_run(self, epoch: int) -> None:
        self.faults.intruder_at = epoch

    @rule()
    def run_or_resume(self) -> None:
        COUNTS["disturbed_calls"] += bool(vars(self.faults) != vars(Faults()))
        with quiet():
            self.world.call(self.faults)
        self.faults = Faults()

    @precondition(lambda self: (self.world.out / CHECKPOINTS).is_dir())
    @rule(choice=st.integers(0, 100), part=st.sampled_from([0.0, 0.5, 0.9]), flip=st.booleans())
    def tear_a_file(self, choice: int, part: float, flip: bool) -> None:
        files = sorted(path for path in (self.world.out / CHECKPOINTS).iterdir() if path.is_file())
        files += [path for path in (self.world.out / METRICS, self.world.out / LABELS) if path.exists()]
        if not files:
            return
        file = files[choice % len(files)]
        data = bytearray(file.read_bytes())
        cut = int(part * len(data))
        if flip and data and file.suffix in (".pt", ".safetensors"):  # those have checksums, which a manifest holds
            data[min(cut, len(data) - 1)] ^= 1
        else:
            data = data[:cut]
        file.write_bytes(data)
        self.newest = -1

    @invariant()
    def the_newest_whole_checkpoint_never_goes_back(self) -> None:
        with quiet():
            newest = self.world.newest_checkpoint()
        assert newest >= self.newest
        self.newest = newest

    def teardown(self) -> None:
        COUNTS["schedules"] += 1
        with quiet():
            ended_by = self.world.call(Faults())
        labels, weights, written = self.world.outcome(ended_by)
        assert labels == self.world.undisturbed[0]
        assert weights == self.world.undisturbed[1]
        assert sorted(set(written)) == sorted(written), "an epoch is written once"


def write_down(name: str, **found: float) -> None:
    """Add what a whole run of `make schedules` has found to its record; the suite's short runs leave none."""
    if record_file := os.environ.get("ADAPLR_RECORD"):
        file = Path(record_file)
        known = json.loads(file.read_text()) if file.exists() else {}
        known[name] = {**found, "provenance": provenance()}
        file.write_text(json.dumps(known, indent=1) + "\n")


def check(schedules: int) -> None:
    torch.set_num_threads(1)
    chosen = settings(
        max_examples=schedules,
        stateful_step_count=14,
        deadline=None,
        phases=(Phase.generate,),  # to find a case is enough; making it small takes minutes
        report_multiple_bugs=False,
        database=None,
        derandomize=schedules < 1000,  # the suite is the same each time, `make schedules` is not
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Schedules, settings=chosen)


def test_no_schedule_of_faults_changes_the_bits_loses_a_checkpoint_or_lets_two_write() -> None:
    COUNTS.clear()
    began = time.monotonic()
    check(SCHEDULES)
    write_down("schedules", **COUNTS, violations=0, minutes=round((time.monotonic() - began) / 60, 1))


def a_restarted_member_forgets_its_checkpoint(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Checkpoints, "member_state", lambda self, member: None)


def damage_goes_unnoticed(patch: pytest.MonkeyPatch) -> None:
    from ray_adaplr.engine import checkpoint

    patch.setattr(checkpoint, "read_file", lambda folder, entry: folder.read(entry["name"]))


def nobody_holds_the_folder(patch: pytest.MonkeyPatch) -> None:
    from ray_adaplr.storage import run

    patch.setattr(run, "hold", lambda folder: contextlib.nullcontext(folder))


PLANTS = [a_restarted_member_forgets_its_checkpoint, damage_goes_unnoticed, nobody_holds_the_folder]


@pytest.mark.parametrize("plant", PLANTS if "ADAPLR_SCHEDULES" in os.environ else PLANTS[:1])
def test_the_schedules_find_a_planted_bug(plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    if not WORLD:
        WORLD.append(World())
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, pytest.fail.Exception, ValueError)):  # ValueError: a torn file was read
            check(200)
