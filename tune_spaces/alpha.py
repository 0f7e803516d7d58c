"""Alpha alone, with one member, as in the paper's figure 6 (a)."""

from typing import Any

from ray import tune


def space(num_classes: int) -> dict[str, Any]:
    """Six thresholds; one residual label fits any number of classes."""
    return {"n_e": 1, "n_rl": 1, "alpha": tune.grid_search([0.5, 0.6, 0.7, 0.8, 0.9, 0.95])}
