"""The pretended accelerator's Python side: `torch.sim`, which torch loads by itself (see `build.py`).

SIM_BF16=1 makes it a device that says it can compute in bfloat16.
"""

import os
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from . import _C

SYNCHRONISING = {"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2", "unique_dim"}


class Seen:
    """What happened on the device since the counting began."""

    def __init__(self) -> None:
        self.calls, self.to_device, self.to_host = _C.counts()
        self.live, self.peak = _C.memory()

    @property
    def waits(self) -> dict[str, int]:
        """Operations for whose result the host waits."""
        return {name: count for name, count in self.calls.items() if name in SYNCHRONISING}


def start_counting() -> None:
    """Count from zero; the peak of memory starts at what is in use."""
    _C.start_counting()


@contextmanager
def limited(spare: int) -> Iterator[None]:
    """A device that has only so many bytes beside what is in use."""
    before = _C.limit()
    _C.set_limit(_C.memory()[0] + spare)
    try:
        yield
    finally:
        _C.set_limit(before)


def autoload() -> None:
    """What torch calls as it is imported."""


def _index(device: Any) -> int:
    return device if isinstance(device, int) else torch.device(device).index or 0


class _OnDevice:
    """The context `torch.sim.device(...)`."""

    def __init__(self, device: Any) -> None:
        self._device = _index(device)

    def __enter__(self) -> None:
        self._before = _C.current_device()
        _C.set_device(self._device)

    def __exit__(self, *_: object) -> None:
        _C.set_device(self._before)


def _register() -> None:
    _C.init()
    torch.utils.rename_privateuse1_backend("sim")
    module = types.ModuleType("torch.sim")
    functions = {
        "is_available": lambda: _C.device_count() > 0,
        "is_initialized": lambda: True,
        "device_count": _C.device_count,
        "current_device": _C.current_device,
        "set_device": lambda device: _C.set_device(_index(device)),
        "device": _OnDevice,
        "_is_in_bad_fork": lambda: False,
        "_lazy_init": lambda: None,
        "manual_seed": lambda seed: None,  # its generator is the CPU's
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda device=0: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda state, device=0: None,
        "is_bf16_supported": lambda including_emulation=True: os.environ.get("SIM_BF16") == "1",
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
        "mem_get_info": lambda device=None: (_C.limit() - _C.memory()[0], _C.limit()),
        "empty_cache": lambda: None,
    }
    for name, function in functions.items():
        setattr(module, name, function)
    torch._register_device_module("sim", module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)


_register()
