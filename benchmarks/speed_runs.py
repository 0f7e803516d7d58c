"""The rows of the speed benchmark that run members on Ray, whole adaptations, or the plain script; minutes in all."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
import ray
import torch

from benchmarks import ROOT, checkpoint_cost
from benchmarks.measure import Measurement, noise_store, peak_memory, ratios, seconds_in_turn
from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.adam import Adam
from ray_adaplr.core.devices import torch_threads
from ray_adaplr.core.models import ModelSpec, build
from ray_adaplr.core.objectives import negative_loss
from ray_adaplr.data.digits import demo_domain
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.checkpoint import Checkpoints
from ray_adaplr.engine.engine import make_engine
from ray_adaplr.engine.member import Member, MemberPlan
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.stages.evaluate import predict
from ray_adaplr.stages.pretrain import SourcePlan, pretrain
from ray_adaplr.stages.record import EpochRecorder
from ray_adaplr.stages.refine import Rules, new_state, refine
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.models import load_model

SPEC = ModelSpec(num_classes=10)
LOCAL = ScalingConfig(engine="local")


def members_on_ray() -> list[Measurement]:
    """What Ray costs one member, and what a second member costs on a second core."""
    with local_ray(), noise_store(8192, 32) as store, ExitStack() as stack:
        seats = ScalingConfig(cpus_per_member=0.5)  # all three ensembles live at once; one works at a time
        in_process = stack.enter_context(refinement(store, 1, LOCAL))
        one, two = (stack.enter_context(refinement(store, n_e, seats)) for n_e in (1, 2))
        alone, together = stack.enter_context(bare_loops())
        local, ray_one, ray_two, *bare = seconds_in_turn(in_process, one, two, alone, together, repeats=9)
    details = {"epoch_seconds": {"in_process": local, "ray_1": ray_one, "ray_2": ray_two}}
    limit = ratios(bare[1], bare[0])
    note = f"two bare loops in two processes ÷ one: {median(limit):.2f} ({min(limit):.2f} to {max(limit):.2f})"
    about = "8,192 digits of 32 px"
    return [
        Measurement.of(
            f"epoch on Ray ÷ in process, N_e 1, wall ({about})",
            ratios(ray_one, local),
            1.05,
            higher_is_better=False,
            details=details,
        ),
        Measurement.of(
            f"epoch with N_e 2 ÷ N_e 1 on two cores, wall ({about})",
            ratios(ray_two, ray_one),
            1.15,
            higher_is_better=False,
            note=note,
        ),
    ]


@contextmanager
def bare_loops() -> Iterator[list[Callable[[], None]]]:
    """Bare training of the same network in one process, and in two at once: what the machine's second core can give."""
    command = [sys.executable, "-m", "benchmarks.speed_runs", "bare"]
    loops = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]

    def run(count: int) -> None:
        for loop in loops[:count]:
            print("go", file=loop.stdin, flush=True)
        for loop in loops[:count]:
            assert loop.stdout is not None
            loop.stdout.readline()

    run(2)  # both have loaded
    try:
        yield [lambda: run(1), lambda: run(2)]
    finally:
        for loop in loops:
            loop.communicate()  # closes its input, which ends it


