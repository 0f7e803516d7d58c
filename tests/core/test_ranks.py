"""Ranks of one network, alone: what several of them do together is tested with real ones in tests/engine."""

import torch

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
