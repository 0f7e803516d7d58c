"""Resource shares and the fit check: pure functions over what each node has."""

import pytest

from ray_adaplr.config import ScalingConfig
from ray_adaplr.engine.placement import check_fit, member_share
from ray_adaplr.errors import InputError, checked_model


def node(cpu: float, gpu: float = 0) -> dict[str, float]:
    return {"CPU": cpu, "GPU": gpu}


@pytest.mark.parametrize(
    ("nodes", "share"),
    [
        ([node(2)], {"CPU": 0.5}),
        ([node(8)], {"CPU": 1}),
        ([node(1), node(1)], {"CPU": 0.5}),
        ([node(8, 1)], {"CPU": 1, "GPU": 0.3333}),
        ([node(8, 2)], {"CPU": 1, "GPU": 0.5}),
        ([node(8, 4)], {"CPU": 1, "GPU": 1}),
        ([node(4, 1)] * 3, {"CPU": 1, "GPU": 1}),
    ],
)
def test_three_members_get_the_largest_share_that_seats_them_all(nodes: list, share: dict) -> None:
    assert member_share(3, nodes, None, None) == share
    check_fit([member_share(3, nodes, None, None)] * 3, nodes)


def test_too_few_gpus_are_told_with_what_there_is_and_what_would_fit() -> None:
    with pytest.raises(InputError, match=r"3 x \(1 CPU, 1 GPU\).*node 0: 8 CPU, 2 GPU.*--gpus-per-member 0\.5.*n_e=2"):
        check_fit([{"CPU": 1, "GPU": 1}] * 3, [node(8, 2)])


def test_no_gpu_at_all_points_to_cpus() -> None:
    with pytest.raises(InputError, match="--gpus-per-member 0 to train on CPUs"):
        check_fit([{"CPU": 1, "GPU": 1}] * 3, [node(8)])


def test_a_bundle_must_fit_on_one_node() -> None:
    check_fit([{"CPU": 2}, {"CPU": 2}], [node(2), node(2)])
    with pytest.raises(InputError):
        check_fit([{"CPU": 3}], [node(2), node(2)])


def test_members_take_their_cpus_from_the_nodes_that_have_gpus() -> None:
    nodes = [node(64), node(1, 2)]
    share = member_share(2, nodes, None, None)
    assert share == {"CPU": 0.5, "GPU": 1}
    check_fit([share] * 2, nodes)


@pytest.mark.parametrize(
    ("settings", "words"), [({"gpus_per_member": 2}, "one GPU at most"), ({"wait_for_nodes": 60}, "cannot be counted")]
)
def test_impossible_scaling_is_refused_with_a_sentence(settings: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        checked_model(ScalingConfig, settings)
