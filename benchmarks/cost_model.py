"""A model of what an epoch costs, checked here and applied to GPUs: `python -m benchmarks cost_model`.

A member's epoch is its images times the sum of four parts: training FLOPs over what the processor sustains, the gather
of uint8 pixels, the augmentation's passes over float pixels, the residual draw. Members work side by side; then their
logits travel once, and the coordinator reads its history. On a GPU a thread gathers beside the step, so that gathering
counts only as far as it takes longer. The check measures each part alone and compares their sum with real epochs; the
FLOPs part is fitted on one network and asked about others. Writes results/cost_model.json.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import RESULTS, command_line
from benchmarks.measure import noise_store, seconds_in_turn
from benchmarks.provenance import provenance
from ray_adaplr.config import Config
from ray_adaplr.core import draws
from ray_adaplr.core.augment import NUM_UNIFORMS, apply_plan, plan
from ray_adaplr.core.models import ModelSpec, build
from ray_adaplr.core.objectives import ResidualDraw, negative_loss, residual_labels
from ray_adaplr.core.refine import LogitHistory, confidence_of, ensemble_logits, gamma_of, reassign
from ray_adaplr.engine.member import Member, MemberPlan
from ray_adaplr.engine.training import augmentation

OUT = RESULTS / "cost_model.json"
BATCH, REPEATS = 32, 5


@dataclass(frozen=True)
class Processor:
    """What a member's device, its host and its network sustain."""

    flops: float  # of training a convolutional network, per second
    gather: float  # bytes of uint8 images per second, from the page cache or over the bus, the slower of the two
    augment: float  # float32 pixels augmented per second
    draw: float  # random keys drawn and sorted per second
    network: float  # bytes per second between nodes
    link: float  # bytes per second between the ranks of a member
    coordinator: float  # bytes of history per second


# NVIDIA's published ResNet-50 training with mixed precision on one A100, about 2,470 images/s at 24.6 GFLOPs each, is
# 61 TFLOP/s; half of that is taken, since batches are 32 and not 256. A bus of 12 GB/s, 25 Gbit/s between nodes. The
# augmentation makes about 12 passes over float32 pixels, here at half of 1.5 TB/s. Draw and coordinator are this CPU's.
A100_FLOPS, A100_GATHER, A100_AUGMENT, NETWORK = 30e12, 4e9, 1.5e12 / 2 / (12 * 4), 3e9
# Ranks of a member on one node talk over its bus or NVLink; the bus is taken. A message of a few kB, such as
# BatchNorm's statistics, takes NCCL about 20 us.
LINK, MESSAGE = 12e9, 20e-6


@dataclass(frozen=True)
class Job:
    """A refinement's size."""

    name: str
    network: str
    side: int
    images: int
    classes: int
    members: int
    ranks: int = 1  # of each member
    batch: int = BATCH


def synchronising_seconds(job: Job, link: float) -> float:
    """What ranks tell each other in an epoch: gradients, and BatchNorm's statistics, forward and backward."""
    if job.ranks == 1:
        return 0.0
    with torch.device("meta"):
        model = build(ModelSpec(name=job.network, num_classes=job.classes))
    layers = sum(isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) for layer in model.modules())
    gradients = 2 * (job.ranks - 1) / job.ranks * 4 * weights_of(job.network, job.classes) / link
    return job.images / job.batch * (gradients + (2 * layers + 1) * MESSAGE)


def training_flops(network: str, side: int, classes: int) -> float:
    """FLOPs of one image's forward and backward pass."""
    with torch.device("meta"):
        model, images = build(ModelSpec(name=network, num_classes=classes)), torch.rand(1, 3, side, side)
    with FlopCounterMode(display=False) as counter:
        model.eval()(images).sum().backward()
    return float(counter.get_total_flops())


def weights_of(network: str, classes: int) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in build(ModelSpec(name=network, num_classes=classes)).parameters())


