"""What bfloat16 costs in accuracy: the digit tasks in fp32 and in bf16, everything else the same.

    python -m benchmarks precision --data DIR [--tasks usps-mnist ...] [--seeds 0 1 2]

A CPU without instructions for bfloat16 computes it ten times slower than float32. So what such instructions would give
is had by rounding: `Rounded` takes the place of torch's autocast, computes in float32 from rounded numbers and rounds
what comes out, forward and backward. That is what the instructions do too: exact products, added up in float32.
Each row says how far a training step computed like that lies from one by torch's own autocast, and how far from
float32. A killed benchmark goes on where it stopped.
"""

import argparse
import contextlib
import copy
from collections.abc import Callable, Iterator
from statistics import mean
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from benchmarks import digits_command_line
from benchmarks.harness import Results, Row, run_adaplr, table
from benchmarks.paper_tables import task_name
from benchmarks.tasks import TASKS, Start, described, start_of
from ray_adaplr.config import Config
from ray_adaplr.core import devices
from ray_adaplr.core.augment import to_float
from ray_adaplr.core.models import Classifier
from ray_adaplr.stages.evaluate import evaluate

PRECISIONS = ("fp32", "bf16")
MULTIPLIES = (torch.conv2d, functional.linear)  # what autocast casts the arguments of
GOES_ON = (functional.batch_norm, functional.adaptive_avg_pool2d)  # what computes in what it is given, and rounds


class _Round(torch.autograd.Function):
    """A number on its way there, and its gradient on its way back, as bfloat16 keeps them."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.bfloat16().float()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient.bfloat16().float()


def rounded(values: Tensor) -> Tensor:
    """The same values to eight bits of mantissa, in float32."""
    return _Round.apply(values)  # type: ignore[no-any-return]


class Rounded(TorchFunctionMode):
    """Meanwhile networks compute as under autocast to bfloat16, in float32."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, given: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        """The function's result; of those that bfloat16 changes, the rounded one."""
        if function in MULTIPLIES:
            given = tuple(rounded(one) if isinstance(one, Tensor) else one for one in given)
        result = function(*given, **(named or {}))
        return rounded(result) if function in MULTIPLIES + GOES_ON else result


@contextlib.contextmanager
def rounding_for_bf16() -> Iterator[None]:
    """Meanwhile every network of this process that is to compute in bf16 does so by rounding."""
    real = devices.autocast

    def autocast(device: torch.device) -> Any:
        found = real(device)
        return Rounded() if found._enabled else found

    with mock.patch.object(devices, "autocast", autocast):
        yield


def distances(start: Start) -> dict[str, float]:
    """How far the logits and gradients of one step lie apart, as a share of their size."""
    images = to_float(torch.from_numpy(start.target.read(np.arange(64))))
    steps = {
        "rounding": _step(start.source, images, Rounded()),
        "autocast": _step(start.source, images, torch.autocast("cpu", torch.bfloat16)),
        "fp32": _step(start.source, images, contextlib.nullcontext()),
    }

    def apart(one: str, other: str) -> float:
        return round(float((steps[one] - steps[other]).norm() / steps[other].norm()), 5)

    return {"rounding_from_autocast": apart("rounding", "autocast"), "autocast_from_fp32": apart("autocast", "fp32")}


def _step(model: Classifier, images: Tensor, way: contextlib.AbstractContextManager[Any]) -> Tensor:
    """Logits and gradients, end to end, of a step in training mode; the model stays as it is."""
    model = copy.deepcopy(model).train()
    with way:
        logits = model(images).float()
    functional.cross_entropy(logits, logits.argmax(1)).backward()
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    return torch.cat([tensor.detach().flatten() for tensor in (logits, *gradients)])


def run(task_name: str, precision: str, seed: int, options: argparse.Namespace, results: Results) -> None:
    """Adapt in one precision with default settings, unless the row is there."""
    task = TASKS[task_name]
    config = Config.load("robust", changes={**task.changes, "precision": precision, "seed": seed})
    key = {"task": task_name, "precision": precision, "seed": seed}
    settings = {"task": described(task), "config": config.model_dump(mode="json", exclude={"seed"})}
    if results.find(key, settings):
        return
    start = start_of(task, seed, options.data, options.work)
    out = options.work / "runs" / f"precision-{task_name}-{precision}-{seed}"
    with rounding_for_bf16():
        done = run_adaplr(start.source, start.target, out, config)
    assert done.target_model is not None
    apart = distances(start) if precision == "bf16" else {}
    accuracy = evaluate(done.target_model, start.test)["accuracy"]  # in fp32, as whoever uses the model does
    row = results.add(key, settings, {**done.figures, **apart, "test_accuracy": accuracy})
    noise = f"{row['inferred_noise']:.4f} -> {row['refined_noise']:.4f}"
    print(f"{task_name} {precision} seed {seed}: noise {noise}, test {accuracy:.4f} {apart}", flush=True)


def precision_table(content: Row) -> str:
    """A line per task: means over the seeds that both have, and the difference of each pair."""
    rows = {(row["task"], row["precision"], row["seed"]): row for row in content["rows"]}
    lines = []
    for task in dict.fromkeys(row["task"] for row in content["rows"]):
        seeds = [seed for name, kind, seed in rows if (name, kind) == (task, "bf16") and (name, "fp32", seed) in rows]
        pairs = [tuple(rows[task, kind, seed]["test_accuracy"] for kind in PRECISIONS) for seed in seeds]
        if pairs:
            means = [f"{mean(column):.4f}" for column in zip(*pairs)]
            lost = [low - full for full, low in pairs]
            lines.append([task_name(task), *means, f"{mean(lost):+.4f}", ", ".join(f"{each:+.4f}" for each in lost)])
    return table(["test accuracy", "fp32", "bf16", "difference", "of each seed"], lines)


def main(arguments: list[str] | None = None) -> None:
    parser = digits_command_line("precision", __doc__, seeds=[0, 1, 2])
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results = Results(options.out)
    for task in options.tasks:
        for seed in options.seeds:
            for precision in options.precisions:
                run(task, precision, seed, options, results)
    print(precision_table({"rows": results.rows}))
