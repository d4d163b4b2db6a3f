"""Functions that compute while they communicate, or communicate in a branch.

Written before they were run, in the manner of sequence-parallel layers, of rings that hide their
messages behind a product, and of layers under an adapter.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from benchmarks.faults.ranks.case import RankCases, inputs, one, rank_in, shard, size, summed

CASES = RankCases()

# ---- a sequence-parallel linear, whose backward gathers behind a product ----


class SequenceColumn(Function):
    """Gathers the rows of all ranks, in backward once more, behind a product."""

    @staticmethod
    def forward(ctx, x, w):
        rows, _ = _begun(x)
        ctx.save_for_backward(x, w)
        return rows @ w.t()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        rows, handle = _begun(x, is_async=True)
        whole = (g @ w).contiguous()
        grad_x = torch.empty_like(x)
        handle.wait()
        handle = dist.reduce_scatter_tensor(grad_x, whole, async_op=True)
        grad_w = g.t() @ rows
        handle.wait()
        return grad_x, grad_w


class SequenceColumnEarly(SequenceColumn):
    """Multiplies with the rows before they are there."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        rows, handle = _begun(x, is_async=True)
        grad_w = g.t() @ rows
        handle.wait()
        grad_x = torch.empty_like(x)
        dist.reduce_scatter_tensor(grad_x, (g @ w).contiguous())
        return grad_x, grad_w


def _begun(x: Tensor, *, is_async: bool = False) -> tuple[Tensor, dist.Work | None]:
    rows = torch.empty(len(x) * size(), *x.shape[1:], dtype=x.dtype)
    return rows, dist.all_gather_into_tensor(rows, x.contiguous(), async_op=is_async)


_COLUMN = {"reference": lambda x, w: [torch.cat(list(x)) @ one.t() for one in w]}
CASES.add(SequenceColumn, inputs(shard(2, 4), shard(3, 4, seed=1)), **_COLUMN)
CASES.add(
    SequenceColumnEarly,
    inputs(shard(2, 4), shard(3, 4, seed=1)),
    **_COLUMN,
    rule="unwaited-handle",
)

# ---- a ring in two halves of one buffer: one is received while the other is used ----


