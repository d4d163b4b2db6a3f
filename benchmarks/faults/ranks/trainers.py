"""Layers of large trainers: sequences, vocabularies, experts and parameters that are sharded.

Written before they were run, and before their author had read the rules.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from benchmarks.faults.ranks.case import (
    RankCases,
    exchanged,
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


def _whole(x: Tensor, group: Any = None) -> Tensor:
    """The rows of all ranks, in one buffer."""
    out = x.new_empty((x.shape[0] * size(group), *x.shape[1:]))
    dist.all_gather_into_tensor(out, x.contiguous(), group=group)
    return out


def _scattered(x: Tensor, group: Any = None) -> Tensor:
    """The sum over the ranks, of which each keeps its rows."""
    out = x.new_empty((x.shape[0] // size(group), *x.shape[1:]))
    dist.reduce_scatter_tensor(out, x.contiguous(), group=group)
    return out


# ---- sequence parallel ----


class SequenceRow(Function):
    """A row-parallel product with a bias on every rank, summed and scattered over the sequence."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _scattered(x @ weight.t() + bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, weight = ctx.saved_tensors
        total = _whole(grad)
        return total @ weight, total.t() @ x, total.sum(0)


class SequenceRowShared(SequenceRow):
    """The gathered gradient is divided by the ranks."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, weight = ctx.saved_tensors
        total = _whole(grad) / size()
        return total @ weight, total.t() @ x, total.sum(0)


class SequenceRowBias(SequenceRow):
    """The bias is added on every rank, and gets the gradient of one."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, weight = ctx.saved_tensors
        total = _whole(grad)
        return total @ weight, total.t() @ x, grad.sum(0)


_ROW = inputs(shard(4, 3), shard(2, 3, seed=1), one(2, seed=2))
CASES.add(SequenceRow, _ROW)
CASES.add(
    SequenceRowShared,
    _ROW,
    placements={"x": "shard", "weight": "shard", "out": "shard"},
    rule="rank-factor",
)
CASES.add(SequenceRowBias, _ROW, rule=("missing-collective", "rank-factor"))

# ---- the vocabulary, in parts ----


class SmoothedVocabularyLoss(Function):
    """Cross-entropy with label smoothing over logits whose vocabulary is sharded."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
        count = logits.shape[1] * size()
        top = logits.max(1).values
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        shifted_down = logits - top[:, None]
        first = rank_in() * logits.shape[1]
        inside = (target >= first) & (target < first + logits.shape[1])
        local = (target - first).masked_fill(~inside, 0)
        picked = shifted_down.gather(1, local[:, None])[:, 0].masked_fill(~inside, 0)
        sums = torch.stack([shifted_down.exp().sum(1), picked, shifted_down.sum(1)])
        dist.all_reduce(sums)
        total, picked, all_logits = sums
        ctx.save_for_backward(shifted_down.exp() / total[:, None], local, inside)
        ctx.smoothing, ctx.count = smoothing, count
        log = total.log()
        return (1 - smoothing) * (log - picked) + smoothing * (log - all_logits / count)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        softmax, local, inside = ctx.saved_tensors
        out = softmax - ctx.smoothing / ctx.count
        out[torch.arange(len(out)), local] -= (1 - ctx.smoothing) * inside.to(out.dtype)
        return out * grad[:, None], None, None


class SmoothedVocabularyLossEverywhere(SmoothedVocabularyLoss):
    """Every rank takes the target from its own part."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        softmax, local, _ = ctx.saved_tensors
        out = softmax - ctx.smoothing / ctx.count
        out[torch.arange(len(out)), local] -= 1 - ctx.smoothing
        return out * grad[:, None], None, None


