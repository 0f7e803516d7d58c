"""Members, as in the paper's figure 6 (c)."""

from typing import Any

from ray import tune


def space(num_classes: int) -> dict[str, Any]:
    """1 to 5 members that share all residual classes; one alone has 4, the paper's choice for it."""
    cells = [(n_e, (num_classes - 1) // n_e) for n_e in range(2, 6) if n_e < num_classes]
    return {"n_e,n_rl": tune.grid_search([(1, min(4, num_classes - 1)), *cells])}
