"""A search space of your own: `ray-adaplr tune examples/my_space.py --source MODEL --target STORE --out DIR`.

Keys are settings, values what Ray Tune may choose from. Settings that only fit together share a key.
"""

from typing import Any

from ray import tune


def space(num_classes: int) -> dict[str, Any]:
    """Two thresholds, with one member or with two; each member gets as many residual labels as fit."""
    shapes = [(n_e, (num_classes - 1) // n_e) for n_e in (1, 2)]
    return {"alpha": tune.grid_search([0.8, 0.9]), "n_e,n_rl": tune.grid_search(shapes)}
