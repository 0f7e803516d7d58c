"""Images in, `ImageStore` out: the store itself, the readers of published formats, and the benchmarks' protocols."""

from ray_adaplr.data.store import ImageStore, write_store

__all__ = ["ImageStore", "write_store"]
