"""Pieces of trainers for large models: overlap, caches, experts, stages, rings and losses.

Written before they were run, and before their author had read the rules.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as nn

from benchmarks.faults.ranks.case import (
    RankCases,
    exchanged,
    gathered,
    inputs,
    one,
    own,
    pairs,
    rank_in,
    shard,
    size,
    summed,
)

CASES = RankCases()


def _rows_of_sum(x: Tensor) -> Tensor:
    """The sum over the ranks, of which each keeps its rows."""
    out = x.new_empty((x.shape[0] // size(), *x.shape[1:]))
    dist.reduce_scatter_tensor(out, x.contiguous())
    return out


# ---- communication beside computation ----


class OverlappedColumn(Function):
    """A column-parallel product: the input's gradient travels while the weight's is made."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, weight = ctx.saved_tensors
        grad_x = grad @ weight
        handle = dist.all_reduce(grad_x, async_op=True)
        grad_weight, grad_bias = grad.t() @ x, grad.sum(0)
        handle.wait()
        return grad_x, grad_weight, grad_bias


class OverlappedColumnUnwaited(OverlappedColumn):
    """Nobody waits for the gradient that travels."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, weight = ctx.saved_tensors
        grad_x = grad @ weight
        dist.all_reduce(grad_x, async_op=True)
        return grad_x, grad.t() @ x, grad.sum(0)


class OverlappedColumnOther(OverlappedColumn):
    """The weight's gradient is summed in the place of the input's."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, weight = ctx.saved_tensors
        grad_weight = grad.t() @ x
        handle = dist.all_reduce(grad_weight, async_op=True)
        grad_x = grad @ weight
        handle.wait()
        return grad_x, grad_weight, grad.sum(0)


_COLUMN = inputs(one(4, 3), shard(2, 3, seed=1), shard(2, seed=2))
_COLUMN_IS = {"x": "replicate", "weight": "shard(0)", "bias": "shard(0)", "out": "shard(-1)"}
CASES.add(OverlappedColumn, _COLUMN)
CASES.add(OverlappedColumnUnwaited, _COLUMN, rule="unwaited-handle")
CASES.add(
    OverlappedColumnOther,
    _COLUMN,
    placements=_COLUMN_IS,
    rule=("missing-collective", "doubled-collective"),
)


class GatheredColumn(Function):
    """Sequence-parallel in, tensor-parallel out: the rows are gathered again in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return gathered(x) @ weight.t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, weight = ctx.saved_tensors
        total = x.new_empty((x.shape[0] * size(), *x.shape[1:]))
        gather = dist.all_gather_into_tensor(total, x.contiguous(), async_op=True)
        grad_total = grad @ weight
        gather.wait()
        grad_x = torch.empty_like(x)
        scatter = dist.reduce_scatter_tensor(grad_x, grad_total, async_op=True)
        grad_weight = grad.t() @ total
        scatter.wait()
        return grad_x, grad_weight


class GatheredColumnEarly(GatheredColumn):
    """The weight's gradient is made before its rows are there."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, weight = ctx.saved_tensors
        total = x.new_zeros((x.shape[0] * size(), *x.shape[1:]))
        gather = dist.all_gather_into_tensor(total, x.contiguous(), async_op=True)
        grad_weight = grad.t() @ total
        gather.wait()
        return _rows_of_sum(grad @ weight), grad_weight


