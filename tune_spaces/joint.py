"""Alpha, members and residual labels together: what to sweep on a task of your own."""

from typing import Any

from ray import tune


def space(num_classes: int) -> dict[str, Any]:
    """Four thresholds times the feasible cells of members and residual labels (all, half, a quarter of what fits)."""
    cells = []
    for n_e in (1, 2, 3, 5):
        largest = (num_classes - 1) // n_e
        cells += [(n_e, n_rl) for n_rl in sorted({largest // 4, largest // 2, largest} - {0})]
    return {"alpha": tune.grid_search([0.7, 0.8, 0.9, 0.95]), "n_e,n_rl": tune.grid_search(cells)}
