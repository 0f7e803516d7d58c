"""Ranks of one network, alone: what several of them do together is tested with real ones in tests/engine."""

import resource
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from ray_adaplr.core.ranks import ALONE, Ranks


def test_the_parts_of_the_ranks_are_the_whole_batch_and_differ_by_one_at_most() -> None:
    rows = slice(7, 7 + 11)
    parts = [Ranks(rank, 3).part(rows) for rank in range(3)]
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(7, 18))
    assert {part.stop - part.start for part in parts} == {3, 4}


def test_a_rank_alone_asks_nobody() -> None:
    logits, weight = torch.rand(4, 2), torch.nn.Parameter(torch.ones(2))
    assert ALONE.whole(logits, slice(0, 4)) is logits
    weight.grad = torch.ones(2)
    ALONE.add_gradients([weight])  # there is no process group that could answer
    with ALONE.synchronised():
        assert torch.nn.BatchNorm1d(2)(logits).shape == (4, 2)


@pytest.fixture
def group_of_one() -> Iterator[None]:
    """A process group in which a sum is the rank's own term."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_summed_gradients_stay_where_they_belong_however_weights_lie_in_memory(group_of_one: None) -> None:
    odd = torch.nn.Parameter(torch.rand(5, 4).t())
    convolution = torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    parameters = [odd, *convolution.parameters(), torch.nn.Parameter(torch.rand(()))]
    for parameter in parameters:
        parameter.grad = torch.rand(parameter.shape)  # also where it lies otherwise than its weight
    before = [parameter.grad.clone() for parameter in parameters]
    Ranks(0, 2).add_gradients(parameters)
    assert all(torch.equal(parameter.grad, grad) for parameter, grad in zip(parameters, before))


def test_the_message_of_gradients_is_faulted_in_once(group_of_one: None) -> None:
    ranks, weight = Ranks(0, 2), torch.nn.Parameter(torch.rand(12 << 20))  # 48 MB: the C library keeps none of it
    weight.grad = torch.rand_like(weight)
    ranks.add_gradients([weight])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    ranks.add_gradients([weight])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 1000