class GatheredColumnOwn(GatheredColumn):
    """Each rank takes its rows of its own gradient, and nobody adds them."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, weight = ctx.saved_tensors
        return own(grad @ weight), grad.t() @ gathered(x)


_GATHERED = inputs(shard(2, 3), shard(4, 3, seed=1))
CASES.add(GatheredColumn, _GATHERED)
CASES.add(
    GatheredColumnEarly, _GATHERED, rule=("unwaited-handle", "arrival-order", "wrong-across-ranks")
)
CASES.add(GatheredColumnOwn, _GATHERED, rule="missing-collective")


class PolledSum(Function):
    """A sum that is looked for again and again, while one rank comes late."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x * x
        ctx.save_for_backward(x)
        if rank_in() == 0:
            time.sleep(0.005)
        handle = dist.all_reduce(y, async_op=True)
        while not handle.is_completed():
            pass
        handle.wait()
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class PolledForEver(PolledSum):
    """The first rank counts until a number that its steps jump over."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        done = 0.0
        while rank_in() == 0 and done != 1.0:
            done += 0.3
        return 2 * x * summed(grad)


CASES.add(PolledSum, inputs(shard(3, 2)))
CASES.add(
    PolledForEver,
    inputs(shard(3, 2)),
    rule="endless-rank",
)

# ---- vocabularies ----


class VocabularyEmbedding(Function):
    """Rows of an embedding that the ranks share out; tokens of other ranks give zeros."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens: Tensor) -> Tensor:
        local = tokens - rank_in() * weight.shape[0]
        outside = (local < 0) | (local >= weight.shape[0])
        local = local.masked_fill(outside, 0)
        ctx.save_for_backward(local, outside)
        ctx.rows = weight.shape[0]
        return summed(weight[local].masked_fill(outside[:, None], 0.0))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        local, outside = ctx.saved_tensors
        rows = grad.masked_fill(outside[:, None], 0.0)
        return grad.new_zeros(ctx.rows, grad.shape[1]).index_add(0, local, rows), None


class VocabularyEmbeddingUnmasked(VocabularyEmbedding):
    """Tokens of other ranks train the first row of this one."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        local, _ = ctx.saved_tensors
        return grad.new_zeros(ctx.rows, grad.shape[1]).index_add(0, local, grad), None


_TOKENS = torch.tensor([0, 5, 2, 3, 1, 2])
CASES.add(VocabularyEmbedding, inputs(shard(3, 2), _TOKENS))
CASES.add(
    VocabularyEmbeddingUnmasked,
    inputs(shard(3, 2), _TOKENS),
    rule=("wrong-across-ranks", "other-ranks-gradient"),
)


class LossWithPenalty(Function):
    """Vocabulary-parallel cross-entropy and the square of its log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, penalty: float) -> Tensor:
        count = logits.shape[1]
        top = logits.max(1).values
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        powers = (logits - top[:, None]).exp()
        total = summed(powers.sum(1))
        local = target - rank_in() * count
        inside = (local >= 0) & (local < count)
        local = local.clamp(0, count - 1)
        hit = logits.gather(1, local[:, None])[:, 0] * inside
        whole = total.log() + top
        ctx.save_for_backward(powers / total[:, None], local, inside, whole)
        ctx.penalty = penalty
        return whole - summed(hit) + penalty * whole.square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        share, local, inside, whole = ctx.saved_tensors
        slope = share * (1 + 2 * ctx.penalty * whole)[:, None]
        slope = slope.scatter_add(1, local[:, None], -inside[:, None].to(slope.dtype))
        return slope * grad[:, None], None, None


class LossWithPenaltyForgotten(LossWithPenalty):
    """The penalty has no gradient."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        share, local, inside, _ = ctx.saved_tensors
        slope = share.scatter_add(1, local[:, None], -inside[:, None].to(share.dtype))
        return slope * grad[:, None], None, None


class LossWithPenaltyOwn(LossWithPenalty):
    """Backward's softmax is that of the rank's own words."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        share, local, inside, whole = ctx.saved_tensors
        share = share / share.sum(1, keepdim=True)
        slope = share * (1 + 2 * ctx.penalty * whole)[:, None]
        slope = slope.scatter_add(1, local[:, None], -inside[:, None].to(slope.dtype))
        return slope * grad[:, None], None, None


_LOGITS = inputs(shard(4, 3), torch.tensor([1, 4, 0, 5]), 0.1)
for target, rule in (
    (LossWithPenalty, ()),
    (LossWithPenaltyForgotten, "wrong-across-ranks"),
    (LossWithPenaltyOwn, ("wrong-across-ranks", "missing-collective")),
):
    CASES.add(target, _LOGITS, rule=rule)