def predict(job: Job, cpu: Processor) -> dict[str, float]:
    """Seconds of an epoch by part, and bytes."""
    pixels, share = 3 * job.side**2, (job.classes - 1) // job.members
    logits = 4 * job.images * job.classes
    seconds = {
        "train": job.images * training_flops(job.network, job.side, job.classes) / cpu.flops / job.ranks,
        "synchronise": synchronising_seconds(job, cpu.link),
        "gather": job.images * pixels / cpu.gather / job.ranks,
        "augment": job.images * pixels / cpu.augment / job.ranks,
        "draw": job.images * (job.classes - 1) / cpu.draw,
        "exchange": job.members * logits / cpu.network,
        "coordinate": 10 * logits / 2 / cpu.coordinator + job.members * logits / (2 * cpu.coordinator),
    }
    beside = seconds["train"] + seconds["synchronise"] + seconds["augment"]  # the device is at work
    hidden = min(seconds["gather"], beside)  # a thread gathers the next batches meanwhile
    weights = 4 * weights_of(job.network, job.classes)
    # Kept and unshuffled logits, residual labels with their keys, uniforms and the augmentation's plan.
    per_image = 8 * job.classes + 8 * share + 4 * (job.classes - 1) + 4 * NUM_UNIFORMS + 4 * 40
    return {
        **{f"{part}_seconds": value for part, value in seconds.items()},
        "epoch_seconds": sum(seconds.values()) - hidden,
        "member_state_bytes": 4 * weights,  # weights, gradients, two moments
        "member_bytes_for_images": job.images * per_image,
        "store_bytes": job.images * pixels,
        "exchange_bytes": job.members * logits,
        "coordinator_bytes": 10 * logits / 2 + logits * (job.members + 1),
        "checkpoint_bytes": job.members * 3 * weights + logits / 2,
    }


def measured_here() -> tuple[Processor, list[dict[str, Any]]]:
    """This CPU's parts, and the model's words on whole epochs beside what they took."""
    rates = {
        name: _bare_images_per_second(*name)
        for name in (("resnet18", 64), ("resnet34", 64), ("resnet18", 96), ("digit_cnn", 32))
    }
    flops = rates["resnet18", 64] * training_flops("resnet18", 64, 10)
    checks: list[dict[str, Any]] = []
    for network, side in (("resnet34", 64), ("resnet18", 96)):
        said = training_flops(network, side, 10) / flops
        checks.append(
            _check(f"training an image, {network} at {side} px, from resnet18 at 64", said, 1 / rates[network, side])
        )
    n, side, config = 4096, 32, Config(batch_size=BATCH).resolve(10)
    settings, order = augmentation(config, config.crop), np.random.default_rng(0).permutation(n)
    labels = np.arange(n) % 10
    with noise_store(n, side) as store:
        member = Member()
        member.setup(MemberPlan(0, config, tuple(store.paths), "cpu", threads=1), build(ModelSpec(num_classes=10)))
        batches = [order[start : start + BATCH] for start in range(0, n, BATCH)]
        images = [torch.from_numpy(store.read(batch)) for batch in batches]

        def augment() -> None:
            uniforms = torch.from_numpy(draws.uniforms(draws.key(0, "augment"), order, NUM_UNIFORMS))
            rows = plan(uniforms, settings, (side, side, 3))
            for i, batch in enumerate(images):
                apply_plan(batch, rows[i * BATCH : (i + 1) * BATCH], settings)

        def draw() -> None:
            residual_labels(labels, order, ResidualDraw(num_classes=10, n_rl=3, n_e=3), member=0, epoch=0)

        taken = seconds_in_turn(
            lambda: [store.read(batch) for batch in batches],
            augment,
            draw,
            lambda: member.train_epoch(0, labels),
            repeats=REPEATS,
        )
    gather_s, augment_s, draw_s, epoch_s = (float(np.median(times)) for times in taken)
    pixels = n * 3 * side**2
    coordinator = _coordinator_bytes_per_second()
    here = Processor(flops, pixels / gather_s, pixels / augment_s, n * 9 / draw_s, 5e9, LINK, coordinator)
    said = n / rates["digit_cnn", 32] + gather_s + augment_s + draw_s
    checks.append(_check("a member's epoch of 4,096 digits of 32 px, from its parts", said, epoch_s))
    return here, checks


