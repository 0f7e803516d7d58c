"""Runs tasks on all cores: in forked processes, or as Ray tasks.

Forked processes start in milliseconds and need no guard in the caller's script; they do nothing but decode and write.
Threads alone do not scale: of a small JPEG's time in Pillow about half passes under the interpreter's lock.
"""

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from functools import partial
from typing import Any

from ray_adaplr.errors import RunFailed

PR_SET_PDEATHSIG = 1  # from linux/prctl.h


def cores(on_ray: bool = False) -> int:
    """The cores this process may use, or those of the Ray cluster it is connected to."""
    if on_ray:
        import ray

        return max(1, int(ray.cluster_resources()["CPU"])) if ray.is_initialized() else cores()
    return len(os.sched_getaffinity(0))


def run_tasks(
    function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]], workers: int, on_ray: bool
) -> Iterator[Any]:
    """Yields `function(*task)` for each task as it comes ready; `workers` tasks are under way, few more in memory.

    The function is of a module's top level. With `on_ray` it runs on the Ray cluster this process is connected to.
    """
    with ExitStack() as stack:
        if on_ray:
            submit = _ray_submit(function)
        else:
            pool = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), initializer=_obey_parent)
            stack.callback(pool.shutdown, cancel_futures=True)
            submit = partial(pool.submit, function)
        running: set[Future[Any]] = set()
        for task in tasks:
            running.add(submit(*task))
            if len(running) > workers:  # one waits, so that no worker does
                yield from _ready(running)
        while running:
            yield from _ready(running)


def _ready(running: set[Future[Any]]) -> list[Any]:
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    running -= done
    try:
        return [future.result() for future in done]
    except BrokenProcessPool as error:
        raise RunFailed(
            "a worker process was ended from outside, perhaps for lack of memory; whole shards are kept,"
            " run the same again with fewer workers"
        ) from error


def _ray_submit(function: Callable[..., Any]) -> Callable[..., Future[Any]]:
    import ray

    remote: Any = ray.remote(num_cpus=1)(function)
    return lambda *task: remote.remote(*task).future()


def _obey_parent() -> None:
    """Ctrl-C is the parent's to handle; a SIGTERM is from it. A worker must not outlive a killed parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
