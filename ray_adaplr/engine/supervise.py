"""What to do when a member fails: a pure decision, so that every case stands in one table and one test."""

from enum import Enum

import ray.exceptions

from ray_adaplr.config import ScalingConfig
from ray_adaplr.core.devices import advice


class Failure(Enum):
    """Kinds of failure; what matters is whether trying again can help."""

    LOST = "lost"  # process, node or GPU gone, or the disk or network failed under it: try again
    HUNG = "hung"  # silent past the epoch's deadline: end it and try again
    DIVERGED = "diverged"  # NaN or infinite logits: the same again would give the same
    RAISED = "raised"  # the code itself raised: no use in trying again


class Action(Enum):
    """What the supervisor does about it."""

    RESTART = "restart"  # new actor, state from the last checkpoint, replay
    DROP = "drop"  # continue with the survivors
    STOP = "stop"  # end the run; its checkpoint stays


def classify(error: BaseException) -> Failure:
    """Which kind of failure an exception from `ray.get` is."""
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    if isinstance(cause, FloatingPointError):
        return Failure.DIVERGED
    if cause is not error:  # of the member's own code
        gone = isinstance(cause, (OSError, MemoryError)) or "CUDA error" in str(cause) or "HIP error" in str(cause)
        return Failure.LOST if gone and not advice(cause) else Failure.RAISED
    return Failure.LOST if isinstance(error, ray.exceptions.RayError) else Failure.RAISED


def decide(failure: Failure, restarts: int, lost: int, members: int, scaling: ScalingConfig) -> Action:
    """What to do about a failed member, by its restarts so far and how many of all members are lost for good.

    The last of the members that the run began with is never given up.
    """
    if failure is Failure.RAISED:
        return Action.STOP
    if failure is not Failure.DIVERGED and restarts < scaling.max_restarts:
        return Action.RESTART
    return Action.DROP if lost < min(scaling.max_lost_members, members - 1) else Action.STOP
