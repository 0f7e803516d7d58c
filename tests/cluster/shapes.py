"""Prints, as JSON, where three members sit on clusters of several shapes with made-up GPUs, and which GPU each sees."""

import json
import os
import sys

import ray
from ray.cluster_utils import Cluster

from ray_adaplr.engine import placement, seating

SHAPES = {  # a node: CPUs, GPUs
    "one GPU": [(4, 1)],
    "two GPUs": [(4, 2)],
    "four GPUs": [(4, 4)],
    "three nodes with a GPU each": [(2, 1), (2, 1), (2, 1)],
    "no GPU": [(4, 0)],
}


@ray.remote
class Member:
    """Says where it is."""

    def where(self) -> tuple[str, str | None]:
        """Node and visible GPUs."""
        return ray.get_runtime_context().get_node_id(), os.environ.get("CUDA_VISIBLE_DEVICES")


def seats(n_e: int) -> list[tuple[str, str | None]]:
    """Seat members as a run does; node and visible GPUs of each."""
    nodes = placement.live_nodes()
    bundles = [seating.member_share(n_e, nodes, None, None)] * n_e
    seating.check_fit(bundles, nodes)
    group = placement.reserve(bundles, timeout=30)
    members = [
        Member.options(**placement.member_options(bundle, group, k)).remote() for k, bundle in enumerate(bundles)
    ]
    found = ray.get([member.where.remote() for member in members])
    placement.release(group)
    return found


def main() -> None:
    """One head without resources; the nodes of each shape come and go."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0}, connect=True)
    found = {}
    for name, shape in SHAPES.items():
        nodes = [cluster.add_node(num_cpus=cpus, num_gpus=gpus) for cpus, gpus in shape]
        cluster.wait_for_nodes()
        found[name] = seats(3)
        for node in nodes:
            cluster.remove_node(node)
        cluster.wait_for_nodes()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
