"""More Functions in the manner of training frameworks: buffers, statistics, several at once.

Written before they were run, in the styles that a second reading of such code brought up.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from benchmarks.faults.ranks.case import RankCases, inputs, one, shard, size, summed

CASES = RankCases()

# ---- several tensors in one sum, and an output without a derivative ----


def _split(flat: Tensor, like: tuple[Tensor, ...], order: list[int]) -> tuple[Tensor, ...]:
    found: dict[int, Tensor] = {}
    start = 0
    for number in order:
        count = like[number].numel()
        found[number] = flat[start : start + count].view(like[number].shape).clone()
        start += count
    return tuple(found[number] for number in range(len(like)))


class BucketSum(Function):
    """The sums of several tensors in one collective, and how many numbers were sent."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        flat = summed(torch.cat([tensor.reshape(-1) for tensor in tensors]))
        count = torch.tensor(flat.numel())
        ctx.mark_non_differentiable(count)
        return (*_split(flat, tensors, list(range(len(tensors)))), count)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        own = grads[:-1]
        flat = summed(torch.cat([grad.reshape(-1) for grad in own]))
        return _split(flat, own, list(range(len(own))))


class BucketMixed(BucketSum):
    """Backward takes the parts out in another order than it has put them in."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        own = grads[:-1]
        flat = summed(torch.cat([grad.reshape(-1) for grad in own]))
        return _split(flat, own, sorted(range(len(own)), key=lambda i: own[i].numel()))


_BUCKET = inputs(shard(2, 3), shard(4, seed=1), shard(1, 2, seed=2))
CASES.add(BucketSum, _BUCKET)
CASES.add(BucketMixed, _BUCKET, rule="wrong-across-ranks")

# ---- synchronised norm whose weights' gradients are summed elsewhere ----


class SynchronisedNorm(Function):
    """Statistics of all ranks' rows; the gradients of weight and bias are each rank's share."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, running: Tensor) -> Tensor:
        rows = torch.tensor([float(len(x))], dtype=x.dtype)
        sums, squares, rows = summed(torch.cat([x.sum(0), (x * x).sum(0), rows])).split(
            [x.shape[1], x.shape[1], 1]
        )
        mean = sums / rows
        inverse = (squares / rows - mean * mean + 1e-3).rsqrt()
        running.mul_(0.9).add_(mean.to(running.dtype), alpha=0.1)
        ctx.save_for_backward(x, weight, mean, inverse, rows)
        return (x - mean) * inverse * weight + bias

    @staticmethod
    def gradients(ctx: Any, grad: Tensor, rows: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients, where `rows` are counted."""
        x, weight, mean, inverse, _ = ctx.saved_tensors
        normed = (x - mean) * inverse
        by_bias, by_weight = grad.sum(0), (grad * normed).sum(0)
        both = summed(torch.stack([by_bias, by_weight])) / rows
        by_x = weight * inverse * (grad - both[0] - normed * both[1])
        return by_x, by_weight, by_bias, None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return SynchronisedNorm.gradients(ctx, grad, ctx.saved_tensors[-1])


class NormCountsOwnRows(SynchronisedNorm):
    """Backward takes every rank to have as many rows as this one."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows = torch.tensor(float(len(grad) * size()), dtype=grad.dtype)
        return SynchronisedNorm.gradients(ctx, grad, rows)


def _rows(rank: int) -> tuple[Any, ...]:
    weights = one(2, seed=3)(rank), one(2, seed=4)(rank)
    return (shard(3 + rank, 2)(rank), *weights, torch.zeros(2))


CASES.add(SynchronisedNorm, _rows)
CASES.add(NormCountsOwnRows, _rows, rule="wrong-across-ranks")

# ---- a buffer that all layers gather into ----

_BUFFERS: dict[Any, Tensor] = {}


def _buffered(x: Tensor) -> Tensor:
    """All ranks' rows, in memory that is used again by the next call."""
    shape = (len(x) * size(), *x.shape[1:])
    whole = _BUFFERS.setdefault((shape, x.dtype), x.new_empty(shape))
    dist.all_gather_into_tensor(whole, x.contiguous())
    return whole


def _scattered(grad: Tensor) -> Tensor:
    part = grad.new_empty(len(grad) // size(), *grad.shape[1:])
    dist.reduce_scatter_tensor(part, grad.contiguous())
    return part


class BufferedLinear(Function):
    """The rows are gathered again in backward: the buffer is another layer's by then."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _buffered(x) @ weight.t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return _scattered(grad @ weight), grad.t() @ _buffered(x)


class BufferKept(BufferedLinear):
    """Backward reads the buffer as it has become."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.whole = _buffered(x)
        ctx.save_for_backward(weight)
        return ctx.whole @ weight.t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        (weight,) = ctx.saved_tensors
        return _scattered(grad @ weight), grad.t() @ ctx.whole


_LINEAR = inputs(shard(2, 3), shard(4, 3, seed=5))
CASES.add(BufferedLinear, _LINEAR)
CASES.add(BufferKept, _LINEAR, rule="written-by-collective")

# ---- a program of two Functions ----


class IntoParallel(Function):
    """The same value on all ranks, whose gradients are summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return summed(grad)


class OutOfParallel(Function):
    """The sum over the ranks, as one value."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return summed(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def parallel_layers(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Two layers, of which each rank has some columns and the same rows."""
    hidden = torch.tanh(IntoParallel.apply(x) @ first.t())  # type: ignore[no-untyped-call]
    found: Tensor = OutOfParallel.apply(hidden @ second.t())  # type: ignore[no-untyped-call]
    return found


CASES.add(parallel_layers, inputs(one(2, 3), shard(4, 3, seed=6), shard(3, 4, seed=7)))

SOUND = [case for case in CASES if not case.rules]
PLANTED = [case for case in CASES if case.rules]
