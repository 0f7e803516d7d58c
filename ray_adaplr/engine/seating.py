"""Who sits where: how many ranks a member has, what each of them gets, whether that fits, and who sits side by side.

Pure functions of the settings and of what the nodes have. The check runs before anything starts and answers at once,
per node and for GPUs and CPUs together: a silent wait for resources that will never come is the worst thing a trainer
can do.
"""

import math
from collections import defaultdict
from dataclasses import dataclass

from ray_adaplr.config import ScalingConfig
from ray_adaplr.core.ranks import LEAST_IMAGES
from ray_adaplr.errors import InputError

Resources = dict[str, float]


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


def member_share(n_e: int, nodes: list[Resources], cpus: float | None, gpus: float | None) -> Resources:
    """What each member gets: as told, else a whole GPU or CPU or the largest 1/k of one that seats all members."""
    if gpus or (gpus is None and any(node["GPU"] for node in nodes)):
        nodes = [node for node in nodes if node["GPU"]] or nodes  # members sit where the GPUs are
    if gpus is None:
        gpus = _largest_fraction(n_e, [node["GPU"] for node in nodes]) if any(node["GPU"] for node in nodes) else 0.0
    if cpus is None:
        cpus = _largest_fraction(n_e, [node["CPU"] for node in nodes])
    return {"CPU": cpus, "GPU": gpus} if gpus else {"CPU": cpus}


def _largest_fraction(n_e: int, amounts: list[float]) -> float:
    for k in range(1, 101):
        if sum(math.floor(amount * k + 1e-9) for amount in amounts) >= n_e:
            return math.floor(1e4 / k) / 1e4  # Ray counts in ten-thousandths
    return 1.0


def check_fit(bundles: list[Resources], nodes: list[Resources], ranks: int = 1) -> None:
    """InputError for bundles that the nodes cannot hold: what was asked, what there is, and what would fit.

    With several ranks per member there is one bundle for each rank.
    """
    if _fits(bundles, nodes):
        return
    n_e, largest = len(bundles) // ranks, max(bundles, key=lambda b: (b.get("GPU", 0), b.get("CPU", 0)))
    asked = f"{n_e} x {f'{ranks} ranks x ' if ranks > 1 else ''}({in_words(largest)})"
    there = "; ".join(f"node {i}: {in_words(node)}" for i, node in enumerate(nodes)) or "no live node"
    gpus = largest.get("GPU", 0)
    total_gpus = sum(node["GPU"] for node in nodes)
    fewer = next((r for r in range(ranks - 1, 1, -1) if _fits([largest] * (n_e * r), nodes)), 1)
    if gpus and not total_gpus:
        way_out = "use --gpus-per-member 0 to train on CPUs"
    elif fewer > 1 or (ranks > 1 and _fits([largest] * n_e, nodes)):
        way_out = f"use --{'gpus' if gpus else 'ranks'}-per-member {fewer}, or fewer members"
    elif gpus:
        share = _largest_fraction(n_e, [node["GPU"] for node in nodes])
        way_out = f"use --gpus-per-member {share:g}, or fewer members (--set n_e={max(1, int(total_gpus // gpus))})"
    else:
        share = _largest_fraction(n_e, [node["CPU"] for node in nodes])
        way_out = f"use --cpus-per-member {share:g}, or fewer members"
    raise InputError(f"the members need {asked} but the cluster has {there}; {way_out}")


def _fits(bundles: list[Resources], nodes: list[Resources]) -> bool:
    free = [dict(node) for node in nodes]
    for bundle in sorted(bundles, key=lambda b: (-b.get("GPU", 0), -b.get("CPU", 0))):
        # The tightest node that holds it, so that a large one stays free for a large bundle.
        seats = [n for n in free if all(n.get(kind, 0) + 1e-9 >= amount for kind, amount in bundle.items())]
        if not seats:
            return False
        seat = min(seats, key=lambda n: (n.get("GPU", 0), n.get("CPU", 0)))
        for kind, amount in bundle.items():
            seat[kind] = seat.get(kind, 0) - amount
    return True


def in_words(resources: Resources) -> str:
    """Resources for a person to read: 2 CPU, 0.5 GPU."""
    return ", ".join(f"{amount:g} {kind}" for kind, amount in resources.items()) or "nothing"


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
