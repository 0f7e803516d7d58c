"""Reserves three members' GPUs on a cluster that has none yet; prints how many nodes there were before and after."""

import ray

from ray_adaplr.engine import placement

if __name__ == "__main__":
    ray.init("auto", logging_level="ERROR", log_to_driver=False)
    before = len(placement.live_nodes())
    placement.reserve([{"CPU": 1.0, "GPU": 1.0}] * 3, timeout=90)
    print(before, len(placement.live_nodes()))
