"""What can be said of a sweep, on the command line or in Python, and the job that `run_sweep` is given."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ray_adaplr.errors import Checked, option

if TYPE_CHECKING:
    from ray_adaplr.stages.record import Tracker


class SweepOptions(Checked):
    """How trials are chosen and judged."""

    search: Literal["grid", "random", "optuna"] = option("grid", "how cells of the space are chosen")
    trials: int | None = option(None, "default: the whole grid, 12 random, 20 of Optuna", ge=1, le=100_000)
    scheduler: Literal["none", "asha"] = option("none", "asha stops trials that lag behind")
    metric: str | None = option(None, "label-free score to judge by; default: infomax")
    oracle: bool = option(False, "judge by ground truth instead; the results say so")


@dataclass(frozen=True)
class SweepJob:
    """A sweep as it was asked for."""

    out: str
    space: str | None  # a shipped name or a Python file; None continues with the one in `out`
    options: SweepOptions = field(default_factory=SweepOptions)
    origin: dict[str, Any] = field(default_factory=dict)  # source, model, classes, normalize: how to load the models
    said: dict[str, Any] = field(default_factory=dict)  # settings that the user set by name
    command: str = ""
    resume: bool = False
    force: bool = False
    quiet: bool = False
    tracker: "Tracker | None" = None  # which shows every trial elsewhere too