class HalvesOfRing(Function):
    """Each half of the next rank's rows is used as soon as it is there."""

    @staticmethod
    def forward(ctx, x):
        return _in_halves(x, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return _in_halves(g, -1)


def _in_halves(x: Tensor, by: int) -> Tensor:
    me, n = rank_in(), size()
    sent, got = x.contiguous(), torch.empty(x.shape, dtype=x.dtype)
    out = torch.empty_like(got)
    handles = []
    for mine, place in zip(sent.chunk(2), got.chunk(2), strict=True):
        handles.append([dist.isend(mine, (me + by) % n), dist.irecv(place, (me - by) % n)])
    doubled = sent * 2  # what is sent may be read
    for pair, place, part in zip(handles, got.chunk(2), out.chunk(2), strict=True):
        for handle in pair:
            handle.wait()
        part.copy_(place)
    return out + 0 * doubled.sum()


class SentAndOverwritten(HalvesOfRing):
    """Clears what it sends before it is sent."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        me, n = rank_in(), size()
        sent, got = g.contiguous().clone(), torch.empty(g.shape, dtype=g.dtype)
        handle = dist.isend(sent, (me - 1) % n)
        sent.zero_()
        dist.irecv(got, (me + 1) % n).wait()
        handle.wait()
        return got


_AROUND = {"reference": lambda x: [x[rank - 1] for rank in range(len(x))]}
CASES.add(HalvesOfRing, inputs(shard(4, 3)), **_AROUND)
CASES.add(SentAndOverwritten, inputs(shard(4, 3)), **_AROUND, rule="unwaited-handle")

# ---- a gather that is waited for in backward, and a sum that is asked for its shape ----


class WaitsInBackward(Function):
    """Begins in forward the gather that backward needs."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.rows, ctx.handle = _begun(x, is_async=True)
        ctx.save_for_backward(w, ctx.rows)
        total = torch.empty_like(ctx.rows.view(-1, x.shape[1])[: len(x)])
        dist.reduce_scatter_tensor(total, (w @ x.t() @ x).contiguous().repeat(size(), 1))
        ctx.x = x
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        w, rows = ctx.saved_tensors
        ctx.handle.wait()
        x = rows[rank_in() * len(ctx.x) :][: len(ctx.x)]
        whole = summed(g)
        grad_p = w.t() @ whole  # of x.t() @ x, seen as one matrix
        return x @ (w.t() @ whole).t() + x @ grad_p, whole @ (x.t() @ x).t()


CASES.add(WaitsInBackward, inputs(shard(4, 4), shard(4, 4, seed=1)))

# ---- a column-parallel linear under an adapter ----


class AdaptedColumn(Function):
    """Communicates for the gradient of `x` alone."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        grad_x = summed(g @ w) if ctx.needs_input_grad[0] else None
        return grad_x, g.t() @ x if ctx.needs_input_grad[1] else None


class FrozenLeavesOut(AdaptedColumn):
    """Sums only where the weight is trained."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        if not ctx.needs_input_grad[1]:
            return g @ w, None
        return summed(g @ w), g.t() @ x


_ADAPTED = {
    "placements": {"x": "replicate", "w": "shard", "out": "shard"},
    "reference": lambda x, w: [x @ one.t() for one in w],
}
CASES.add(AdaptedColumn, inputs(one(5, 4), shard(3, 4, seed=1)), **_ADAPTED)
CASES.add(
    FrozenLeavesOut,
    inputs(one(5, 4), shard(3, 4, seed=1)),
    **_ADAPTED,
    rule="frozen-across-ranks",
)

# ---- a sum that depends on the numbers of a rank ----


class SumIfPositive(Function):
    """Whether a rank takes part in backward depends on its numbers."""

    @staticmethod
    def forward(ctx, x):
        ctx.is_positive = bool(x.mean() > 0)
        return summed(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return summed(g) if ctx.is_positive else g.clone()


CASES.add(
    SumIfPositive,
    lambda rank: (shard(4, 3)(rank).detach().abs().sub(0.2).requires_grad_(),),
    reference=lambda x: sum(x),
    rule="ranks-deadlock",
)

# ---- rows in a zigzag, so that every rank has as much of a causal mask ----


class ZigzagRows(Function):
    """Every rank gets an early and a late chunk of rows."""

    @staticmethod
    def forward(ctx, x):
        return _ordered(x, _zigzag())

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        order = _zigzag()
        return _ordered(g, [order.index(chunk) for chunk in range(len(order))])


class ZigzagTwice(ZigzagRows):
    """Takes the same way back."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return _ordered(g, _zigzag())


def _zigzag() -> list[int]:
    n = size()
    return [chunk for rank in range(n) for chunk in (rank, 2 * n - 1 - rank)]


def _ordered(x: Tensor, order: list[int]) -> Tensor:
    rows, _ = _begun(x)
    chunks = rows.chunk(2 * size())
    return torch.cat([chunks[order[2 * rank_in() + half]] for half in range(2)])


def _zigzag_of(x: list[Tensor]) -> list[Tensor]:
    chunks = torch.cat(list(x)).chunk(2 * len(x))
    return [torch.cat([chunks[r], chunks[2 * len(x) - 1 - r]]) for r in range(len(x))]


CASES.add(ZigzagRows, inputs(shard(4, 2)), reference=_zigzag_of)
CASES.add(ZigzagTwice, inputs(shard(4, 2)), reference=_zigzag_of, rule="wrong-across-ranks")

SOUND = [case for case in CASES if not case.rules]
PLANTED = [case for case in CASES if case.rules]
