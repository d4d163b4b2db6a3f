"""Functions that communicate, each with one fault, and the rule that must name it."""

# ruff: noqa: D101

import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from benchmarks.faults.ranks import sound
from benchmarks.faults.ranks.case import (
    RankCases,
    gathered,
    inputs,
    one,
    own,
    rank_in,
    shard,
    shifted,
    size,
    summed,
)

CASES = RankCases()

X = inputs(shard(4, 3))
W = inputs(shard(4, 3), one(3), one(3, seed=1))


def halves(rank):
    """The half of all ranks that this one belongs to: of one rank where there are two."""
    half = dist.get_world_size() // 2
    groups = [dist.new_group(range(i * half, (i + 1) * half)) for i in range(2)]
    return groups[rank // half]


# ---- collectives that are missing, or are one too many ----


class ColumnWithoutSum(sound.ColumnLinear):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w, g.t() @ x


class GatherOwnRows(sound.AllGather):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return own(g)


class HaloWithoutReturn(sound.HaloExchange):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g[1:-1].clone()


class SoftmaxOfOwnSum(sound.GlobalSoftmax):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(1, keepdim=True))


class NormWithOwnWeights(sound.SequenceNorm):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        hat, std, w = ctx.saved_tensors
        h = g * w
        both = h.mean(-1, keepdim=True) + hat * (h * hat).mean(-1, keepdim=True)
        return (h - both) / std, (g * hat).sum(0)


class RowSummedAgain(sound.RowLinear):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return summed(g @ w), g.t() @ x


class RowWeightSummed(sound.RowLinear):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w, summed(g.t() @ x)


CASES.add(
    ColumnWithoutSum,
    inputs(one(5, 4), shard(3, 4, seed=1)),
    placements={"x": "replicate", "w": "shard", "out": "shard"},
    reference=lambda x, w: [x @ b.t() for b in w],
    rule="missing-collective",
)
CASES.add(
    GatherOwnRows,
    X,
    placements={"out": "shard"},
    reference=lambda x: torch.cat(x),
    rule="missing-collective",
)
CASES.add(HaloWithoutReturn, X, reference=sound._halo, rule="missing-collective")
CASES.add(SoftmaxOfOwnSum, X, reference=sound._softmax, rule="missing-collective")
CASES.add(
    NormWithOwnWeights,
    inputs(shard(4, 5), one(5)),
    placements={"w": "replicate"},
    reference=lambda x, w: [F.layer_norm(v, v.shape[-1:], eps=1e-3) * w for v in x],
    rule="missing-collective",
)
for target in (RowSummedAgain, RowWeightSummed):
    CASES.add(
        target,
        inputs(shard(5, 2), shard(3, 2, seed=1)),
        reference=lambda x, w: sum(a @ b.t() for a, b in zip(x, w, strict=True)),
        rule="doubled-collective",
    )

# ---- factors of the number of ranks ----


class ReduceTimesRanks(sound.ReduceFromRegion):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * size()


class MeanOfSums(sound.AllReduceMean):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return summed(g)


class SumOfMeans(sound.AllReduceSum):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return summed(g) / size()


class ScatterOfMeans(sound.ReduceScatter):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return gathered(g) / size()


class CopySummedTwice(sound.CopyToRegion):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return summed(summed(g))


SHARDED = {"x": "shard", "out": "shard"}
CASES.add(ReduceTimesRanks, X, reference=lambda x: sum(x), rule="rank-factor")
CASES.add(
    MeanOfSums,
    X,
    placements=SHARDED,
    reference=lambda x: sum(x) / len(x),
    rule="rank-factor",
)
CASES.add(SumOfMeans, X, placements=SHARDED, reference=lambda x: sum(x), rule="rank-factor")
CASES.add(ScatterOfMeans, X, reference=lambda x: list(sum(x).chunk(len(x))), rule="rank-factor")
CASES.add(
    CopySummedTwice,
    inputs(one(4, 4)),
    placements={"x": "replicate", "out": "shard"},
    rule="rank-factor",
)


# ---- the gradients of others ----


class RingNotReturned(sound.RingShift):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g, None


class RingOnwards(sound.RingShift):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return shifted(g, ctx.by), None


