"""Kinds of devices: the one place that knows more of them than "the CPU" and "torch's accelerator".

CUDA, ROCm, XPU and MPS go the same way, through `torch.accelerator`. A plan asks for `ACCELERATOR`; which one that is,
the process that trains finds out, since the one that plans may sit on a machine without any.
"""

import contextlib
import contextvars
import logging
import os
import platform
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ray_adaplr.errors import RunFailed, first_line

Answer = TypeVar("Answer")
ACCELERATOR = "accelerator"
RAY_RESOURCE = {"cuda": "GPU", "xpu": "GPU"}  # what Ray counts each as (ROCm's are "cuda" to torch); MPS it does not
COLLECTIVES = {"cuda": "nccl", "xpu": "xccl"}  # what ranks of a data-parallel training talk through; else gloo
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_FULL = ("out of memory", "cuDNN error", "STATUS_ALLOC_FAILED", "STATUS_NOT_INITIALIZED")  # cuDNN hides a full GPU
_DRIVER, _DEV = Path("/proc/driver/nvidia/version"), Path("/dev")
log = logging.getLogger(__name__)
_asked: contextvars.ContextVar[str | None] = contextvars.ContextVar("precision", default=None)


def accelerator() -> str | None:
    """The kind of accelerator that torch can use here, e.g. "cuda"; None where there is none."""
    found = torch.accelerator.current_accelerator()
    return found.type if found is not None and torch.accelerator.is_available() else None


def accelerator_or_cpu() -> str:
    """The kind of device to work on where nobody says which; a warning where torch cannot use the GPU that is here."""
    found, hidden = accelerator(), os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if not found and not hidden and any(_DEV.glob("nvidia[0-9]*")):
        log.warning("there is a GPU but torch cannot use it, so this is left to the CPU (%s)", software())
    return found or "cpu"


def usable_device(wanted: str) -> str:
    """The kind of device to work on here: the CPU, or the accelerator once it has added two numbers.

    RunFailed when an accelerator is wanted and torch cannot use it; the CPU has to be asked for.
    """
    if wanted == "cpu":
        return wanted
    built_for = torch.accelerator.current_accelerator()
    try:
        if built_for is None:
            raise RuntimeError("it is built for CPUs alone")
        torch.ones(2, device=built_for).sum().item()  # a driver too old, or a GPU too old, shows in the first kernel
    except (RuntimeError, AssertionError) as error:
        raise RunFailed(
            f"a GPU is reserved on {platform.node()} but torch cannot use it: {first_line(error)} ({software()}); "
            "install a driver and a torch that belong together (ray-adaplr doctor looks at every node), or train on "
            "the CPU with --gpus-per-member 0"
        ) from error
    return built_for.type


def conditions(wanted: str, asked: str | None = None) -> dict[str, str | bool]:
    """What bits depend on that only the process that trains knows."""
    device = usable_device(wanted)
    dtype = PRECISIONS[asked or usual_precision(device)]
    in_use = {"device": device, "precision": str(dtype).removeprefix("torch.")}
    return in_use | {"deterministic": torch.are_deterministic_algorithms_enabled()}


@contextlib.contextmanager
def deterministic(wanted: bool = True) -> Iterator[None]:
    """Meanwhile the accelerator's kernels add up in a fixed order; one that has no such kernel warns of it."""
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if added := "CUBLAS_WORKSPACE_CONFIG" not in os.environ:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # cuBLAS reads it when it is first used
    torch.use_deterministic_algorithms(True, warn_only=True)
    logging.captureWarnings(True)  # so that the warnings reach the driver
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        logging.captureWarnings(False)
        if added:
            del os.environ["CUBLAS_WORKSPACE_CONFIG"]


