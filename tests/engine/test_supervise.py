"""The supervisor's decisions, case by case."""

import pytest
import ray.exceptions
import torch

from ray_adaplr.config import ScalingConfig
from ray_adaplr.engine.supervise import Action, Failure, classify, decide

LOST, HUNG, DIVERGED, RAISED = Failure.LOST, Failure.HUNG, Failure.DIVERGED, Failure.RAISED


@pytest.mark.parametrize(
    ("failure", "restarts", "lost", "max_lost", "members", "action"),
    [
        (LOST, 0, 0, 0, 3, Action.RESTART),
        (LOST, 1, 0, 0, 3, Action.RESTART),
        (LOST, 2, 0, 0, 3, Action.STOP),
        (LOST, 2, 0, 1, 3, Action.DROP),
        (LOST, 2, 1, 1, 3, Action.STOP),
        (LOST, 2, 0, 5, 1, Action.STOP),  # the last member is never given up
        (LOST, 2, 1, 5, 2, Action.STOP),
        (HUNG, 0, 0, 0, 3, Action.RESTART),
        (HUNG, 2, 0, 1, 3, Action.DROP),
        (DIVERGED, 0, 0, 0, 3, Action.STOP),  # the same again would diverge again
        (DIVERGED, 0, 0, 1, 3, Action.DROP),
        (RAISED, 0, 0, 5, 3, Action.STOP),
    ],
)
def test_what_is_done_about_a_failed_member(
    failure: Failure, restarts: int, lost: int, max_lost: int, members: int, action: Action
) -> None:
    scaling = ScalingConfig(max_restarts=2, max_lost_members=max_lost)
    assert decide(failure, restarts, lost, members, scaling) is action


def task_error(cause: Exception) -> ray.exceptions.RayTaskError:
    return ray.exceptions.RayTaskError("train_epoch", "traceback", cause)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (ray.exceptions.ActorDiedError(), LOST),
        (ray.exceptions.ActorUnavailableError("gone", None), LOST),
        (ray.exceptions.ObjectLostError("00" * 28, None, ""), LOST),
        (task_error(FloatingPointError("NaN")), DIVERGED),
        (task_error(ZeroDivisionError("a bug")), RAISED),
        (task_error(RuntimeError("CUDA error: device lost")), LOST),
        (task_error(RuntimeError("CUDA error: uncorrectable ECC error encountered")), LOST),
        (task_error(RuntimeError("CUDA error: no kernel image is available for execution on the device")), RAISED),
        (task_error(RuntimeError("CUDA error: device-side assert triggered")), RAISED),
        (task_error(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")), RAISED),
        (task_error(OSError("stale file handle")), LOST),
        (KeyError("a bug"), RAISED),
    ],
)
def test_which_kind_of_failure_an_error_is(error: Exception, failure: Failure) -> None:
    assert classify(error) is failure
