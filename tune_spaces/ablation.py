"""Same or disjoint residual labels, same or different augmentations, as in the paper's figure 6 (d)."""

from typing import Any

from ray import tune


def space(num_classes: int) -> dict[str, Any]:
    """The four pairs, with three members or as many as the classes allow."""
    n_e = min(3, num_classes - 1)
    return {
        "n_e": n_e,
        "n_rl": (num_classes - 1) // n_e,
        "residuals": tune.grid_search(["drl", "srl"]),
        "augmentations": tune.grid_search(["daug", "saug"]),
    }
