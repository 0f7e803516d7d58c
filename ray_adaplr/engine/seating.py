"""Who sits where: how many ranks a member has, what each of them gets, and which bundles are neighbours.

Pure functions of the settings and of what the nodes have.
"""

from collections import defaultdict
from dataclasses import dataclass

from ray_adaplr.config import ScalingConfig
from ray_adaplr.core.ranks import LEAST_IMAGES
from ray_adaplr.engine.placement import Resources, member_share
from ray_adaplr.errors import InputError


@dataclass(frozen=True)
class Seating:
    """Members, the ranks of each, and what each rank gets."""

    members: int
    ranks: int
    share: Resources

    @property
    def bundles(self) -> list[Resources]:
        """What to reserve: one bundle per rank, a member's side by side."""
        return [self.share] * (self.members * self.ranks)

    def can_train_together(self, ranks: int) -> bool:
        """Whether so many seats can train one model: there are enough, and each on a GPU has it for itself."""
        return ranks <= self.members * self.ranks and self.share.get("GPU", 1.0) >= 1


def seating(n_e: int, nodes: list[Resources], scaling: ScalingConfig, batch_size: int = 0) -> Seating:
    """Seats as the settings say; if they say nothing, several whole GPUs per member where there are enough.

    A batch size of 0 gives a member one rank where the settings are silent.
    """
    cpus, gpus, ranks = scaling.cpus_per_member, scaling.gpus_per_member, told_ranks(scaling)
    on_gpus = bool(gpus) if gpus is not None else any(node["GPU"] for node in nodes)
    if ranks is None:
        may_choose = on_gpus and gpus is None and not scaling.wait_for_nodes
        most = batch_size // LEAST_IMAGES if may_choose else 1
        ranks = next((r for r in range(most, 1, -1) if sum(node["GPU"] // r for node in nodes) >= n_e), 1)
    if ranks == 1:
        return Seating(n_e, 1, member_share(n_e, nodes, cpus, gpus))
    own_cpus = cpus / ranks if cpus else None
    return Seating(n_e, ranks, member_share(n_e * ranks, nodes, own_cpus, 1.0 if on_gpus else 0.0))


def told_ranks(scaling: ScalingConfig) -> int | None:
    """How many ranks the settings ask for; None where they leave it open."""
    if scaling.ranks_per_member is None and (scaling.gpus_per_member or 0) > 1:
        return int(scaling.gpus_per_member or 1)
    return scaling.ranks_per_member


def for_one_model(scaling: ScalingConfig, ranks: int) -> ScalingConfig:
    """The same settings for a single model that so many ranks train, each with as much as a member's have."""
    gpus, cpus = scaling.gpus_per_member, scaling.cpus_per_member
    own_cpus = cpus / (told_ranks(scaling) or 1) * ranks if cpus else None
    changes = {"gpus_per_member": float(ranks) if gpus else gpus, "cpus_per_member": own_cpus}
    return scaling.model_copy(update={"ranks_per_member": ranks, **changes})


def check_batch(scaling: ScalingConfig, batch_size: int) -> None:
    """InputError for more ranks than a batch can feed, with what each would get, and what would be enough."""
    for name, ranks in (("of a member", told_ranks(scaling)), ("of one model", scaling.distill_workers)):
        if ranks and ranks > 1 and batch_size // ranks < LEAST_IMAGES:
            raise InputError(
                f"batch_size={batch_size} leaves {batch_size // ranks} images for each of {ranks} ranks {name}, and "
                f"{LEAST_IMAGES} are asked for; use --set batch_size={LEAST_IMAGES * ranks}, or at most "
                f"{max(1, batch_size // LEAST_IMAGES)} ranks"
            )


def together(nodes: list[str], ranks: int) -> list[int]:
    """The order in which to seat: bundles of one node side by side, so that a member's ranks share one if they can."""
    if ranks == 1:
        return list(range(len(nodes)))
    by_node: dict[str, list[int]] = defaultdict(list)
    for bundle, node in enumerate(nodes):
        by_node[node].append(bundle)
    whole, rest = [], []
    for bundles in by_node.values():
        full = len(bundles) // ranks * ranks
        whole += bundles[:full]
        rest += bundles[full:]
    return whole + rest