class LocallySmoothedVocabularyLoss(SmoothedVocabularyLoss):
    """The mean of the logits is that of this rank's part alone."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
        top = logits.max(1).values
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        low = logits - top[:, None]
        first = rank_in() * logits.shape[1]
        inside = (target >= first) & (target < first + logits.shape[1])
        local = (target - first).masked_fill(~inside, 0)
        picked = summed(low.gather(1, local[:, None])[:, 0].masked_fill(~inside, 0))
        total = summed(low.exp().sum(1))
        ctx.save_for_backward(low.exp() / total[:, None], local, inside)
        ctx.smoothing, ctx.count = smoothing, logits.shape[1]
        log = total.log()
        return (1 - smoothing) * (log - picked) + smoothing * (log - low.mean(1))


_LOGITS = inputs(shard(3, 4), torch.tensor([1, 6, 0]), 0.1)
CASES.add(SmoothedVocabularyLoss, _LOGITS)
CASES.add(SmoothedVocabularyLossEverywhere, _LOGITS, rule="wrong-across-ranks")
CASES.add(
    LocallySmoothedVocabularyLoss,
    _LOGITS,
    placements={"logits": "shard", "out": "replicate"},
    rule="broken-placement",
)

# ---- attention over a sharded sequence ----


def _mask(scores: Tensor, source: int) -> Tensor:
    """Hide the keys that come after the queries, where the keys are those of `source`."""
    if source < rank_in():
        return scores
    hidden = torch.ones(scores.shape, dtype=torch.bool)
    if source == rank_in():
        hidden = hidden.triu(1)
    return scores.masked_fill(hidden, float("-inf"))


def _merged(out: Tensor, lse: Tensor, more: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """The attention over two blocks of keys, from that over each."""
    both = torch.logaddexp(lse, other)
    return out * (lse - both).exp() + more * (other - both).exp(), both


class CausalRing(Function):
    """Keys and values go around the ranks; their gradients follow them home."""

    passes_home = True
    keeps_all = True

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scale = q.shape[1] ** -0.5
        keys, values = k, v
        out, lse = torch.zeros_like(v), q.new_full((len(q), 1), float("-inf"))
        for step in range(size()):
            source = (rank_in() - step) % size()
            scores = _mask(q @ keys.t() * scale, source)
            if source <= rank_in():
                block = scores.logsumexp(1, keepdim=True)
                out, lse = _merged(out, lse, (scores - block).exp() @ values, block)
            if step + 1 < size():
                keys, values = shifted(keys, 1), shifted(values, 1)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return CausalRing.pulled(ctx, grad, home=True, lse=ctx.saved_tensors[4])

    @staticmethod
    def pulled(ctx: Any, grad: Tensor, *, home: bool, lse: Tensor) -> tuple[Tensor, ...]:
        """The gradients; `home` sends those of keys and values on once more at the end."""
        q, keys, values, out, _ = ctx.saved_tensors
        scale = q.shape[1] ** -0.5
        inner = (grad * out).sum(1, keepdim=True)
        of_q, of_k, of_v = torch.zeros_like(q), torch.zeros_like(keys), torch.zeros_like(values)
        for step in range(size()):
            p = (_mask(q @ keys.t() * scale, (rank_in() - step) % size()) - lse).exp()
            of_scores = p * (grad @ values.t() - inner) * scale
            of_q = of_q + of_scores @ keys
            of_k = of_k + of_scores.t() @ q
            of_v = of_v + p.t() @ grad
            if home or step + 1 < size():
                keys, values = shifted(keys, 1), shifted(values, 1)
                of_k, of_v = shifted(of_k, 1), shifted(of_v, 1)
        return of_q, of_k, of_v


class CausalRingShort(CausalRing):
    """The gradients of keys and values stop one rank before their own."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return CausalRing.pulled(ctx, grad, home=False, lse=ctx.saved_tensors[4])


class CausalRingOwnSum(CausalRing):
    """Backward divides by the sum over this rank's own keys."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        q, k, *_ = ctx.saved_tensors
        scores = _mask(q @ k.t() * q.shape[1] ** -0.5, rank_in())
        return CausalRing.pulled(ctx, grad, home=True, lse=scores.logsumexp(1, keepdim=True))


_RING = inputs(shard(2, 3), shard(2, 3, seed=1), shard(2, 3, seed=2))
CASES.add(CausalRing, _RING)
CASES.add(CausalRingShort, _RING, rule="other-ranks-gradient")
CASES.add(CausalRingOwnSum, _RING, rule="wrong-across-ranks")


def _to_heads(x: Tensor) -> Tensor:
    """From a part of the sequence with all heads to all of it with a part of the heads."""
    rows, heads, width = x.shape
    parts = x.reshape(rows, size(), heads // size(), width).transpose(0, 1)
    return exchanged(parts).reshape(rows * size(), heads // size(), width)


def _to_rows(x: Tensor) -> Tensor:
    """The other way."""
    rows, heads, width = x.shape
    parts = exchanged(x.reshape(size(), rows // size(), heads, width))
    return parts.transpose(0, 1).reshape(rows // size(), heads * size(), width)


class ToHeads(Function):
    """Ulysses' first exchange, to any order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _to_heads(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return ToRows.apply(grad)


