"""Residual labels of one member, as in the paper's figure 6 (b)."""

from typing import Any

from ray import tune


def space(num_classes: int) -> dict[str, Any]:
    """1 to 9, as far as the classes reach."""
    return {"n_e": 1, "n_rl": tune.grid_search(list(range(1, min(9, num_classes - 1) + 1)))}