class SharedLogSumExp(Function):
    """The log-sum-exp of all ranks' entries."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        top = x.amax(-1)
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        out = summed((x - top[..., None]).exp().sum(-1)).log() + top
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, out = ctx.saved_tensors
        return grad[..., None] * (x - out[..., None]).exp()


class SharedLogSumExpSoftmax(SharedLogSumExp):
    """Backward is that of one process."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, _ = ctx.saved_tensors
        return grad[..., None] * x.softmax(-1)


CASES.add(SharedLogSumExp, inputs(shard(3, 4)))
CASES.add(
    SharedLogSumExpSoftmax,
    inputs(shard(3, 4)),
    rule=("wrong-across-ranks", "missing-collective"),
)

# ---- sequences ----


def _turned(x: Tensor, scatter: int, gather: int) -> Tensor:
    """The axis `scatter` is shared out, and `gather` is put together."""
    sent = [part.contiguous() for part in x.chunk(size(), scatter)]
    got = [torch.empty_like(part) for part in sent]
    if dist.get_backend() == "gloo":
        stacked = torch.stack(sent)
        out = torch.empty_like(stacked)
        dist.all_to_all_single(out, stacked)
        got = list(out.unbind(0))
    else:
        dist.all_to_all(got, sent)
    return torch.cat(got, gather)


class Turn(Function):
    """From parts of the sequence with all heads to all of it with some heads."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scatter: int, gather: int) -> Tensor:
        ctx.axes = scatter, gather
        return _turned(x, scatter, gather)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        scatter, gather = ctx.axes
        return _turned(grad, gather, scatter), None, None


class TurnAgain(Turn):
    """Backward turns the same way as forward, and makes the shape fit."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scatter: int, gather: int) -> Tensor:
        ctx.shape = x.shape
        return Turn.forward(ctx, x, scatter, gather)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return _turned(grad, *ctx.axes).reshape(ctx.shape), None, None


def _of_heads(rank: int) -> tuple[Any, ...]:
    return (shard(2, 2 * size() ** 2, 2)(rank), 1, 0)


CASES.add(Turn, _of_heads)
CASES.add(TurnAgain, _of_heads, rule=("other-ranks-gradient", "wrong-across-ranks"))


class GatheredAttention(Function):
    """Own queries attend to the keys and values of all ranks."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = gathered(k), gathered(v)
        weights = (q @ keys.t() / math.sqrt(q.shape[1])).softmax(-1)
        ctx.save_for_backward(q, keys, values, weights)
        return weights @ values

    @staticmethod
    def slopes(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, keys, values, weights = ctx.saved_tensors
        of_weights = grad @ values.t()
        of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
        of_scores = of_scores / math.sqrt(q.shape[1])
        return of_scores @ keys, of_scores.t() @ q, weights.t() @ grad

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        of_q, of_keys, of_values = GatheredAttention.slopes(ctx, grad)
        return of_q, _rows_of_sum(of_keys), _rows_of_sum(of_values)


class GatheredAttentionValues(GatheredAttention):
    """What other ranks' queries add to the values is lost."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        of_q, of_keys, of_values = GatheredAttention.slopes(ctx, grad)
        return of_q, _rows_of_sum(of_keys), own(of_values)


_QKV = inputs(shard(3, 2), shard(2, 2, seed=1), shard(2, 2, seed=2))
CASES.add(GatheredAttention, _QKV)
CASES.add(GatheredAttentionValues, _QKV, rule="missing-collective")


def _passed(x: Tensor, by: int) -> Tensor:
    """What the rank `by` before has; both directions in one batch."""
    got = torch.empty_like(x)
    me, n = rank_in(), size()
    steps = [
        dist.P2POp(dist.isend, x.contiguous(), (me + by) % n),
        dist.P2POp(dist.irecv, got, (me - by) % n),
    ]
    for work in dist.batch_isend_irecv(steps):
        work.wait()
    return got