class GatherNextRows(sound.GatherFromRegion):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g.chunk(size(), -1)[(rank_in() + 1) % size()].contiguous()


class ExchangeNotReturned(sound.AllToAll):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g.clone()


RING = {"reference": lambda x, by: [x[(r - by) % len(x)] for r in range(len(x))]}
CASES.add(RingNotReturned, inputs(shard(4, 3), 1), **RING, rule="other-ranks-gradient")
CASES.add(RingOnwards, inputs(shard(4, 3), 1), **RING, rule="other-ranks-gradient", least=3)
CASES.add(
    GatherNextRows,
    X,
    placements={"x": "shard(-1)", "out": "replicate"},
    reference=lambda x: x,
    rule="other-ranks-gradient",
)
CASES.add(ExchangeNotReturned, X, reference=sound._all_to_all, rule="wrong-across-ranks")


# ---- replicated inputs ----


class WeightsByRank(sound.SyncBatchNorm):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        hat, std, w, count = ctx.saved_tensors
        gw, gb = summed((g * hat).sum(0)), summed(g.sum(0))
        gx = w / std * (g - gb / count - hat * gw / count)
        return gx, gw * (rank_in() + 1), gb


class WeightsOnFirst(sound.SyncBatchNorm):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        hat, std, w, count = ctx.saved_tensors
        gw, gb = summed((g * hat).sum(0)), summed(g.sum(0))
        gx = w / std * (g - gb / count - hat * gw / count)
        return gx, gw * (rank_in() == 0), gb


class StatisticsOfOwn(sound.SyncBatchNorm):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        hat, std, w, _ = ctx.saved_tensors
        gw, gb = (g * hat).sum(0), g.sum(0)
        gx = w / std * (g - gb / len(g) - hat * gw / len(g))
        return gx, summed(gw), summed(gb)


BATCH = {"placements": {"x": "shard", "w": "replicate", "b": "replicate", "out": "shard"}}


def _batch_norm(x, w, b):
    n = len(x)
    return sound._batch_norm(x, [w] * n, [b] * n)


for target, rule in (
    (WeightsByRank, "unequal-gradients"),
    (WeightsOnFirst, "unequal-gradients"),
    (StatisticsOfOwn, "wrong-across-ranks"),
):
    CASES.add(target, W, **BATCH, reference=_batch_norm, rule=rule)


class EntropyOfEveryRank(sound.VocabCrossEntropy):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        p, local, _ = ctx.saved_tensors
        return (p - F.one_hot(local, p.shape[1])) * g[:, None], None


class EmbeddingOfEveryRank(sound.VocabEmbedding):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        local, _ = ctx.saved_tensors
        grad = torch.zeros(ctx.rows, g.shape[1], dtype=g.dtype)
        return grad.index_add(0, local, g), None


CASES.add(
    EntropyOfEveryRank,
    inputs(shard(6, 3), torch.tensor([0, 1, 2, 3, 4, 5])),
    reference=sound._entropy,
    rule="wrong-across-ranks",
)
CASES.add(
    EmbeddingOfEveryRank,
    inputs(shard(3, 2), torch.tensor([0, 5, 2, 2, 4])),
    reference=lambda table, ids: torch.cat(table)[ids],
    rule="wrong-across-ranks",
)

# ---- groups ----


