"""The pretended accelerator is one: it tells devices apart, counts what goes to the host, and runs out of memory."""

import pytest
import torch

torch_sim = pytest.importorskip("torch_sim", reason="run by tests/accelerator/build.py", exc_type=ImportError)
pytestmark = pytest.mark.accelerator

HERE, THERE = torch.device("sim", 0), torch.device("sim", 1)


def test_torch_takes_it_for_the_accelerator() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("sim")
    assert torch.accelerator.is_available()
    assert torch.ones(2, device="sim").device == HERE


@pytest.mark.parametrize("other", [torch.device("cpu"), THERE])
def test_no_operation_takes_tensors_of_two_devices(other: torch.device) -> None:
    x, y = torch.rand(4, 3, 8, 8, device=HERE), torch.rand(4, 3, 8, 8, device=other)
    index = torch.tensor([1], device=other)
    for operation in (
        lambda: x + y,
        lambda: torch.cat([x, y]),
        lambda: x.index_select(0, index),
        lambda: torch.where(x > 0, x, y),
        lambda: torch.nn.functional.conv2d(x, y),
        lambda: x.flatten(1) @ y.flatten(1).T,
    ):
        with pytest.raises(RuntimeError, match="same device"):
            operation()


def test_a_value_that_is_read_back_is_counted() -> None:
    x = torch.rand(8, device=HERE)
    torch_sim.start_counting()
    y = (x * 2).sum()
    assert torch_sim.Seen().to_host == 0
    assert bool(y > 0)
    seen = torch_sim.Seen()
    assert seen.to_host == 1
    assert seen.waits == {"_local_scalar_dense": 1}
    assert seen.calls["mul"] == 1


def test_memory_is_counted_and_has_an_end() -> None:
    torch_sim.start_counting()
    before = torch_sim.Seen().live
    x = torch.zeros(1000, device=HERE)
    assert torch_sim.Seen().live == before + 4000
    with torch_sim.limited(spare=100), pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        x + 1
    del x
    seen = torch_sim.Seen()
    assert seen.live == before
    assert seen.peak >= before + 4000