class RingProduct(Function):
    """All rows times the rank's columns, a shard of rows at a time, as they come round."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        n, me = size(), rank_in()
        out = x.new_empty(n, x.shape[0], weight.shape[0])
        block = x
        for step in range(n):
            out[(me - step) % n] = block @ weight.t()
            if step < n - 1:
                block = _passed(block, 1)
        return out.flatten(0, 1)

    @staticmethod
    def turned(ctx: Any, grad: Tensor, last: bool) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        n, me = size(), rank_in()
        parts = grad.reshape(n, x.shape[0], -1)
        block, of_weight = x, torch.zeros_like(weight)
        total = torch.zeros_like(x)
        for step in range(n):
            at = (me - step) % n
            total = total + parts[at] @ weight
            of_weight = of_weight + parts[at].t() @ block
            if step < n - 1 or last:
                block, total = _passed(block, 1), _passed(total, 1)
        return total, of_weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return RingProduct.turned(ctx, grad, last=True)


class RingProductShort(RingProduct):
    """The gradient stops one rank before its owner."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return RingProduct.turned(ctx, grad, last=False)


_RING = inputs(shard(2, 3), shard(2, 3, seed=1))
CASES.add(RingProduct, _RING)
CASES.add(RingProductShort, _RING, rule=("other-ranks-gradient", "wrong-across-ranks"))

# ---- experts ----


class RoutedExperts(Function):
    """Every rank sends rows to every rank's expert and weighs what comes back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, expert: Tensor) -> Tensor:
        rows = exchanged(x)
        back = exchanged((rows @ expert.t()).tanh())
        ctx.save_for_backward(rows, gate, expert, back)
        return gate[:, None] * back

    @staticmethod
    def within(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        rows, gate, expert, _ = ctx.saved_tensors
        of_made = exchanged(gate[:, None] * grad)
        return rows, of_made * (1 - (rows @ expert.t()).tanh().square())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        _, _, expert, back = ctx.saved_tensors
        rows, inner = RoutedExperts.within(ctx, grad)
        return exchanged(inner @ expert), (grad * back).sum(1), inner.t() @ rows


class RoutedExpertsOwnGate(RoutedExperts):
    """The gate's gradient is made of what this rank's expert gave to others."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        _, _, expert, back = ctx.saved_tensors
        rows, inner = RoutedExperts.within(ctx, grad)
        return exchanged(inner @ expert), (grad * exchanged(back)).sum(1), inner.t() @ rows


class RoutedExpertsSummed(RoutedExperts):
    """The experts' gradients are summed as if they were one."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        _, _, expert, back = ctx.saved_tensors
        rows, inner = RoutedExperts.within(ctx, grad)
        return exchanged(inner @ expert), (grad * back).sum(1), summed(inner.t() @ rows)


def _routed(rank: int) -> tuple[Any, ...]:
    n = 2 * size()
    return shard(n, 3)(rank), shard(n, seed=1)(rank), shard(3, 3, seed=2)(rank)


CASES.add(RoutedExperts, _routed)
CASES.add(RoutedExpertsOwnGate, _routed, rule=("other-ranks-gradient", "wrong-across-ranks"))
CASES.add(RoutedExpertsSummed, _routed, rule="doubled-collective")


def _sent(x: Tensor, out: list[int], back: list[int]) -> Tensor:
    got = x.new_empty(sum(back), *x.shape[1:])
    dist.all_to_all_single(got, x.contiguous(), back, out)
    return got


class RaggedDispatch(Function):
    """As many rows to each rank as `out` says; the counts of what comes are asked for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, out: tuple[int, ...]) -> Tensor:
        counts = torch.tensor(out)
        back = torch.empty_like(counts)
        dist.all_to_all_single(back, counts)
        ctx.out, ctx.back = list(out), back.tolist()
        return _sent(x, ctx.out, ctx.back)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return _sent(grad, ctx.back, ctx.out), None