def _check(what: str, said: float, measured: float) -> dict[str, Any]:
    return {"what": what, "predicted_seconds": said, "measured_seconds": measured, "ratio": said / measured}


def _bare_images_per_second(network: str, side: int) -> float:
    model = build(ModelSpec(name=network, num_classes=10)).train()
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=5e-4, fused=True)
    ready = torch.rand(BATCH, 3, side, side).contiguous(memory_format=torch.channels_last)
    targets = torch.arange(3 * BATCH).reshape(BATCH, 3) % 10

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        negative_loss(model(ready), targets).backward()
        optimizer.step()

    [times] = seconds_in_turn(step, repeats=REPEATS if "res" in network else 50)
    return BATCH / float(np.median(times))


def _coordinator_bytes_per_second(n: int = 40_000, classes: int = 345) -> float:
    logits = np.random.default_rng(0).standard_normal((n, classes), np.float32)
    history, labels = LogitHistory(n, classes, 10, torch.float16), torch.arange(n) % classes
    for _ in range(10):
        history.push(torch.from_numpy(logits))

    def epoch() -> None:
        history.push(ensemble_logits([logits] * 3))
        probs = history.probabilities()
        confidence = confidence_of(labels, probs)
        reassign(labels, probs, confidence, gamma_of(confidence, 0.9))

    [times] = seconds_in_turn(epoch, repeats=REPEATS)
    return history.slots.numel() * 2 / float(np.median(times))


JOBS = [
    Job("VisDA-C, 3 x A100", "resnet101", 224, 55_388, 12, 3),
    Job("DomainNet, 3 x A100", "resnet50", 224, 120_000, 345, 3),
    Job("DomainNet, 64 nodes of one A100, a member each", "resnet50", 224, 120_000, 345, 64),
    Job("VisDA-C of 72,000, 3 x A100", "resnet101", 256, 72_000, 12, 3),
    Job("VisDA-C of 72,000, 8 x A100, two ranks per member", "resnet101", 256, 72_000, 12, 3, ranks=2, batch=64),
    Job("DomainNet, 64 x A100 on 8 nodes, 8 members of 8 ranks", "resnet50", 224, 120_000, 345, 8, ranks=8, batch=256),
]


def main(arguments: list[str] | None = None) -> None:
    parser = command_line("cost_model", __doc__)
    parser.add_argument("--predict", action="store_true", help="with the rates of the last measurement")
    torch.set_num_threads(1)
    if parser.parse_args(arguments).predict:
        earlier = json.loads(OUT.read_text())
        made, checks = earlier["provenance"], earlier["checks"]
        here = Processor(**({"link": LINK} | earlier["here"]))
    else:
        made, (here, checks) = provenance(), measured_here()
    a100 = Processor(A100_FLOPS, A100_GATHER, A100_AUGMENT, here.draw, NETWORK, LINK, here.coordinator)
    rows = [{**vars(job), **predict(job, a100)} for job in JOBS]
    OUT.write_text(
        json.dumps(
            {"provenance": made, "here": vars(here), "a100": vars(a100), "checks": checks, "predictions": rows},
            indent=1,
        )
        + "\n"
    )
    for check in checks:
        print("{what}: {predicted_seconds:.4g} s predicted, {measured_seconds:.4g} s measured".format(**check))
    for row in rows:
        parts = ", ".join(
            f"{name.removesuffix('_seconds')} {row[name]:.2g}" for name in row if name.endswith("_seconds")
        )
        sizes = ", ".join(f"{name.removesuffix('_bytes')} {row[name] / 1e9:.2g}" for name in row if "bytes" in name)
        print(f"{row['name']}: seconds: {parts}; GB: {sizes}")
