"""ray_adaplr: source-free domain adaptation on Ray by adaptive pseudo-label refinement (AdaPLR).

>>> from ray_adaplr import AdaPLR, Config
>>> result = AdaPLR(Config(epochs=30)).fit(source=my_model, target="photos/")  # doctest: +SKIP
>>> result.labels, result.model, result.metrics, result.path  # doctest: +SKIP
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray_adaplr.api import AdaPLR, Config, ImageStore, Result, ScalingConfig, export, load
    from ray_adaplr.core import scores

__version__ = "0.2.0"
__all__ = ["AdaPLR", "Config", "ImageStore", "Result", "ScalingConfig", "export", "load", "scores"]


def __getattr__(name: str) -> Any:
    """Public names on first use, so that importing `ray_adaplr.core` brings in no Ray."""
    if name == "scores":
        from ray_adaplr.core import scores

        return scores
    if name in __all__:
        from ray_adaplr import api

        return getattr(api, name)
    raise AttributeError(f"module 'ray_adaplr' has no attribute '{name}'")
