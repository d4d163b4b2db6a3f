"""Meshes of ranks, pipelines, exchanges of tokens and rows, DTensors, operators, surrogates.

Written before they were run, by somebody who had not written the cases before.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)

from benchmarks.faults.ranks.case import RankCases, inputs, one, rank_in, shard, size, summed

CASES = RankCases()

# ---- a mesh: tensor parallel in pairs, data parallel across them ----


def _mesh(rank: int) -> tuple[Any, Any]:
    """The pair of this rank, and the ranks that have its place in other pairs."""
    count = size()
    rows = [dist.new_group([i, i + 1]) for i in range(0, count, 2)]
    columns = [dist.new_group(list(range(j, count, 2))) for j in range(2)]
    return rows[rank // 2], columns[rank % 2]


class MeshColumn(Function):
    """A column-parallel linear whose weights' gradients are summed over data-parallel ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, tensor: Any, data: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.tensor, ctx.data = tensor, data
        return x @ weight.t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        return summed(grad @ weight, ctx.tensor), summed(grad.t() @ x, ctx.data), None, None


class MeshColumnSwapped(MeshColumn):
    """Backward takes each group for the other."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        return summed(grad @ weight, ctx.data), summed(grad.t() @ x, ctx.tensor), None, None


class MeshRow(Function):
    """A row-parallel linear on the same mesh."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, tensor: Any, data: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.data = data
        return summed(x @ weight.t(), tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        return grad @ weight, summed(grad.t() @ x, ctx.data), None, None


class MeshRowMean(MeshRow):
    """The gradient of the weights is a mean over the data-parallel ranks."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        return grad @ weight, summed(grad.t() @ x, ctx.data) / size(ctx.data), None, None


def _by_column(rank: int) -> tuple[Any, ...]:
    return (shard(3, 4)(rank // 2), shard(2, 4, seed=1)(rank % 2), *_mesh(rank))


def _by_row(rank: int) -> tuple[Any, ...]:
    return (shard(3, 4)(rank), shard(2, 4, seed=1)(rank % 2), *_mesh(rank))


CASES.add(MeshColumn, _by_column)
CASES.add(MeshColumnSwapped, _by_column, rule="wrong-group", least=4)
CASES.add(MeshRow, _by_row)
CASES.add(MeshRowMean, _by_row, rule="rank-factor", least=4)

# ---- a pipeline: each rank is a stage ----


def _received(like: Tensor, source: int) -> Tensor:
    found = torch.empty_like(like, memory_format=torch.contiguous_format)
    dist.recv(found, source)
    return found


class Pipeline(Function):
    """One layer for each rank; the last has the result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        me, last = rank_in(), size() - 1
        hidden = _received(x, me - 1) if me else x
        out = torch.tanh(hidden @ weight)
        if me < last:
            dist.send(out, me + 1)
        ctx.save_for_backward(hidden, weight, out)
        return out if me == last else torch.zeros_like(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        hidden, weight, out = ctx.saved_tensors
        me, last = rank_in(), size() - 1
        if me < last:
            grad = _received(out, me + 1)
        inside = grad * (1 - out * out)
        back = inside @ weight.t()
        if me:
            dist.send(back.contiguous(), me - 1)
        return back if me == 0 else torch.zeros_like(back), hidden.t() @ inside


class PipelineSendsItsOwn(Pipeline):
    """Each stage sends on what it was sent, and not the gradient of what it was given."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        hidden, weight, out = ctx.saved_tensors
        me, last = rank_in(), size() - 1
        if me < last:
            grad = _received(out, me + 1)
        if me:
            dist.send(grad.contiguous(), me - 1)
        inside = grad * (1 - out * out)
        back = inside @ weight.t()
        return back if me == 0 else torch.zeros_like(back), hidden.t() @ inside


_STAGES = inputs(shard(2, 3), shard(3, 3, seed=1))
CASES.add(Pipeline, _STAGES)
CASES.add(PipelineSendsItsOwn, _STAGES, rule="wrong-across-ranks")

# ---- from one rank to all by messages; those that are not sent to have an input without a use ----


class DealtOut(Function):
    """Rank 0 sends a part of its input to each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [part.contiguous() for part in x.chunk(size())]
        if rank_in():
            return _received(parts[0], 0)
        for other in range(1, size()):
            dist.send(parts[other], other)
        return parts[0].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if rank_in():
            dist.send(grad.contiguous(), 0)
            return torch.zeros(size() * len(grad), *grad.shape[1:], dtype=grad.dtype)
        return torch.cat([grad, *(_received(grad, other) for other in range(1, size()))])


CASES.add(DealtOut, inputs(shard(4, 2)))

# ---- tokens and rows that travel by numbers which forward exchanges ----


def _exchanged(x: Tensor, got: list[int], sent: list[int]) -> Tensor:
    found = x.new_empty((sum(got), *x.shape[1:]))
    dist.all_to_all_single(found, x.contiguous(), got, sent)
    return found


def _plan(owner: Tensor) -> tuple[Tensor, list[int], list[int]]:
    """The order by owner, and how many each rank gets and sends."""
    counts = torch.bincount(owner, minlength=size())
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts)
    return torch.argsort(owner, stable=True), theirs.tolist(), counts.tolist()


class RoutedTokens(Function):
    """The tokens that the ranks send to the expert of this one."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, expert: Tensor) -> Tensor:
        ctx.order, ctx.got, ctx.sent = _plan(expert)
        return _exchanged(tokens[ctx.order], ctx.got, ctx.sent)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        back = _exchanged(grad, ctx.sent, ctx.got)
        found = torch.empty_like(back)
        found[ctx.order] = back
        return found, None


class RoutedInOrderOfExperts(RoutedTokens):
    """The gradients stay in the order in which the tokens were sent."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return _exchanged(grad, ctx.sent, ctx.got), None


class RowsOfAll(Function):
    """Rows of a table of which each rank has a part."""

    @staticmethod
    def forward(ctx: Any, numbers: Tensor, table: Tensor) -> Tensor:
        ctx.order, ctx.got, ctx.sent = _plan(numbers // len(table))
        ctx.rows = _exchanged(numbers[ctx.order], ctx.got, ctx.sent) % len(table)
        ctx.shape = table.shape
        found = _exchanged(table[ctx.rows], ctx.sent, ctx.got)
        out = torch.empty_like(found)
        out[ctx.order] = found
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        back = _exchanged(grad[ctx.order], ctx.got, ctx.sent)
        return None, grad.new_zeros(ctx.shape).index_add_(0, ctx.rows, back)


class RowsOverwritten(RowsOfAll):
    """A row that several ask for gets the gradient of the last."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        back = _exchanged(grad[ctx.order], ctx.got, ctx.sent)
        found = grad.new_zeros(ctx.shape)
        found[ctx.rows] = back
        return None, found


def _routed(rank: int) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(rank)
    return shard(5, 3)(rank), torch.randint(0, size(), (5,), generator=generator)


def _asked(rank: int) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(0, 3 * size(), (7,), generator=generator), shard(3, 2)(rank)


CASES.add(RoutedTokens, _routed)
CASES.add(RoutedInOrderOfExperts, _routed, rule="wrong-across-ranks")
CASES.add(RowsOfAll, _asked)
CASES.add(RowsOverwritten, _asked, rule="wrong-across-ranks")

# ---- a sum of everything before, over all ranks ----


class RunningSum(Function):
    """The cumulative sum of the rows of all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _onwards(x, range(rank_in()))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _onwards(grad.flip(0), range(rank_in() + 1, size())).flip(0)


class RunningSumOnwards(RunningSum):
    """Backward adds what comes before, and not what comes after."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _onwards(grad.flip(0), range(rank_in())).flip(0)


def _onwards(x: Tensor, others: range) -> Tensor:
    own = x.cumsum(0)
    totals = [torch.empty_like(own[-1]) for _ in range(size())]
    dist.all_gather(totals, own[-1].contiguous())
    return own + sum((totals[other] for other in others), torch.zeros_like(own[-1]))


CASES.add(RunningSum, inputs(shard(3, 2)))
CASES.add(RunningSumOnwards, inputs(shard(3, 2)), rule="wrong-across-ranks")

# ---- messages in batches ----


def _batched(x: Tensor, by: int) -> tuple[Tensor, list[Any]]:
    me, count = rank_in(), size()
    found = torch.empty_like(x, memory_format=torch.contiguous_format)
    sends = dist.P2POp(dist.isend, x.contiguous(), (me + by) % count)
    receives = dist.P2POp(dist.irecv, found, (me - by) % count)
    return found, dist.batch_isend_irecv([sends, receives])


class BatchedShift(Function):
    """A ring shift by one batch of messages."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        found, handles = _batched(x, 1)
        for handle in handles:
            handle.wait()
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return BatchedShift.returned(grad, 2)

    @staticmethod
    def returned(grad: Tensor, waits: int) -> Tensor:
        """The gradient from the rank after this one, after some of the handles."""
        found, handles = _batched(grad, -1)
        for handle in handles[:waits]:
            handle.wait()
        return found


class BatchHalfAwaited(BatchedShift):
    """Only the first handle of the batch is waited for."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return BatchedShift.returned(grad, 1)


CASES.add(BatchedShift, inputs(shard(3, 2)))
CASES.add(BatchHalfAwaited, inputs(shard(3, 2)), rule="unwaited-handle")

# ---- DTensors, and operators whose results are not there yet ----


def _spread(placement: Placement) -> Any:
    return lambda rank: (
        distribute_tensor(one(4, 3)(rank).detach(), init_device_mesh("cpu", (size(),)), [placement])
        .detach()
        .requires_grad_(),
    )


class SumOfParts(Function):
    """The sum of the rows of a DTensor, as a partial one."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.spread = x.device_mesh, x.placements, x.to_local().shape
        local = x.to_local().sum(0)
        return DTensor.from_local(local, x.device_mesh, [Partial()], run_check=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Any) -> Any:
        return SumOfParts.returned(ctx, grad, 1)

    @staticmethod
    def returned(ctx: Any, grad: Any, divisor: int) -> Any:
        """The cotangent for every row, divided."""
        mesh, placements, shape = ctx.spread
        whole = grad.redistribute(placements=[Replicate()]).to_local() / divisor
        return DTensor.from_local(whole.expand(shape).contiguous(), mesh, placements)


class SumOfPartsDivided(SumOfParts):
    """Backward divides by the number of ranks."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Any) -> Any:
        return SumOfParts.returned(ctx, grad, size())


class SumSaidToBeWhole(SumOfParts):
    """Each rank's sum is said to be that of all."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.spread = x.device_mesh, x.placements, x.to_local().shape
        local = x.to_local().sum(0)
        return DTensor.from_local(local, x.device_mesh, [Replicate()], run_check=False)


CASES.add(SumOfParts, _spread(Shard(0)))
CASES.add(SumOfPartsDivided, _spread(Shard(0)), rule="rank-factor")
CASES.add(SumSaidToBeWhole, _spread(Shard(0)), rule="dtensor-placement")


def operators(x: Tensor) -> Tensor:
    """A gather by the operators of PyTorch's own, whose result is waited for when it is used."""
    group = dist.group.WORLD
    assert group is not None
    found: Tensor = functional.all_gather_tensor_autograd(x.sin(), 0, group)
    return found


CASES.add(operators, inputs(shard(4, 3)))

# ---- a backward that autograd cannot follow ----


class GatheredRows(Function):
    """All ranks' rows; backward writes into a tensor of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        found = x.new_empty((size() * len(x), *x.shape[1:]))
        dist.all_gather_into_tensor(found, x.contiguous())
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return GatheredRows.returned(grad)

    @staticmethod
    def returned(grad: Tensor) -> Tensor:
        """The sum of all ranks' gradients for the rows of this one."""
        found = grad.new_empty((len(grad) // size(), *grad.shape[1:]))
        dist.reduce_scatter_tensor(found, grad.contiguous())
        return found


class GatheredOnceSilently(GatheredRows):
    """Nothing refuses a second derivative."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return GatheredRows.returned(grad)


CASES.add(GatheredRows, inputs(shard(2, 3)))
CASES.add(GatheredOnceSilently, inputs(shard(2, 3)), rule="second-across-ranks")

# ---- a gradient that is not forward's, on purpose ----


class CoarseSum(Function):
    """A sum of rounded numbers; the gradient is that of the sum."""

    declares: ClassVar[dict[str, bool]] = {"surrogate": True}

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        largest = x.abs().amax()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        step = largest / 127
        whole = torch.round(x / step).to(torch.int32)
        dist.all_reduce(whole)
        return whole.to(x.dtype) * step

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return summed(grad)


class CoarseSumUndeclared(CoarseSum):
    """The same, and nothing says that it is meant."""

    declares: ClassVar[dict[str, bool]] = {"surrogate": False}


CASES.add(CoarseSum, inputs(shard(3, 4)))
CASES.add(CoarseSumUndeclared, inputs(shard(3, 4)), rule="wrong-across-ranks")

SOUND = [case for case in CASES if not case.rules]
PLANTED = [case for case in CASES if case.rules]