def _bare_epoch() -> None:
    model = build(SPEC).train()
    optimizer = Adam([{"params": list(model.parameters()), "lr": 1e-3}], 5e-4)
    ready = torch.rand(32, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    for _ in range(4096 // 32):
        optimizer.zero_grad()
        negative_loss(model(ready), torch.arange(96).reshape(32, 3) % 10).backward()
        optimizer.step()


@contextmanager
def refinement(
    store: ImageStore, n_e: int, scaling: ScalingConfig, batch_size: int = 32, spec: ModelSpec = SPEC
) -> Iterator[Callable[[], None]]:
    """A refinement under way; each call runs its next epoch, through the loop of every run."""
    config = Config(n_e=n_e, batch_size=batch_size, epochs=1000, on_harm="off").resolve(10)
    # The folder's name is the engine's too: several may live at once.
    with tempfile.TemporaryDirectory(prefix="bench-") as made, make_engine(scaling, n_e, Path(made).name) as engine:
        checkpoints = Checkpoints(Folder(made), every=0)
        state = new_state(np.arange(len(store)) % 10, 10, config)
        ensemble = engine.ensemble(config, store, [build(spec)], checkpoints)
        even = torch.full((10,), 0.1)
        recorder = EpochRecorder(config, even, None)

        def epoch() -> None:
            until_next = config.model_copy(update={"epochs": state.epoch + 1})
            refine(ensemble, state, Rules(until_next, even, even), checkpoints, recorder.line)

        yield epoch


def plain_script() -> list[Measurement]:
    """A plain PyTorch script's epoch against ours: three members, two cores, the same task, settings and warm start."""
    target, source = digits_task()
    config = Config(epochs=16)
    with local_ray(), tempfile.TemporaryDirectory() as made:
        runs = {}
        for vote in ("train", "clean"):
            chosen = config.model_copy(update={"logits_from": vote})
            plan = RunPlan([load_model(source)], target, f"{made}/{vote}", chosen)
            runs[vote] = adapt(plan, until="refine").metrics
        ours, clean = runs["train"], runs["clean"]
        start = f"{made}/train/start_models/0"
        script = [sys.executable, "-m", "benchmarks", "plain_pytorch", target.paths[0], start, "--epochs", "16"]
        plain = json.loads(
            subprocess.run(script, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
        )
    seconds = {
        "plain": plain["epoch_seconds"],
        **{name: [line["seconds"] for line in metrics] for name, metrics in (("ours", ours), ("ours_clean", clean))},
    }
    theirs, mine, slower = (each[1:] for each in seconds.values())  # the first epoch holds the start of processes
    noise = {"start": plain["start_noise"], "plain": plain["refined_noise"]}
    noise |= {"ours": ours[-1]["noise"], "ours_clean": clean[-1]["noise"]}
    about = "N_e 3, two cores, 1,797 digits of 32 px"
    note = "noise {start:.3f} at the start, after 16 epochs plain {plain:.3f}, ours {ours:.3f}".format(**noise)
    equal = f"noise {noise['ours_clean']:.3f}; the clean pass takes {_added(slower, mine):.2f} of an epoch without it"
    details = {"noise": noise, "epoch_seconds": seconds}
    return [
        Measurement.of(
            f"plain PyTorch script ÷ ours, seconds per epoch ({about})",
            ratios(theirs, mine),
            5.0,
            higher_is_better=True,
            note=note,
            details=details,
        ),
        Measurement.of(
            f"plain PyTorch script ÷ ours, both vote on a clean pass, seconds per epoch ({about})",
            ratios(theirs, slower),
            5.0,
            higher_is_better=True,
            note=equal,
        ),
    ]


def _added(longer: list[float], shorter: list[float]) -> float:
    """By how much of itself the shorter grew."""
    return median(longer) / median(shorter) - 1


def predict_on_cores() -> list[Measurement]:
    """`predict` of many small images with two torch threads and with one."""
    model = build(SPEC)

    def on(threads: int) -> None:
        with torch_threads(threads):
            predict(model, store)

    with noise_store(20_000, 32) as store:
        one, two = seconds_in_turn(lambda: on(1), lambda: on(2), repeats=5)
    name = "predict of 20,000 images on two cores ÷ on one, wall (digit CNN, 32 px)"
    return [Measurement.of(name, ratios(two, one), 0.60, higher_is_better=False)]


def outside_epochs() -> list[Measurement]:
    """Seconds of `ray-adaplr adapt` that are no epoch: imports, Ray, actors, models, files, the report."""
    with tempfile.TemporaryDirectory() as made:
        alone = [_outside(f"{made}/alone-{i}", None) for i in range(5)]
        with local_ray():
            address = ray.get_runtime_context().gcs_address
            joined = [_outside(f"{made}/joined-{i}", address) for i in range(5)]
    return [
        Measurement.of("adapt outside its epochs, seconds (N_e 3, Ray started)", alone, 20.0, higher_is_better=False),
        Measurement.of(
            "adapt outside its epochs, seconds (N_e 3, on a running Ray)", joined, 8.0, higher_is_better=False
        ),
    ]


def _outside(out: str, address: str | None) -> float:
    target, source = digits_task()
    settings = ("epochs=4", "distill_epochs=4", "warm_start=off", "alpha=0.5")
    command = [sys.executable, "-m", "ray_adaplr", "adapt", "--source", source, "--target", target.paths[0]]
    command += ["--out", out, "--quiet", *(word for setting in settings for word in ("--set", setting))]
    command += ["--address", address] if address else []
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    wall = time.perf_counter() - started
    lines = [json.loads(line) for line in Path(out, "metrics.jsonl").read_text().splitlines()]
    for stage in ("refine", "distill"):  # the first epoch holds a process's start, so the median stands for all
        seconds = [line["seconds"] for line in lines if line["stage"] == stage]
        wall -= len(seconds) * median(seconds)
    return wall


def twice_the_images() -> list[Measurement]:
    """Wall and a member's memory when there are twice as many images."""
    n = 4096
    with noise_store(n, 32) as small, noise_store(2 * n, 32) as large:
        members = [_member(store) for store in (small, large)]
        works = [lambda m=m, s=s: m.train_epoch(0, np.arange(len(s)) % 10) for m, s in zip(members, (small, large))]
        once, twice = seconds_in_turn(*works, repeats=5)
        peaks = [[_peak_of_member(store) for _ in range(5)] for store in (small, large)]
    added = (median(peaks[1]) - median(peaks[0])) / n
    note = f"{median(peaks[0]) / 2**20:.0f} MiB; {added:.0f} bytes more for each image, of which 40 are its logits"
    return [
        Measurement.of(
            "member's epoch, twice the images ÷ once, wall (digit CNN)",
            ratios(twice, once),
            2.1,
            higher_is_better=False,
        ),
        Measurement.of(
            "member's memory, twice the images ÷ once (digit CNN)",
            ratios(peaks[1], peaks[0]),
            1.05,
            higher_is_better=False,
            note=note,
        ),
    ]


def _member(store: ImageStore) -> Member:
    member = Member()
    member.setup(MemberPlan(0, Config(batch_size=32).resolve(10), tuple(store.paths), "cpu", threads=1), build(SPEC))
    return member


def _peak_of_member(store: ImageStore) -> float:
    """The largest memory of a process of its own that trains an epoch."""
    command = [sys.executable, "-m", "benchmarks.speed_runs", store.paths[0]]
    return float(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def checkpoints() -> list[Measurement]:
    """What a checkpoint every epoch costs."""
    return [checkpoint_cost.measure()]


@contextmanager
def local_ray() -> Iterator[None]:
    """A Ray of this process's own."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


@cache
def digits_task() -> tuple[ImageStore, str]:
    """1,797 optical digits of 32 px as in Digit5's protocol, and the folder of a model trained on MNIST digits."""
    made = tempfile.mkdtemp(prefix="adaplr-bench-")
    stores = {name: demo_domain(name, f"{made}/{name}", size=32, channels=3) for name in ("mnist", "optdigits")}
    pretrain(SourcePlan(stores["mnist"], f"{made}/source", SPEC, Config(pretrain_epochs=4), LOCAL))
    return stores["optdigits"], f"{made}/source"


MEASUREMENTS = [members_on_ray, plain_script, outside_epochs, twice_the_images, checkpoints]

if __name__ == "__main__":  # processes of their own for `bare_loops` and `_peak_of_member`
    torch.set_num_threads(1)
    if sys.argv[1] == "bare":
        for _ in sys.stdin:
            _bare_epoch()
            print("done", flush=True)
    else:
        store = ImageStore.open(sys.argv[1])
        member = _member(store)
        with peak_memory() as peak:
            member.train_epoch(0, np.arange(len(store)) % 10)
        print(peak[0])