class RaggedDispatchEmpty(RaggedDispatch):
    """A rank that got no rows leaves backward early."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        if not grad.shape[0]:
            return grad.new_zeros(sum(ctx.out), *grad.shape[1:]), None
        return _sent(grad, ctx.back, ctx.out), None


def _ragged(rank: int) -> tuple[Any, ...]:
    out = [0, *(1 + (rank + other) % 2 for other in range(1, size()))]
    return shard(sum(out), 2)(rank), tuple(out)


CASES.add(RaggedDispatch, _ragged)
CASES.add(
    RaggedDispatchEmpty,
    _ragged,
    rule=("ranks-deadlock", "different-collectives", "lost-rank"),
)

# ---- stages ----


class Stage(Function):
    """A stage's rows for the next stage; the first gets what it was given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        made = (x @ weight).contiguous()
        ctx.save_for_backward(x, weight)
        me, last = rank_in(), size() - 1
        got = torch.zeros_like(made)
        works = [dist.isend(made, me + 1)] if me < last else []
        works += [dist.irecv(got, me - 1)] if me else []
        for work in works:
            work.wait()
        return got

    @staticmethod
    def returned(grad: Tensor, by: int) -> Tensor:
        me, last = rank_in(), size() - 1
        grad, got = grad.contiguous(), torch.zeros(grad.shape, dtype=grad.dtype)
        works = [dist.isend(grad, me + by)] if 0 <= me + by <= last else []
        works += [dist.irecv(got, me - by)] if 0 <= me - by <= last else []
        for work in works:
            work.wait()
        return got

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, weight = ctx.saved_tensors
        of_made = Stage.returned(grad, -1)
        return of_made @ weight.t(), x.t() @ of_made


class StageOnwards(Stage):
    """Gradients travel on to the next stage, as the rows did."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, weight = ctx.saved_tensors
        of_made = Stage.returned(grad, 1)
        return of_made @ weight.t(), x.t() @ of_made


CASES.add(Stage, inputs(shard(3, 2), shard(2, 2, seed=1)))
CASES.add(
    StageOnwards,
    inputs(shard(3, 2), shard(2, 2, seed=1)),
    rule=("other-ranks-gradient", "wrong-across-ranks"),
)


class FromLastStage(Function):
    """The last stage's loss, on all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.clone()
        dist.broadcast(y, src=size() - 1)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = summed(grad)
        return grad if rank_in() == size() - 1 else torch.zeros_like(grad)


class FromLastStageEverywhere(FromLastStage):
    """All stages are given the gradient of the last."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return summed(grad)


CASES.add(FromLastStage, inputs(shard(3)))
CASES.add(
    FromLastStageEverywhere,
    inputs(shard(3)),
    rule=("other-ranks-gradient", "wrong-across-ranks", "doubled-collective"),
)

# ---- parameters and buckets ----


class FlatParameter(Function):
    """A weight that is gathered from equal parts of its flat, padded memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, part: Tensor, rows: int) -> Tensor:
        count = rows * x.shape[1]
        weight = gathered(part)[:count].reshape(rows, x.shape[1])
        ctx.save_for_backward(x, weight)
        ctx.padding = part.numel() * size() - count
        return x @ weight.t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        flat = nn.pad((grad.t() @ x).flatten(), (0, ctx.padding))
        return grad @ weight, _rows_of_sum(flat), None


class FlatParameterMean(FlatParameter):
    """The mean over ranks, where the loss is a sum."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        of_x, of_part, _ = FlatParameter.backward(ctx, grad)
        return of_x, of_part / size(), None


def _flat(rank: int) -> tuple[Any, ...]:
    return shard(2, 3)(rank), shard(math.ceil(9 / size()), seed=1)(rank), 3


CASES.add(FlatParameter, _flat)
CASES.add(FlatParameterMean, _flat, rule="rank-factor")


class Bucket(Function):
    """Two tensors of one shape are summed over the ranks in one bucket."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return _in_one(a, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_a: Tensor, of_b: Tensor) -> tuple[Tensor, ...]:
        return _in_one(of_a, of_b)