def inspected() -> list[str]:
    """A few words about each accelerator that this process sees, after a convolution on it; RunFailed if it fails."""
    kind, found = usable_device(ACCELERATOR), []
    module = torch.get_device_module(kind)
    for index in range(torch.accelerator.device_count()):
        device = torch.device(kind, index)
        try:
            images, weights = torch.rand(2, 3, 16, 16, device=device), torch.rand(4, 3, 3, 3, device=device)
            torch.nn.functional.conv2d(images, weights).sum().item()
        except RuntimeError as error:
            raise RunFailed(f"a convolution on {device} failed: {first_line(error)}; {advice(error)}") from error
        words = [f"{kind}:{index}"]
        if kind == "cuda":
            major, minor = torch.cuda.get_device_capability(index)
            words += [torch.cuda.get_device_name(index), f"capability {major}.{minor}"]
            words += [f"torch has code for {' '.join(torch.cuda.get_arch_list())}"]
        if hasattr(module, "mem_get_info"):
            free, total = module.mem_get_info(index)
            words.append(f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free")
        found.append(", ".join(words))
    return found


def software() -> str:
    """What must belong together: torch's version, what it was built for, and the driver's version."""
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    if torch.version.hip:
        built = f"ROCm {torch.version.hip}"
    found = re.search(r"\d+\.\d[\d.]*", _DRIVER.read_text()) if _DRIVER.is_file() else None
    return f"torch {torch.__version__} for {built}, {f'NVIDIA driver {found[0]}' if found else 'no NVIDIA driver'}"


@contextlib.contextmanager
def _meanwhile(get: Callable[[], Answer], put: Callable[[Answer], object], value: Answer) -> Iterator[None]:
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


def computing_in(precision: str | None) -> contextlib.AbstractContextManager[None]:
    """Meanwhile networks compute in this precision, one of `PRECISIONS`; None: in what each device is made for."""
    return _meanwhile(_asked.get, _asked.set, precision)


def called_in(precision: str | None, does: Callable[..., Answer], *arguments: Any) -> Answer:
    """What a function returns whose networks compute in this precision; for a call that goes to another process."""
    with computing_in(precision):
        return does(*arguments)


def usual_precision(device: torch.device | str) -> str:
    """What nobody has to ask for: bf16 on accelerators made for it (Ampere and later), fp32 elsewhere."""
    return "bf16" if torch.device(device).type != "cpu" and has_fast_bf16(device) else "fp32"


def has_fast_bf16(device: torch.device | str) -> bool:
    """Whether a device is made for bfloat16: older ones only emulate it, CPUs eight times slower than float32."""
    device = torch.device(device)
    if device.type == "cpu":
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    asked = getattr(torch.get_device_module(device), "is_bf16_supported", None)
    return bool(asked and asked(including_emulation=False))


def autocast(device: torch.device) -> torch.autocast:
    """The context in which networks run."""
    dtype = PRECISIONS[_asked.get() or usual_precision(device)]
    if dtype == torch.float32:
        return torch.autocast(device.type, torch.bfloat16, enabled=False)
    return torch.autocast(device.type, dtype)


def free_memory(device: str) -> float:
    """Free bytes of a device's memory; 0 where it does not tell."""
    ask = getattr(torch.get_device_module(device), "mem_get_info", None)
    return float(ask()[0]) if ask else 0.0


def empty_cache() -> None:
    """Give freed memory back to the device, for other processes on it."""
    if kind := accelerator():
        torch.get_device_module(kind).empty_cache()


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor as it can go to the device without waiting: pinned, where the device's memory is not the host's."""
    return tensor if device.type in ("cpu", "mps") else tensor.pin_memory()


@contextlib.contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Torch's generators start from `seed`, and are put back afterwards; MPS's cannot be."""
    own = [] if device.type in ("cpu", "mps") else [device.index or 0]  # beside the CPU's generator
    with torch.random.fork_rng(own, device_type=device.type):
        torch.manual_seed(seed)
        yield


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn a device error that a retry cannot mend into RunFailed with advice; let others through."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, RunFailed) or not (way_out := advice(error)):
            raise
        what = ". ".join(first_line(error).split(". ")[:2])  # the rest of torch's first line is about its allocator
        raise RunFailed(f"{what}; {way_out}") from error


def advice(error: BaseException) -> str:
    """The way out of a device's error that trying again does not mend; empty for any other error."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError) or any(sign in text for sign in _FULL):
        return (
            "the GPU's memory is full: use a smaller batch_size, or a larger share of a GPU for each member "
            "(--gpus-per-member), so that fewer share one"
        )
    if "no kernel image" in text or "unsupported toolchain" in text:
        return f"this torch was built without code for this GPU ({software()}); install a build that has it"
    if "device-side assert" in text:
        return "an index was out of range on the GPU; CUDA_LAUNCH_BLOCKING=1 shows where"
    return ""


def torch_threads(threads: int) -> contextlib.AbstractContextManager[None]:
    """So many torch threads meanwhile."""
    return _meanwhile(torch.get_num_threads, torch.set_num_threads, threads)
