"""Search spaces: files with a `space(num_classes)`, and the list of trials that a search makes of one."""

import itertools
import json
import runpy
from pathlib import Path
from typing import Any, Literal

import numpy as np
from ray import tune
from ray.tune.search.variant_generator import generate_variants

import tune_spaces
from ray_adaplr.config import Config
from ray_adaplr.errors import InputError

Changes = dict[str, Any]  # settings of a trial that differ from the sweep's
Search = Literal["grid", "random", "optuna"]
SHIPPED = Path(tune_spaces.__path__[0])
_DRAWS = 200


def load_space(name: str, num_classes: int) -> dict[str, Any]:
    """The space of a shipped name (alpha, n_rl, n_e, joint, ablation) or of a Python file of the user's.

    Raises:
        InputError: when there is no such file, it has no `space`, or the space is empty.
    """
    file = Path(name) if name.endswith(".py") else SHIPPED / f"{name}.py"
    if not file.exists():
        names = ", ".join(sorted(path.stem for path in SHIPPED.glob("[a-z]*.py")))
        raise InputError(f"there is no search space '{name}'; use one of {names}, or a Python file of your own")
    make_space = runpy.run_path(str(file)).get("space")
    if not callable(make_space):
        raise InputError(f"{file} has no function space(num_classes) that returns a Ray Tune space")
    space = make_space(num_classes)
    for key in space:
        for setting in key.split(","):
            if setting not in Config.model_fields:
                raise InputError(f"{file}: there is no setting '{setting}'")
    return space


def separate(sample: dict[str, Any]) -> Changes:
    """A sample of a space as single settings: {"n_e,n_rl": (3, 2)} becomes {"n_e": 3, "n_rl": 2}."""
    changes: Changes = {}
    for key, value in sample.items():
        names = key.split(",")
        changes |= dict(zip(names, value, strict=True)) if len(names) > 1 else {key: value}
    return changes


def with_changes(config: Config, changes: Changes, num_classes: int) -> Config:
    """The sweep's settings with a trial's changes, checked and resolved.

    Raises:
        InputError: when the trial is not feasible.
    """
    try:
        settings = {**config.model_dump(exclude_none=True), **changes}
        return Config.load(changes=settings).resolve(num_classes)
    except InputError as error:
        raise InputError(f"the trial {changes} is not feasible: {error}") from error


def list_trials(
    space: dict[str, Any], search: Search, count: int | None, seed: int, config: Config, num_classes: int
) -> list[Changes]:
    """All trials of a grid or a random search, each feasible and none twice.

    A grid has every cell (drawn once where the space has random parts); a random search draws `count` cells.

    Raises:
        InputError: for an infeasible trial, or a space with fewer different trials than were asked for.
    """
    random = np.random.RandomState(seed)
    if search == "grid":
        variants = (spec for _, spec in generate_variants({"space": space}, random_state=random))
    else:
        variants = (
            next(spec for _, spec in generate_variants({"space": drawable(space)}, random_state=random))
            for _ in itertools.repeat(None, _DRAWS * (count or 1))
        )
    trials: dict[str, Changes] = {}
    for variant in variants:
        if count is not None and len(trials) == count:
            break
        changes = {name: _plain(value) for name, value in separate(variant["space"]).items()}
        with_changes(config, changes, num_classes)
        trials.setdefault(json.dumps(changes, sort_keys=True), changes)
    if not trials:
        raise InputError("the search space has no trial")
    if search == "random" and count is not None and len(trials) < count:
        raise InputError(f"the space has {len(trials)} different trials only; use --trials {len(trials)} or a grid")
    return list(trials.values())


def drawable(space: dict[str, Any]) -> dict[str, Any]:
    """The same space with every grid as a choice to draw from."""
    grids = {key for key, value in space.items() if isinstance(value, dict) and set(value) == {"grid_search"}}
    return {key: tune.choice(value["grid_search"]) if key in grids else value for key, value in space.items()}


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