class BucketSwapped(Bucket):
    """Backward unpacks the bucket in the other order."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_a: Tensor, of_b: Tensor) -> tuple[Tensor, ...]:
        return tuple(reversed(_in_one(of_a, of_b)))


def _in_one(*tensors: Tensor) -> tuple[Tensor, ...]:
    flat = _flatten_dense_tensors([x.contiguous() for x in tensors])
    dist.all_reduce(flat)
    return tuple(x.clone() for x in _unflatten_dense_tensors(flat, list(tensors)))


CASES.add(Bucket, inputs(shard(2, 3), shard(2, 3, seed=1)))
CASES.add(BucketSwapped, inputs(shard(2, 3), shard(2, 3, seed=1)), rule="wrong-across-ranks")


class RecomputedMlp(Function):
    """Columns, then rows; backward runs the local part again under autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        ctx.save_for_backward(x, up, down)
        return summed(nn.gelu(x @ up.t()) @ down.t())

    @staticmethod
    def again(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        leaves = [one.detach().requires_grad_() for one in ctx.saved_tensors]
        with torch.enable_grad():
            x, up, down = leaves
            local = nn.gelu(x @ up.t()) @ down.t()
        return torch.autograd.grad(local, leaves, grad)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        of_x, of_up, of_down = RecomputedMlp.again(ctx, grad)
        return summed(of_x), of_up, of_down


class RecomputedMlpLocal(RecomputedMlp):
    """The replicated input gets what its own rank adds."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return RecomputedMlp.again(ctx, grad)


_MLP = inputs(one(3, 4), shard(2, 4, seed=1), shard(4, 2, seed=2))
_MLP_IS = {"x": "replicate", "up": "shard", "down": "shard", "out": "replicate"}
CASES.add(RecomputedMlp, _MLP, placements=_MLP_IS)
CASES.add(
    RecomputedMlpLocal,
    _MLP,
    placements=_MLP_IS,
    rule=("missing-collective", "unequal-gradients"),
)


class PairRow(Function):
    """A row-parallel product within pairs of ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, group: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group = group
        return summed(x @ weight.t(), group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        grad = summed(grad, ctx.group)
        return grad @ weight, grad.t() @ x, None


class PairRowEverywhere(PairRow):
    """Backward sums over all ranks."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        grad = summed(grad)
        return grad @ weight, grad.t() @ x, None


_PAIR = inputs(shard(3, 2), shard(2, 2, seed=1), pairs)
CASES.add(PairRow, _PAIR)
CASES.add(PairRowEverywhere, _PAIR, rule="wrong-group", least=4)

# ---- losses and norms ----


class TokenMean(Function):
    """The mean over the tokens that count, of all ranks."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, counts: Tensor) -> Tensor:
        number = counts.sum()
        handle = dist.all_reduce(number, async_op=True)
        total = summed((loss * counts).sum())
        handle.wait()
        ctx.save_for_backward(counts, number)
        return total / number

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        counts, number = ctx.saved_tensors
        return grad * counts / number, None


class TokenMeanOwn(TokenMean):
    """Backward divides by the rank's own tokens."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        counts, _ = ctx.saved_tensors
        return grad * counts / counts.sum(), None


def _counted(rank: int) -> tuple[Any, ...]:
    return shard(6)(rank), torch.arange(6).le(2 + rank % 3).to(torch.float32)


CASES.add(TokenMean, _counted)
CASES.add(TokenMeanOwn, _counted, rule=("wrong-across-ranks", "rank-factor"))


class ContrastiveLoss(Function):
    """Own images against the texts of all ranks."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, texts: Tensor) -> Tensor:
        every = gathered(texts)
        scores = (images @ every.t()).log_softmax(-1)
        at = torch.arange(len(images)) + rank_in() * len(images)
        ctx.save_for_backward(images, every, scores, at)
        return -scores.gather(1, at[:, None]).mean()

    @staticmethod
    def slopes(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        images, every, scores, at = ctx.saved_tensors
        of_scores = scores.exp().scatter_add(1, at[:, None], -torch.ones_like(scores[:, :1]))
        of_scores = of_scores * grad / len(images)
        return of_scores @ every, of_scores.t() @ images

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        of_images, of_every = ContrastiveLoss.slopes(ctx, grad)
        return of_images, own(summed(of_every))


class ContrastiveLossLocal(ContrastiveLoss):
    """Texts are trained by the images of their own rank alone."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        of_images, of_every = ContrastiveLoss.slopes(ctx, grad)
        return of_images, own(of_every)


_VIEWS = inputs(shard(3, 4), shard(3, 4, seed=1))
CASES.add(ContrastiveLoss, _VIEWS)
CASES.add(ContrastiveLossLocal, _VIEWS, rule="missing-collective")


class SpatialNorm(Function):
    """A normalisation over rows that the ranks share out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        count = summed(x.new_full((), x.shape[0]))
        mean = summed(x.sum(0)) / count
        scale = (summed((x - mean).square().sum(0)) / count + 1e-5).rsqrt()
        normed = (x - mean) * scale
        ctx.save_for_backward(normed, scale, weight)
        ctx.count = count
        return normed * weight

    @staticmethod
    def slopes(ctx: Any, grad: Tensor, sums: Tensor) -> Tensor:
        normed, scale, weight = ctx.saved_tensors
        first, second = sums
        return (grad * weight - (first + normed * second) / ctx.count) * scale

    @staticmethod
    def sums(ctx: Any, grad: Tensor) -> Tensor:
        normed, _, weight = ctx.saved_tensors
        inner = grad * weight
        return torch.stack([inner.sum(0), (inner * normed).sum(0)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        sums = summed(SpatialNorm.sums(ctx, grad))
        return SpatialNorm.slopes(ctx, grad, sums), summed((grad * ctx.saved_tensors[0]).sum(0))


class SpatialNormOwn(SpatialNorm):
    """Backward's sums are the rank's own, times the ranks."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        sums = size() * SpatialNorm.sums(ctx, grad)
        return SpatialNorm.slopes(ctx, grad, sums), summed((grad * ctx.saved_tensors[0]).sum(0))


_ROWS = inputs(shard(4, 3), one(3, seed=1))
CASES.add(SpatialNorm, _ROWS)
CASES.add(SpatialNormOwn, _ROWS, rule=("missing-collective", "wrong-across-ranks"))


class GlobalNorm(Function):
    """The norm of what all ranks hold."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = summed(x.square().sum()).sqrt()
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, out = ctx.saved_tensors
        return grad * x / out


class GlobalNormOwn(GlobalNorm):
    """Backward divides by the norm of its own part."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x, _) = ctx.saved_tensors
        return grad * x / x.norm()


CASES.add(GlobalNorm, inputs(shard(4, 2)))
CASES.add(GlobalNormOwn, inputs(shard(4, 2)), rule="wrong-across-ranks")


class MaskedSum(Function):
    """The sum over ranks of the rows that a rank keeps, as many on every rank."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: int) -> Tensor:
        ctx.rows, ctx.keep = x.shape[0], keep
        return summed(x[:keep])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return nn.pad(grad, (0, 0, 0, ctx.rows - ctx.keep)), None


class MaskedSumRagged(MaskedSum):
    """Backward sums what it pads to the rank's own number of rows and one more each rank."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        padded = nn.pad(grad, (0, 0, 0, ctx.rows - ctx.keep + rank_in()))
        dist.all_reduce(padded)
        return padded[: ctx.rows], None


class MaskedSumMixed(MaskedSum):
    """The first rank sums in double precision."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        total = grad.double() if rank_in() == 0 else grad.float()
        dist.all_reduce(total)
        return nn.pad(total.to(grad.dtype), (0, 0, 0, ctx.rows - ctx.keep)), None


class MaskedSumScattered(MaskedSum):
    """The ranks scatter as many rows as each of them likes."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        count = 1 + rank_in()
        part = grad.new_empty(count)
        dist.reduce_scatter_tensor(part, grad.new_ones(count * size()))
        return nn.pad(grad, (0, 0, 0, ctx.rows - ctx.keep)) * part[0], None


_KEPT = inputs(shard(4, 2), 2)
CASES.add(MaskedSum, _KEPT)
for target in (MaskedSumRagged, MaskedSumMixed, MaskedSumScattered):
    CASES.add(target, _KEPT, rule="different-collectives")

SOUND = [case for case in CASES if not case.rules]
PLANTED = [case for case in CASES if case.rules]