class ToRows(Function):
    """Ulysses' second exchange, to any order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _to_rows(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return ToHeads.apply(grad)


class ToHeadsUntransposed(ToHeads):
    """Backward joins the heads of the ranks in the wrong order."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        rows, heads, width = grad.shape
        parts = exchanged(grad.reshape(size(), rows // size(), heads, width))
        return parts.reshape(rows // size(), heads * size(), width)


_HEADS = inputs(shard(2, 4, 2))
CASES.add(ToHeads, _HEADS)
CASES.add(ToRows, inputs(shard(4, 2, 2)))
CASES.add(ToHeadsUntransposed, _HEADS, rule=("wrong-across-ranks", "other-ranks-gradient"))


class SplitDecode(Function):
    """One query, whose keys and values are sharded; the ranks' softmaxes are joined."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.t()
        top = scores.max(1, keepdim=True).values
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        weights = (scores - top).exp()
        total = summed(weights.sum(1, keepdim=True))
        p = weights / total
        out = summed(p @ v)
        ctx.save_for_backward(q, k, v, p, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        q, k, v, p, out = ctx.saved_tensors
        of_scores = p * (grad @ v.t() - (grad * out).sum(1, keepdim=True))
        return summed(of_scores @ k), of_scores.t() @ q, p.t() @ grad


class SplitDecodeOwnQuery(SplitDecode):
    """Each rank's gradient of the query is that through its own keys."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        q, k, v, p, out = ctx.saved_tensors
        of_scores = p * (grad @ v.t() - (grad * out).sum(1, keepdim=True))
        return of_scores @ k, of_scores.t() @ q, p.t() @ grad


_DECODE = inputs(one(2, 3), shard(3, 3, seed=1), shard(3, 3, seed=2))
CASES.add(SplitDecode, _DECODE)
CASES.add(
    SplitDecodeOwnQuery,
    _DECODE,
    placements={"q": "replicate", "out": "replicate"},
    rule=("missing-collective", "unequal-gradients"),
)

# ---- experts ----


def _sent(x: Tensor, got: list[int], gone: list[int]) -> Tensor:
    out = x.new_empty((sum(got), *x.shape[1:]))
    dist.all_to_all_single(out, x.contiguous(), got, gone)
    return out


class GatedExperts(Function):
    """Tokens go to the rank of their expert, come back, and are weighted by a gate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, weight: Tensor, owner: Tensor) -> Tensor:
        order = owner.argsort(stable=True)
        gone = torch.bincount(owner, minlength=size())
        got = torch.empty_like(gone)
        dist.all_to_all_single(got, gone)
        got, gone = got.tolist(), gone.tolist()
        rows = _sent(x[order], got, gone)
        done = torch.tanh(rows @ weight)
        home = torch.empty_like(x)
        home[order] = _sent(done, gone, got)
        ctx.save_for_backward(gate, weight, rows, done, home, order)
        ctx.got, ctx.gone = got, gone
        return home * gate[:, None]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        gate, weight, rows, done, home, order = ctx.saved_tensors
        of_done = _sent((grad * gate[:, None])[order], ctx.got, ctx.gone)
        inside = of_done * (1 - done * done)
        of_x = torch.empty_like(home)
        of_x[order] = _sent(inside @ weight.t(), ctx.gone, ctx.got)
        return of_x, (grad * home).sum(1), rows.t() @ inside, None


class GatedExpertsSwapped(GatedExperts):
    """Backward takes the counts that came for those that went."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        gate, weight, rows, done, home, order = ctx.saved_tensors
        of_done = _sent((grad * gate[:, None])[order], ctx.gone, ctx.got)
        inside = of_done * (1 - done * done)
        of_x = torch.empty_like(home)
        of_x[order] = _sent(inside @ weight.t(), ctx.got, ctx.gone)
        return of_x, (grad * home).sum(1), rows.t() @ inside, None


class GatedExpertsUnordered(GatedExperts):
    """The gradient of the tokens stays in the order of their experts."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        gate, weight, rows, done, home, order = ctx.saved_tensors
        of_done = _sent((grad * gate[:, None])[order], ctx.got, ctx.gone)
        inside = of_done * (1 - done * done)
        of_x = _sent(inside @ weight.t(), ctx.gone, ctx.got)
        return of_x, (grad * home).sum(1), rows.t() @ inside, None


def _routed(rank: int) -> tuple[Any, ...]:
    owner = (torch.tensor([1, 0, 1, 0, 1]) + rank) % size()
    return (*inputs(shard(5, 2), shard(5, seed=1), shard(2, 2, seed=2))(rank), owner)


CASES.add(GatedExperts, _routed)
CASES.add(
    GatedExpertsSwapped,
    _routed,
    # Of two ranks each sends as many as it gets; of four it is another exchange that works.
    least=4,
    rule="wrong-across-ranks",
)
CASES.add(GatedExpertsUnordered, _routed, rule="wrong-across-ranks")


class GatheredExpert(Function):
    """Every rank's expert sees all tokens; what it says of them is summed and scattered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        total = _whole(x)
        done = torch.tanh(total @ weight)
        ctx.save_for_backward(total, weight, done)
        return _scattered(done)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        total, weight, done = ctx.saved_tensors
        inside = _whole(grad) * (1 - done * done)
        return _scattered(inside @ weight.t()), total.t() @ inside


CASES.add(GatheredExpert, inputs(shard(2, 3), shard(3, 3, seed=1)))

# ---- parameters that are kept in parts ----


def _joined(part: Tensor, rows: int, columns: int) -> Tensor:
    """The parameter, from the flat parts of all ranks, the last of which are padded."""
    return _whole(part)[: rows * columns].view(rows, columns)


class ShardedParameter(Function):
    """A linear layer whose flat, padded weights are gathered for each use."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, part: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(x, part)
        ctx.rows = rows
        return x @ _joined(part, rows, x.shape[1]).t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, part = ctx.saved_tensors
        weight = _joined(part, ctx.rows, x.shape[1])
        flat = part.new_zeros(len(part) * size())
        flat[: weight.numel()] = (grad.t() @ x).flatten()
        return grad @ weight, _scattered(flat), None


class ShardedParameterMean(ShardedParameter):
    """Averages where the layer's loss is a sum."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        of_x, of_part, _ = ShardedParameter.backward(ctx, grad)
        return of_x, of_part / size(), None


class ShardedParameterOwn(ShardedParameter):
    """Keeps its part of its own gradient."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, part = ctx.saved_tensors
        weight = _joined(part, ctx.rows, x.shape[1])
        flat = part.new_zeros(len(part) * size())
        flat[: weight.numel()] = (grad.t() @ x).flatten()
        return grad @ weight, own(flat), None


# 9 numbers: 5 on each of two ranks, or 3 on each of four.
def _parts(rank: int) -> tuple[Any, ...]:
    return (*inputs(shard(2, 3), shard(-(-9 // size()), seed=1))(rank), 3)


CASES.add(ShardedParameter, _parts)
CASES.add(ShardedParameterMean, _parts, rule="rank-factor")
CASES.add(ShardedParameterOwn, _parts, rule="missing-collective")

# ---- neighbours ----


def _neighbours(to_left: Tensor, to_right: Tensor) -> tuple[Tensor, Tensor]:
    """What the rank on the left and that on the right send; zeros beyond the ends."""
    me, last = rank_in(), size() - 1
    left, right = torch.zeros_like(to_right), torch.zeros_like(to_left)
    to_left, to_right = to_left.contiguous(), to_right.contiguous()
    steps = []
    if me:
        steps += [dist.P2POp(dist.isend, to_left, me - 1), dist.P2POp(dist.irecv, left, me - 1)]
    if me < last:
        steps += [dist.P2POp(dist.isend, to_right, me + 1), dist.P2POp(dist.irecv, right, me + 1)]
    for handle in dist.batch_isend_irecv(steps):
        handle.wait()
    return left, right


class HaloConv(Function):
    """A convolution of width three along a sharded axis."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        left, right = _neighbours(x[..., :1], x[..., -1:])
        padded = torch.cat([left, x, right], -1)
        ctx.save_for_backward(padded, weight)
        return torch.nn.functional.conv1d(padded, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        padded, weight = ctx.saved_tensors
        whole = torch.nn.grad.conv1d_input(padded.shape, weight, grad)
        left, right = _neighbours(whole[..., :1], whole[..., -1:])
        out = whole[..., 1:-1].clone()
        out[..., :1] += left
        out[..., -1:] += right
        return out, summed(torch.nn.grad.conv1d_weight(padded, weight.shape, grad))


class HaloConvOverwrites(HaloConv):
    """What the neighbours send takes the place of this rank's own."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        padded, weight = ctx.saved_tensors
        whole = torch.nn.grad.conv1d_input(padded.shape, weight, grad)
        left, right = _neighbours(whole[..., :1], whole[..., -1:])
        out = whole[..., 1:-1].clone()
        if rank_in():
            out[..., :1] = left
        if rank_in() < size() - 1:
            out[..., -1:] = right
        return out, summed(torch.nn.grad.conv1d_weight(padded, weight.shape, grad))


class HaloConvKept(HaloConv):
    """What this rank found of its neighbours' columns is dropped."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        padded, weight = ctx.saved_tensors
        whole = torch.nn.grad.conv1d_input(padded.shape, weight, grad)
        of_weight = summed(torch.nn.grad.conv1d_weight(padded, weight.shape, grad))
        return whole[..., 1:-1].clone(), of_weight


_HALO = inputs(shard(1, 2, 3), one(2, 2, 3, seed=1))
CASES.add(HaloConv, _HALO)
CASES.add(HaloConvOverwrites, _HALO, rule="wrong-across-ranks")
CASES.add(HaloConvKept, _HALO, rule=("missing-collective", "wrong-across-ranks"))


class Hop(Function):
    """Every other stage hands its activations to the next."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if rank_in() % 2:
            out = torch.empty_like(x, memory_format=torch.contiguous_format)
            dist.recv(out, rank_in() - 1)
            return out
        dist.send(x.contiguous(), rank_in() + 1)
        return torch.zeros_like(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if rank_in() % 2:
            dist.send(grad.contiguous(), rank_in() - 1)
            return torch.zeros_like(grad)
        out = torch.empty_like(grad, memory_format=torch.contiguous_format)
        dist.recv(out, rank_in() + 1)
        return out


class HopBothReceive(Hop):
    """In backward, both stages wait for the other."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        out = torch.empty_like(grad, memory_format=torch.contiguous_format)
        dist.recv(out, rank_in() ^ 1)
        dist.send(grad.contiguous(), rank_in() ^ 1)
        return out


CASES.add(Hop, inputs(shard(3, 2)))
CASES.add(HopBothReceive, inputs(shard(3, 2)), rule="ranks-deadlock")

# ---- regions whose backward depends on what follows ----


class GatherSequence(Function):
    """Gathers a sequence; what follows is tensor parallel, or the same on every rank."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, is_parallel_after: bool) -> Tensor:
        ctx.is_parallel_after = is_parallel_after
        return _whole(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return (_scattered(grad) if ctx.is_parallel_after else own(grad)), None


_SHARDED = {"x": "shard", "out": "shard"}
_GIVEN = {"x": "shard", "out": "replicate"}
for named, flag, placements, rule in (
    ("GatherSequence", True, _SHARDED, ()),
    ("GatherSequenceAlone", False, _GIVEN, ()),
    ("GatherSequenceSplits", False, _SHARDED, "missing-collective"),
    ("GatherSequenceSums", True, _GIVEN, ("doubled-collective", "rank-factor")),
):
    CASES.add(
        GatherSequence, inputs(shard(2, 3), flag), name=named, placements=placements, rule=rule
    )

# ---- norms ----


class HiddenNorm(Function):
    """Root-mean-square norm whose hidden axis is sharded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        width = x.shape[1] * size()
        rstd = (summed((x * x).sum(1, keepdim=True)) / width + 1e-5).rsqrt()
        ctx.save_for_backward(x, weight, rstd)
        return x * rstd * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, weight, rstd = ctx.saved_tensors
        width = x.shape[1] * size()
        g = grad * weight
        inner = summed((g * x).sum(1, keepdim=True)) / width
        return rstd * (g - x * rstd * rstd * inner), (grad * x * rstd).sum(0)


class HiddenNormLocal(HiddenNorm):
    """The inner product is that of this rank's part."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, weight, rstd = ctx.saved_tensors
        g = grad * weight
        inner = (g * x).mean(1, keepdim=True)
        return rstd * (g - x * rstd * rstd * inner), (grad * x * rstd).sum(0)


_HIDDEN = inputs(shard(2, 3), shard(3, seed=1))
CASES.add(HiddenNorm, _HIDDEN)
CASES.add(HiddenNormLocal, _HIDDEN, rule=("missing-collective", "wrong-across-ranks"))


class UnevenBatchNorm(Function):
    """Batch norm over ranks with batches of different sizes; weights' gradients are shares."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        count = x.new_full((1,), len(x))
        sums = summed(torch.cat([x.sum(0), (x * x).sum(0), count]))
        width = x.shape[1]
        mean = sums[:width] / sums[-1]
        rstd = (sums[width:-1] / sums[-1] - mean * mean + 1e-5).rsqrt()
        normed = (x - mean) * rstd
        ctx.save_for_backward(normed, rstd, weight, sums[-1])
        return normed * weight + bias

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        normed, rstd, weight, count = ctx.saved_tensors
        of_weight, of_bias = (grad * normed).sum(0), grad.sum(0)
        both = summed(torch.stack([of_weight, of_bias])) / count
        return (grad - both[1] - normed * both[0]) * rstd * weight, of_weight, of_bias


class UnevenBatchNormOwnCount(UnevenBatchNorm):
    """Divides the sums of all ranks by this rank's batch times the ranks."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        normed, rstd, weight, _ = ctx.saved_tensors
        of_weight, of_bias = (grad * normed).sum(0), grad.sum(0)
        both = summed(torch.stack([of_weight, of_bias])) / (len(grad) * size())
        return (grad - both[1] - normed * both[0]) * rstd * weight, of_weight, of_bias


def _batches(rank: int) -> tuple[Any, ...]:
    return inputs(shard(2 + rank % 2, 3), one(3, seed=1), one(3, seed=2))(rank)


CASES.add(UnevenBatchNorm, _batches)
CASES.add(
    UnevenBatchNormOwnCount,
    _batches,
    rule=("wrong-across-ranks", "uneven-shards", "missing-collective"),
)

# ---- means, buffers ----


class MeanOver(Function):
    """The mean over the ranks, each of which goes on alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return summed(x) / size()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return MeanOver.apply(grad)


class MeanOverSums(MeanOver):
    """Backward sums."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return summed(grad)


CASES.add(MeanOver, inputs(shard(3, 2)))
CASES.add(MeanOverSums, inputs(shard(3, 2)), placements=_SHARDED, rule="rank-factor")


_BUFFERS: dict[tuple[int, ...], Tensor] = {}


def _buffer(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """One buffer for every shape, as trainers keep them."""
    if shape not in _BUFFERS or _BUFFERS[shape].dtype != like.dtype:
        _BUFFERS[shape] = like.new_empty(shape)
    return _BUFFERS[shape]


class BufferedColumn(Function):
    """Gathers into a buffer of the module, again in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        total = _buffer((len(x) * size(), x.shape[1]), x)
        dist.all_gather_into_tensor(total, x.contiguous())
        return total @ weight.t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, weight = ctx.saved_tensors
        total = _buffer((len(x) * size(), x.shape[1]), x)
        dist.all_gather_into_tensor(total, x.contiguous())
        return _scattered(grad @ weight), grad.t() @ total


class BufferedColumnKept(BufferedColumn):
    """Keeps what is in the buffer, which is the next call's as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        total = _buffer((len(x) * size(), x.shape[1]), x)
        dist.all_gather_into_tensor(total, x.contiguous())
        ctx.total = total
        ctx.save_for_backward(weight)
        return total @ weight.t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        (weight,) = ctx.saved_tensors
        return _scattered(grad @ weight), grad.t() @ ctx.total


_BUFFERED = inputs(shard(2, 3), shard(2, 3, seed=1))
CASES.add(BufferedColumn, _BUFFERED)
CASES.add(BufferedColumnKept, _BUFFERED, rule="written-by-collective")


# ---- shards of different sizes ----


def _sizes(x: Tensor) -> list[int]:
    found = [torch.zeros(1, dtype=torch.long) for _ in range(size())]
    dist.all_gather(found, torch.tensor([len(x)]))
    return [int(one_of) for one_of in found]


class RaggedGather(Function):
    """Gathers rows of which every rank may have another number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.sizes = _sizes(x)
        padded = x.new_zeros((max(ctx.sizes), *x.shape[1:]))
        padded[: len(x)] = x
        parts = [torch.empty_like(padded) for _ in ctx.sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:n] for part, n in zip(parts, ctx.sizes, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return summed(grad).split(ctx.sizes)[rank_in()].clone()


class RaggedGatherShifted(RaggedGather):
    """Backward begins where it would if every rank had as many rows as this one."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        mine = ctx.sizes[rank_in()]
        first = min(rank_in() * mine, len(grad) - mine)
        return summed(grad)[first : first + mine].clone()


def _ragged(rank: int) -> tuple[Any, ...]:
    return (shard(2, 2)(rank),)


CASES.add(RaggedGather, _ragged)
CASES.add(RaggedGatherShifted, _ragged, rule="uneven-shards")

# ---- programs that autograd differentiates ----


def regularised(x: Tensor, weight: Tensor) -> Tensor:
    """A mean over the ranks inside of what each rank goes on with."""
    hidden = torch.tanh(x @ weight)
    centre = differentiable.all_reduce(hidden.mean(0)) / size()
    return ((hidden - centre) ** 2).sum(1)


def regularised_cut(x: Tensor, weight: Tensor) -> Tensor:
    """The mean is summed by a collective that autograd does not see."""
    hidden = torch.tanh(x @ weight)
    centre = hidden.mean(0)
    dist.all_reduce(centre)
    return ((hidden - centre / size()) ** 2).sum(1)


_CENTRED = inputs(shard(3, 2), shard(2, 2, seed=1))
CASES.add(regularised, _CENTRED)
CASES.add(regularised_cut, _CENTRED, rule=("missing-collective", "wrong-across-ranks"))

# ---- DTensors ----


def _local_product(x: DTensor, weight: DTensor, grads: Any) -> DTensor:
    """A column-parallel product of the local tensors of two DTensors."""
    out = x.to_local(grad_placements=grads) @ weight.to_local().t()
    return DTensor.from_local(out, x.device_mesh, [Shard(1)])


def local_product(x: DTensor, weight: DTensor) -> DTensor:
    """The gradient of the replicated input is said to be a share."""
    return _local_product(x, weight, [Partial()])


def local_product_unsaid(x: DTensor, weight: DTensor) -> DTensor:
    """The gradient of the replicated input is taken for the whole."""
    return _local_product(x, weight, None)


def _placed(rank: int) -> tuple[Any, ...]:
    mesh = init_device_mesh("cpu", (size(),))
    x = distribute_tensor(one(3, 2, grad=False)(rank), mesh, [Replicate()])
    weight = distribute_tensor(one(4, 2, seed=1, grad=False)(rank), mesh, [Shard(0)])
    return x.requires_grad_(), weight.requires_grad_()


CASES.add(local_product, _placed)
CASES.add(
    local_product_unsaid,
    _placed,
    rule=("missing-collective", "unequal-gradients", "dtensor-placement"),
)

# ---- two dimensions of tensor parallelism ----


class Summa(Function):
    """A product of two matrices in blocks on a square of ranks."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, row: Any, column: Any) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.row, ctx.column = row, column
        blocks = zip(Summa.blocks(a, row), Summa.blocks(b, column), strict=True)
        return sum(left @ right for left, right in blocks)

    @staticmethod
    def blocks(x: Tensor, group: Any) -> tuple[Tensor, ...]:
        """The blocks of all ranks of a row or a column."""
        return _whole(x, group).chunk(size(group))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return *Summa.pulled(ctx, grad, ctx.row, ctx.column), None, None

    @staticmethod
    def pulled(ctx: Any, grad: Tensor, row: Any, column: Any) -> tuple[Tensor, Tensor]:
        """Each block's gradient is summed over the ranks that read it."""
        a, b = ctx.saved_tensors
        of_a = [grad @ block.t() for block in Summa.blocks(b, ctx.column)]
        of_b = [block.t() @ grad for block in Summa.blocks(a, ctx.row)]
        return _scattered(torch.cat(of_a), row), _scattered(torch.cat(of_b), column)


class SummaTurned(Summa):
    """Sums over the column what belongs to the row, and the other way."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return *Summa.pulled(ctx, grad, ctx.column, ctx.row), None, None


def _square(rank: int) -> tuple[Any, ...]:
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    a, b = shard(2, 2)(rank), shard(2, 2, seed=1)(rank)
    return a, b, rows[rank // 2], columns[rank % 2]


CASES.add(Summa, _square, least=4)
CASES.add(SummaTurned, _square, least=4, rule=("wrong-group", "wrong-across-ranks"))

SOUND = [case for case in CASES if not case.rules]
PLANTED = [case for case in CASES if case.rules]