class HalfSummedByAll(Function):
    @staticmethod
    def forward(ctx, x, group):
        return summed(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return summed(g), None


class AllSummedByHalf(Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return summed(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return summed(g, ctx.group), None


def _by_halves(x):
    half = len(x) // 2
    sums = [sum(x[:half]), sum(x[half:])]
    return [sums[rank // half] for rank in range(len(x))]


CASES.add(
    HalfSummedByAll,
    inputs(shard(4, 3), halves),
    reference=_by_halves,
    rule="wrong-group",
)
CASES.add(
    AllSummedByHalf,
    inputs(shard(4, 3), halves),
    placements=SHARDED,
    reference=lambda x: sum(x),
    rule=("wrong-group", "missing-collective"),
)

# ---- uneven shards ----


class MeanOfEvenRows(Function):
    @staticmethod
    def forward(ctx, x):
        count = summed(torch.tensor(float(len(x)), dtype=x.dtype))
        ctx.shape = x.shape
        return summed(x.sum(0)) / count

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return (g / (size() * ctx.shape[0])).expand(ctx.shape).clone()


class GatherOfEvenRows(sound.UnevenGather):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        rows = len(g) // size()
        return summed(g)[rank_in() * rows : (rank_in() + 1) * rows].clone()


CASES.add(MeanOfEvenRows, X, reference=lambda x: torch.cat(x).mean(0), rule="uneven-shards")
CASES.add(GatherOfEvenRows, X, reference=lambda x: torch.cat(x), rule="uneven-shards")

# ---- the order of arrival, handles ----


class ReadTooEarly(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        handle = dist.all_reduce(y, async_op=True)
        time.sleep(0.01)  # the work that hides the wait
        early = y.clone()
        handle.wait()
        return early

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return summed(g)


class FromAnyRank(Function):
    @staticmethod
    def forward(ctx, x):
        if rank_in():
            dist.send(x, 0)
            return x.clone()
        total = x.clone()
        for weight in range(2, size() + 1):
            got = torch.empty_like(x)
            dist.recv(got)
            total += weight * got
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g.clone()


class SumNotAwaited(sound.AllReduceSum):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g, async_op=True)
        return g


class SendNotAwaited(sound.RingShift):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        me, n = rank_in(), size()
        got = torch.empty(g.shape, dtype=g.dtype)
        g = g.contiguous()
        dist.isend(g, (me - ctx.by) % n)
        dist.recv(got, (me + ctx.by) % n)
        return got, None


CASES.add(ReadTooEarly, X, rule="unwaited-handle")
CASES.add(FromAnyRank, X, rule=("arrival-order", "wrong-across-ranks"), least=3)
CASES.add(SumNotAwaited, X, reference=lambda x: sum(x), rule="unwaited-handle")
CASES.add(SendNotAwaited, inputs(shard(4, 3), 1), **RING, rule="unwaited-handle")

# ---- memory ----


class InputInPlace(Function):
    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x)
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return summed(g)


class SavedInPlace(Function):
    @staticmethod
    def forward(ctx, x):
        kept = x.cos()
        ctx.save_for_backward(kept)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (kept,) = ctx.saved_tensors
        grad = g * kept
        dist.all_reduce(kept)
        return grad


class CotangentInPlace(sound.AllReduceSum):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        g = g.contiguous()
        dist.all_reduce(g)
        return g


CASES.add(InputInPlace, X, reference=lambda x: sum(x), rule="written-by-collective")
CASES.add(SavedInPlace, X, reference=lambda x: [v.sin() for v in x], rule="written-by-collective")
CASES.add(CotangentInPlace, X, reference=lambda x: sum(x), rule="written-by-collective")

# ---- second order, layouts, precision ----


class SumOnceSilently(sound.AllReduceSum):
    @staticmethod
    def backward(ctx, g):
        return summed(g)


class SoftmaxOnceSilently(sound.GlobalSoftmax):
    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - summed((g * y).sum(1, keepdim=True)))


class GatherOnceSilently(sound.AllGather):
    @staticmethod
    def backward(ctx, g):
        return own(summed(g))


class SentAsItLies(sound.RingShift):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        flat = g.as_strided((g.numel(),), (1,)) if g.stride(-1) else g.contiguous().flatten()
        return shifted(flat, -ctx.by).view(g.shape), None


class SentStrided(sound.RingShift):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        me, n = rank_in(), size()
        got = torch.empty(g.shape, dtype=g.dtype)
        handles = [dist.isend(g, (me - ctx.by) % n), dist.irecv(got, (me + ctx.by) % n)]
        for handle in handles:
            handle.wait()
        return got, None


class SumInHalf(sound.AllReduceSum):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return summed(g.bfloat16()).to(g.dtype)


class GatherInHalf(sound.AllGather):
    @staticmethod
    def forward(ctx, x):
        return gathered(x.half()).to(x.dtype)


CASES.add(SumOnceSilently, X, reference=lambda x: sum(x), rule="second-across-ranks")
CASES.add(SoftmaxOnceSilently, X, reference=sound._softmax, rule="second-across-ranks")
CASES.add(GatherOnceSilently, X, reference=lambda x: torch.cat(x), rule="second-across-ranks")
CASES.add(SentAsItLies, inputs(shard(4, 3), 1), **RING, rule="strided-across-ranks")
CASES.add(SentStrided, inputs(shard(4, 3), 1), **RING, rule="strided-across-ranks")
CASES.add(SumInHalf, X, reference=lambda x: sum(x), rule="coarse-collective")
CASES.add(GatherInHalf, X, reference=lambda x: torch.cat(x), rule="coarse-collective")

# ---- ranks that do not end together ----


class OnlyFirstSums(sound.ReduceFromRegion):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return summed(g) if rank_in() == 0 else g.clone()


class EachItsOwnWay(sound.ReduceFromRegion):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        if rank_in() % 2:
            return gathered(g)[: len(g)]
        return summed(g)


class InAnyOrder(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        grads = {"w": (g * x).sum().expand(w.shape).clone(), "x": g * w.sum()}
        for name in sorted(grads, reverse=bool(rank_in() % 2)):
            dist.all_reduce(grads[name])
        return grads["x"], grads["w"]


class EndsOnOneRank(sound.AllReduceSum):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        if rank_in() == size() - 1:
            os._exit(3)
        return summed(g)


class KilledOnOneRank(sound.AllReduceSum):
    @staticmethod
    def forward(ctx, x):
        if rank_in() == 0:
            os.kill(os.getpid(), 9)
        return summed(x)


class RaisesOnOneRank(sound.AllReduceSum):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        if rank_in() == 0:
            raise ValueError("no gradient on the first rank")
        return summed(g)


class RaisesOnAll(sound.AllReduceSum):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        raise ValueError("no gradient at all")


SUM = {"reference": lambda x: sum(x)}
CASES.add(OnlyFirstSums, X, **SUM, rule="ranks-deadlock")
CASES.add(EachItsOwnWay, X, **SUM, rule="different-collectives")
CASES.add(InAnyOrder, inputs(shard(4, 3), one(5)), rule="different-collectives")
CASES.add(EndsOnOneRank, X, **SUM, rule="lost-rank")
CASES.add(KilledOnOneRank, X, **SUM, rule="lost-rank")
CASES.add(RaisesOnOneRank, X, **SUM, rule="fails-on-ranks")
CASES.add(RaisesOnAll, X, **SUM, rule="fails-on-ranks")

# ---- claims, wrappers, references ----


class OwnForAll(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * 2


class ClaimsToBeOne(Function):
    @staticmethod
    def forward(ctx, x):
        from torch.distributed.tensor import DTensor, Replicate

        part = x.to_local().sum(0)
        ctx.x = x
        return DTensor.from_local(part, x.device_mesh, [Replicate()], run_check=False)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        from torch.distributed.tensor import DTensor

        local = g.to_local().expand(ctx.x.to_local().shape).clone()
        return DTensor.from_local(local, ctx.x.device_mesh, ctx.x.placements, run_check=False)


class SumsParameters(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.is_parameter = isinstance(w, torch.nn.Parameter)
        return x * w

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        grad = (g * x).sum(0)
        return g * w, summed(grad) if ctx.is_parameter else grad


class SumForMean(sound.AllReduceSum):
    pass


CASES.add(OwnForAll, X, placements={"out": "replicate"}, rule="broken-placement")
CASES.add(ClaimsToBeOne, sound._spread, rule="dtensor-placement")
CASES.add(
    SumsParameters,
    inputs(shard(4, 3), one(3)),
    placements={"w": "replicate", "w.grad": "partial"},
    reference=lambda x, w: [v * w for v in x],
    rule="wrapped-differs",
)
CASES.add(
    SumForMean,
    X,
    reference=lambda x: sum(x) / len(x),
    rule="reference-across-ranks",
    needs_reference=True,
)


class ComplexWithoutConjugate(sound.ComplexSquareSum):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * summed(g)


CASES.add(
    ComplexWithoutConjugate,
    sound.complex_numbers,
    reference=lambda x: sum(v * v for v in x),
    rule="wrong-across-ranks",
)
