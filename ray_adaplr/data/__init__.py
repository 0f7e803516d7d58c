"""Images in, `ImageStore` out: the store itself, the readers of published formats, and the benchmarks' protocols."""

from ray_adaplr.data.store import ImageStore
from ray_adaplr.data.store_writer import write_store

__all__ = ["ImageStore", "write_store"]
