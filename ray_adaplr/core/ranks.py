"""One network trained by several processes, its *ranks*: each takes its slice of every batch, all end with one result.

After the forward pass every rank gets the logits of the whole batch, so a loss is computed on the whole batch as if
there were one rank, whatever terms it has; its gradient goes through the rank's own slice, and the ranks' gradients are
added up. BatchNorm normalises with the statistics of the whole batch. What a sum leaves is the order of its terms: two
ranks equal one to float error, and the same number of ranks gives the same bits again.
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

LEAST_IMAGES = 32  # of a batch for each rank: below, a rank waits for the others more than it works


class PeerLost(ConnectionError):
    """Another rank of the same network does not answer; whoever has started them starts all of them again."""


@dataclass(frozen=True)
class Ranks:
    """Which rank this process is, and of how many. More than one talk through torch's default process group."""

    rank: int = 0
    world: int = 1
    _kept: dict[Any, Tensor] = field(default_factory=dict, repr=False, compare=False)  # memory of the last message

    def part(self, rows: slice) -> slice:
        """This rank's part of a batch."""
        size = rows.stop - rows.start
        return slice(rows.start + size * self.rank // self.world, rows.start + size * (self.rank + 1) // self.world)

    def whole(self, own: Tensor, rows: slice) -> Tensor:
        """The rows of the whole batch from each rank's own part, [b, ...]; the gradient goes to the own part alone."""
        if self.world == 1:
            return own
        part = self.part(rows)
        before, after = part.start - rows.start, rows.stop - part.stop
        everything = own.new_zeros(rows.stop - rows.start, *own.shape[1:])
        everything[before : len(everything) - after] = own.detach()
        added_up(everything)
        return torch.cat([everything[:before], own, everything[len(everything) - after :]])

    @torch.no_grad()
    def add_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace gradients by their sums over the ranks, all in one message and always in the same order.

        The message's memory is kept for the next step: new memory of that size would be faulted in each time.
        """
        if self.world == 1:
            return
        gradients = [_as_it_lies(each.grad, each) for each in parameters if each.grad is not None]
        flat = [gradient.reshape(-1) for gradient in gradients]
        message = self._kept.setdefault((flat[0].dtype, flat[0].device), flat[0].new_empty(0))
        total = added_up(torch.cat(flat, out=message.resize_(sum(map(len, flat)))))
        for gradient, part in zip(gradients, total.split([len(each) for each in flat])):
            gradient.copy_(part.view(gradient.shape))

    def synchronised(self) -> contextlib.AbstractContextManager[Any]:
        """Meanwhile BatchNorm in training sees the whole batch."""
        return contextlib.nullcontext() if self.world == 1 else _WholeBatchNorm()


ALONE = Ranks()


def _as_it_lies(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The gradient with its dimensions in the order in which the parameter's lie in memory, the same on all ranks.

    Convolutions lie with channels last; in any other order each number would be fetched from elsewhere.
    """
    strides = parameter.stride()
    return gradient.permute(sorted(range(parameter.dim()), key=lambda dim: -strides[dim]))


def added_up(tensor: Tensor) -> Tensor:
    """The sum over all ranks, in place where the device can; gloo adds in the host's memory. PeerLost if any is."""
    staged = tensor.cpu() if dist.get_backend() == "gloo" else tensor
    try:
        dist.all_reduce(staged)
    except RuntimeError as error:
        raise PeerLost(f"another rank of this member does not answer: {error}") from error
    return tensor if staged is tensor else tensor.copy_(staged)


class _WholeBatchNorm(TorchFunctionMode):
    """Every `batch_norm` on a batch's own statistics, in whatever layer, takes those of all ranks' parts together."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        return _batch_norm(*args, **kwargs) if func is F.batch_norm else func(*args, **kwargs)


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`torch.nn.functional.batch_norm` on the batch of all ranks."""
    if not training:
        return F.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    output, mean, variance, count = _Normalised.apply(input, weight, bias, eps)
    with torch.no_grad():
        if running_mean is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        if running_var is not None:
            unbiased = variance * (count / (count - 1))
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    return output


class _Normalised(torch.autograd.Function):
    """BatchNorm by the mean and variance of all ranks' images; also returns these and how many values they are of."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        channels = input.shape[1]
        kind = torch.promote_types(input.dtype, torch.float32)  # sums of half-precision values are float32
        zeros = torch.zeros(channels, dtype=kind, device=input.device)
        count = torch.full((1,), float(input.numel() // channels), dtype=kind, device=input.device)
        mean, variance = zeros, zeros
        if len(input):
            mean, variance = torch.batch_norm_update_stats(input, zeros.clone(), zeros + 1, 0.0)
        # One row per rank. Its own mean and squares about it: sums of plain squares would cancel.
        rows = zeros.new_zeros(dist.get_world_size(), 2 * channels + 1)
        rows[dist.get_rank()] = torch.cat([count, mean, variance])
        counts, means, variances = added_up(rows).split([1, channels, channels], dim=1)
        total = counts.sum(0)
        mean = (counts * means).sum(0) / total
        variance = (counts * (variances + (means - mean) ** 2)).sum(0) / total
        output = F.batch_norm(input, mean, variance, weight, bias, False, 0.0, eps)
        ctx.save_for_backward(input, weight, mean, variance, total)
        ctx.eps = eps
        ctx.mark_non_differentiable(mean, variance, total)
        return output, mean, variance, total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        input, weight, mean, variance, total = ctx.saved_tensors
        gradient, scale, wanted = gradients[0], (variance + ctx.eps).rsqrt(), [False, True, True]
        factor = scale if weight is None else scale * weight
        # With fixed statistics these are plain sums over images, of gradient x normalised value and of gradient.
        _, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            gradient, input, torch.ones_like(mean), mean, variance, None, None, False, ctx.eps, wanted
        )
        # Of the own images; the same sums over all ranks' stand in the derivative by an image.
        in_all = added_up(torch.cat([of_weight, of_bias])) / total
        by_weight, by_bias = in_all.split(len(of_bias))
        shape = (1, -1, *[1] * (input.dim() - 2))
        slope = -factor * scale * by_weight
        offset = -factor * by_bias - slope * mean
        of_input = torch.addcmul(offset.view(shape), input, slope.view(shape)).addcmul_(gradient, factor.view(shape))
        own = (None, None) if weight is None else (of_weight, of_bias)
        return of_input.to(input.dtype), *own, None
