"""Sound Functions that communicate, of both conventions; some can be differentiated twice."""

# ruff: noqa: D101

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable

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
    shifted,
    size,
    summed,
)

CASES = RankCases()

X = inputs(shard(4, 3))
ONE = inputs(one(4, 4))

# ---- cotangents are passed through: outputs of a reduction are replicated ----


class CopyToRegion(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return ReduceFromRegion.apply(g)


class ReduceFromRegion(Function):
    @staticmethod
    def forward(ctx, x):
        return summed(x)

    @staticmethod
    def backward(ctx, g):
        return CopyToRegion.apply(g)


class ScatterToRegion(Function):
    @staticmethod
    def forward(ctx, x):
        return own(x, -1)

    @staticmethod
    def backward(ctx, g):
        return GatherFromRegion.apply(g)


class GatherFromRegion(Function):
    @staticmethod
    def forward(ctx, x):
        return gathered(x, -1)

    @staticmethod
    def backward(ctx, g):
        return ScatterToRegion.apply(g)


CASES.add(CopyToRegion, ONE, reference=lambda x: [v.clone() for v in x], convention="pass")
CASES.add(ReduceFromRegion, X, reference=lambda x: sum(x), convention="pass")
CASES.add(
    ScatterToRegion,
    ONE,
    placements={"x": "replicate", "out": "shard(-1)"},
    reference=lambda x: x,
    convention="pass",
)
CASES.add(
    GatherFromRegion,
    X,
    placements={"x": "shard(-1)", "out": "replicate"},
    reference=lambda x: x,
    convention="pass",
)


class ColumnLinear(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return summed(g @ w), g.t() @ x


class RowLinear(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return summed(x @ w.t())

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w, g.t() @ x


CASES.add(
    ColumnLinear,
    inputs(one(5, 4), shard(3, 4, seed=1)),
    reference=lambda x, w: [a @ b.t() for a, b in zip(x, w, strict=True)],
    convention="pass",
)
CASES.add(
    RowLinear,
    inputs(shard(5, 2), shard(3, 2, seed=1)),
    reference=lambda x, w: sum(a @ b.t() for a, b in zip(x, w, strict=True)),
    convention="pass",
)


class VocabCrossEntropy(Function):
    @staticmethod
    def forward(ctx, logits, target):
        first = rank_in() * logits.shape[1]
        top = logits.max(1).values
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        exp = (logits - top[:, None]).exp()
        total = summed(exp.sum(1))
        here = (target >= first) & (target < first + logits.shape[1])
        local = (target - first).clamp(0, logits.shape[1] - 1)
        picked = summed(torch.where(here, logits.gather(1, local[:, None])[:, 0], 0.0))
        ctx.save_for_backward(exp / total[:, None], local, here)
        return total.log() + top - picked

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        p, local, here = ctx.saved_tensors
        hot = F.one_hot(local, p.shape[1]) * here[:, None]
        return (p - hot) * g[:, None], None


def _entropy(logits, target):
    return F.cross_entropy(torch.cat(logits, 1), target, reduction="none")


CASES.add(
    VocabCrossEntropy,
    inputs(shard(6, 3), torch.tensor([0, 1, 2, 3, 4, 5])),
    reference=_entropy,
    convention="pass",
)


class VocabEmbedding(Function):
    @staticmethod
    def forward(ctx, table, ids):
        first = rank_in() * len(table)
        here = (ids >= first) & (ids < first + len(table))
        local = (ids - first).clamp(0, len(table) - 1)
        ctx.save_for_backward(local, here)
        ctx.rows = len(table)
        return summed(table[local] * here[:, None])

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        local, here = ctx.saved_tensors
        grad = torch.zeros(ctx.rows, g.shape[1], dtype=g.dtype)
        return grad.index_add(0, local, g * here[:, None]), None


CASES.add(
    VocabEmbedding,
    inputs(shard(3, 2), torch.tensor([0, 5, 2, 2, 4])),
    reference=lambda table, ids: torch.cat(table)[ids],
    convention="pass",
)


class GlobalNorm(Function):
    @staticmethod
    def forward(ctx, x):
        norm = summed((x * x).sum()).sqrt()
        ctx.save_for_backward(x, norm)
        return norm

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, norm = ctx.saved_tensors
        return g * x / norm


CASES.add(GlobalNorm, X, reference=lambda x: torch.stack(x).pow(2).sum().sqrt(), convention="pass")


class PairReduce(Function):
    @staticmethod
    def forward(ctx, x, group):
        return summed(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g, None


def _by_pairs(x):
    sums = [x[i] + x[i + 1] for i in range(0, len(x), 2)]
    return [sums[rank // 2] for rank in range(len(x))]


CASES.add(PairReduce, inputs(shard(4, 3), pairs), reference=_by_pairs, convention="pass")


class PairCopy(Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return summed(g, ctx.group), None


CASES.add(
    PairCopy,
    inputs(one(4, 3), pairs),
    reference=lambda x: [v.clone() for v in x],
    convention="pass",
)

# ---- cotangents are summed: every output is a rank's own ----


class AllReduceSum(Function):
    @staticmethod
    def forward(ctx, x):
        return summed(x)

    @staticmethod
    def backward(ctx, g):
        return AllReduceSum.apply(g)


class AllReduceMean(Function):
    @staticmethod
    def forward(ctx, x):
        return summed(x) / size()

    @staticmethod
    def backward(ctx, g):
        return AllReduceMean.apply(g)


class AllGather(Function):
    @staticmethod
    def forward(ctx, x):
        return gathered(x)

    @staticmethod
    def backward(ctx, g):
        return ReduceScatter.apply(g)


class ReduceScatter(Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(own(x))
        dist.reduce_scatter(out, [part.contiguous() for part in x.chunk(size())])
        return out

    @staticmethod
    def backward(ctx, g):
        return AllGather.apply(g)


class AllToAll(Function):
    @staticmethod
    def forward(ctx, x):
        return exchanged(x)

    @staticmethod
    def backward(ctx, g):
        return AllToAll.apply(g)


class RingShift(Function):
    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        return shifted(x, by)

    @staticmethod
    def backward(ctx, g):
        return RingShift.apply(g, -ctx.by), None


class Broadcast(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.broadcast(y, 0)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        total = summed(g)
        return total if rank_in() == 0 else torch.zeros_like(g)


CASES.add(AllReduceSum, X, reference=lambda x: sum(x), convention="sum")
CASES.add(AllReduceMean, X, reference=lambda x: sum(x) / len(x), convention="sum")
CASES.add(AllGather, X, reference=lambda x: torch.cat(x), convention="sum")
CASES.add(
    ReduceScatter,
    inputs(shard(4, 3)),
    reference=lambda x: list(sum(x).chunk(len(x))),
    convention="sum",
)


def _all_to_all(x):
    parts = [list(v.chunk(len(x))) for v in x]
    return [torch.cat([part[r] for part in parts]) for r in range(len(x))]


CASES.add(AllToAll, inputs(shard(4, 3)), reference=_all_to_all, convention="sum")
CASES.add(
    RingShift,
    inputs(shard(4, 3), 1),
    reference=lambda x, by: [x[(r - by) % len(x)] for r in range(len(x))],
    convention="sum",
)
CASES.add(Broadcast, X, reference=lambda x: x[0].clone(), convention="sum")


class SequenceNorm(Function):
    @staticmethod
    def forward(ctx, x, w):
        std = (x.var(-1, keepdim=True, unbiased=False) + 1e-3).sqrt()
        hat = (x - x.mean(-1, keepdim=True)) / std
        ctx.save_for_backward(hat, std, w)
        return hat * w

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        hat, std, w = ctx.saved_tensors
        h = g * w
        both = h.mean(-1, keepdim=True) + hat * (h * hat).mean(-1, keepdim=True)
        return (h - both) / std, summed((g * hat).sum(0))


def _norm(x, w):
    return [F.layer_norm(v, v.shape[-1:], eps=1e-3) * u for v, u in zip(x, w, strict=True)]


CASES.add(SequenceNorm, inputs(shard(4, 5), one(5)), reference=_norm, convention="sum")


class HaloExchange(Function):
    @staticmethod
    def forward(ctx, x):
        left = shifted(x[-1:], 1)
        right = shifted(x[:1], -1)
        return torch.cat([left, x, right])

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        gx = g[1:-1].clone()
        gx[-1:] += shifted(g[:1], -1)
        gx[:1] += shifted(g[-1:], 1)
        return gx


def _halo(x):
    n = len(x)
    return [torch.cat([x[(r - 1) % n][-1:], x[r], x[(r + 1) % n][:1]]) for r in range(n)]


CASES.add(HaloExchange, X, reference=_halo, convention="sum")


class SyncBatchNorm(Function):
    @staticmethod
    def forward(ctx, x, w, b):
        count = summed(torch.tensor(float(len(x)), dtype=x.dtype))
        mean = summed(x.sum(0)) / count
        var = summed(((x - mean) ** 2).sum(0)) / count
        std = (var + 1e-3).sqrt()
        hat = (x - mean) / std
        ctx.save_for_backward(hat, std, w, count)
        return hat * w + b

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        hat, std, w, count = ctx.saved_tensors
        gw, gb = summed((g * hat).sum(0)), summed(g.sum(0))
        gx = w / std * (g - gb / count - hat * gw / count)
        return gx, gw, gb


def _batch_norm(x, w, b):
    rows = torch.cat(x)
    mean, var = rows.mean(0), rows.var(0, unbiased=False)
    return [(v - mean) / (var + 1e-3).sqrt() * u + c for v, u, c in zip(x, w, b, strict=True)]


CASES.add(
    SyncBatchNorm,
    inputs(shard(4, 3), one(3), one(3, seed=1)),
    reference=_batch_norm,
    convention="sum",
)


class UnevenGather(Function):
    @staticmethod
    def forward(ctx, x):
        rows = [torch.zeros(1, dtype=torch.int64) for _ in range(size())]
        dist.all_gather(rows, torch.tensor([len(x)]))
        ctx.sizes = [int(r) for r in rows]
        padded = torch.zeros(max(ctx.sizes), x.shape[1], dtype=x.dtype)
        padded[: len(x)] = x
        parts = gathered(padded).chunk(size())
        return torch.cat([p[:n] for p, n in zip(parts, ctx.sizes, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return summed(g).split(ctx.sizes)[rank_in()].contiguous()


CASES.add(
    UnevenGather,
    lambda rank: (shard(2 + rank % 2, 3)(rank),),
    reference=lambda x: torch.cat(x),
    convention="sum",
)


class AsyncReduce(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        y = x * w
        handle = dist.all_reduce(y, async_op=True)
        handle.wait()
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        total = g.clone(memory_format=torch.contiguous_format)
        handle = dist.all_reduce(total, async_op=True)
        scale = w * 1.0
        handle.wait()
        return total * scale, total * x


CASES.add(
    AsyncReduce,
    inputs(shard(4, 3), shard(4, 3, seed=2)),
    reference=lambda x, w: sum(a * b for a, b in zip(x, w, strict=True)),
    convention="sum",
)


class ShiftedProduct(Function):
    @staticmethod
    def forward(ctx, x):
        other = shifted(x, 1)
        ctx.save_for_backward(x, other)
        return x * other

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, other = ctx.saved_tensors
        return g * other + shifted(g * x, -1)


CASES.add(
    ShiftedProduct,
    X,
    reference=lambda x: [x[r] * x[(r - 1) % len(x)] for r in range(len(x))],
    convention="sum",
)


class GlobalSoftmax(Function):
    @staticmethod
    def forward(ctx, x):
        top = x.max(1, keepdim=True).values
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        exp = (x - top).exp()
        y = exp / summed(exp.sum(1, keepdim=True))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - summed((g * y).sum(1, keepdim=True)))


def _softmax(x):
    return list(torch.cat(x, 1).softmax(1).chunk(len(x), 1))


CASES.add(GlobalSoftmax, X, reference=_softmax, convention="sum")


class SpreadScale(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


def _spread(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return (distribute_tensor(one(8, 3)(rank).detach(), mesh, [Shard(0)]),)


CASES.add(SpreadScale, _spread, reference=lambda x: x * x, convention="sum")


class SumWithStatistics(Function):
    @staticmethod
    def forward(ctx, x):
        y = summed(x)
        mean = y.mean(0)
        ctx.mark_non_differentiable(mean)
        return y, mean

    @staticmethod
    @once_differentiable
    def backward(ctx, g, _):
        return summed(g)


CASES.add(SumWithStatistics, X, reference=lambda x: (sum(x), sum(x).mean(0)), convention="sum")


class RowInSingle(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return summed(x.float() @ w.float().t()).to(x.dtype).relu()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        g = g.float() * (summed(x.float() @ w.float().t()) > 0)
        return (g @ w.float()).to(x.dtype), (g.t() @ x.float()).to(w.dtype)


CASES.add(
    RowInSingle,
    inputs(shard(5, 2), shard(3, 2, seed=1)),
    reference=lambda x, w: sum(a @ b.t() for a, b in zip(x, w, strict=True)).relu(),
    convention="pass",
)


class ComplexSquareSum(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return summed(x * x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x.conj() * summed(g)


def complex_numbers(rank):
    """A complex tensor of a rank."""
    generator = torch.Generator().manual_seed(rank + 1)
    return (torch.randn(3, 2, dtype=torch.complex64, generator=generator),)


CASES.add(
    ComplexSquareSum,
    complex_numbers,
    reference=lambda x: sum(v * v for v in x),
    convention="sum",
)


class RootHasTheSum(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.reduce(y, 0)  # undefined on the other ranks, so no cotangent of theirs counts
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        g = g.clone()
        dist.broadcast(g, 0)
        return g


CASES.add(RootHasTheSum, X, convention="sum")
