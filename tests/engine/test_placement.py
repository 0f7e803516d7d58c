"""Resource shares and the fit check, which are pure functions over what each node has; and the wait for resources."""

import pytest

from ray_adaplr.config import ScalingConfig
from ray_adaplr.engine import placement
from ray_adaplr.engine.seating import Seating, check_batch, check_fit, for_one_model, member_share, seating, together
from ray_adaplr.errors import InputError, RunFailed, checked_model


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
    ("settings", "words"),
    [({"gpus_per_member": 2.5}, "several whole ones"), ({"wait_for_nodes": 60}, "cannot be counted")],
)
def test_impossible_scaling_is_refused_with_a_sentence(settings: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        checked_model(ScalingConfig, settings)


@pytest.mark.parametrize(
    ("settings", "nodes", "ranks", "share"),
    [
        ({}, [node(16, 8)], 2, {"CPU": 1, "GPU": 1}),  # by itself, as far as a batch of 64 feeds them
        ({}, [node(16, 5)], 1, {"CPU": 1, "GPU": 1}),
        ({}, [node(8, 3), node(8, 3)], 1, {"CPU": 1, "GPU": 1}),  # a member's ranks on one node, or one rank
        ({}, [node(16)], 1, {"CPU": 1}),
        ({"gpus_per_member": 1}, [node(16, 8)], 1, {"CPU": 1, "GPU": 1}),
        ({"gpus_per_member": 2}, [node(16, 8)], 2, {"CPU": 1, "GPU": 1}),
        ({"gpus_per_member": 0}, [node(16, 8)], 1, {"CPU": 1}),
        ({"ranks_per_member": 2}, [node(3)], 2, {"CPU": 0.5}),
        ({"ranks_per_member": 2, "cpus_per_member": 4}, [node(16)], 2, {"CPU": 2}),
        ({"ranks_per_member": 2, "gpus_per_member": 0}, [node(16, 8)], 2, {"CPU": 1}),
        ({"ranks_per_member": 1}, [node(16, 8)], 1, {"CPU": 1, "GPU": 1}),
        ({"cpus_per_member": 1, "wait_for_nodes": 60}, [node(16, 8)], 1, {"CPU": 1, "GPU": 1}),  # more may come
    ],
)
def test_three_members_have_as_many_ranks_as_told_or_as_gpus_allow(
    settings: dict, nodes: list, ranks: int, share: dict
) -> None:
    seated = seating(3, nodes, ScalingConfig(**settings), batch_size=64)
    assert seated == Seating(3, ranks, share)
    check_fit(seated.bundles, nodes, seated.ranks)


def test_ranks_that_do_not_fit_are_told_with_how_many_would() -> None:
    with pytest.raises(InputError, match=r"3 x 3 ranks x \(1 CPU, 1 GPU\).*use --gpus-per-member 2, or fewer members"):
        check_fit([{"CPU": 1, "GPU": 1}] * 9, [node(8, 8)], ranks=3)
    with pytest.raises(InputError, match="use --ranks-per-member 1, or fewer members"):
        check_fit([{"CPU": 1}] * 6, [node(4)], ranks=2)


def test_the_ranks_of_a_member_sit_on_one_node_where_they_can() -> None:
    assert together(["a", "b", "a", "b"], 2) == [0, 2, 1, 3]
    assert together(["a", "a", "a", "b", "b", "b"], 2) == [0, 1, 3, 4, 2, 5]
    assert together(["b", "a"], 1) == [0, 1]


def test_a_model_of_many_ranks_gets_what_as_many_ranks_of_members_have() -> None:
    scaling = ScalingConfig(ranks_per_member=2, cpus_per_member=3)
    assert seating(1, [node(16)], for_one_model(scaling, 4)) == Seating(1, 4, {"CPU": 1.5})
    shared = for_one_model(ScalingConfig(gpus_per_member=0.5), 2)
    assert seating(1, [node(16, 2)], shared) == Seating(1, 2, {"CPU": 1, "GPU": 1})


def test_seats_on_shares_of_a_gpu_cannot_train_one_model_together() -> None:
    assert Seating(3, 1, {"CPU": 1}).can_train_together(3)
    assert not Seating(3, 1, {"CPU": 1}).can_train_together(4)
    assert Seating(3, 2, {"CPU": 1, "GPU": 1}).can_train_together(6)
    assert not Seating(3, 1, {"CPU": 1, "GPU": 0.5}).can_train_together(2)


def test_a_rank_has_32_images_of_a_batch_or_the_ranks_are_refused() -> None:
    check_batch(ScalingConfig(gpus_per_member=2, distill_workers=2), 64)
    with pytest.raises(InputError, match=r"leaves 21 images for each of 3 ranks.*batch_size=96, or at most 2 ranks"):
        check_batch(ScalingConfig(gpus_per_member=3), 64)
    with pytest.raises(InputError, match="16 images for each of 4 ranks of one model"):
        check_batch(ScalingConfig(distill_workers=4), 64)


@pytest.mark.ray
def test_the_last_second_of_a_wait_for_resources_says_no_more_than_the_others(
    ray_cluster: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(placement, "_PATIENCE", 1.0)
    with pytest.raises(RunFailed, match=r"1 x \(99 CPU\) were not free within 1.9 s"):
        placement.reserve([{"CPU": 99.0}], timeout=1.9)
    assert caplog.text.count("waiting for 1 x (99 CPU)") == 1
