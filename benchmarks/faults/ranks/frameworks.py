"""Functions in the manner of training frameworks, sound and faulty, written before they were run.

They are bigger than the other cases, and nothing is declared of most: what an author would hand in.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from benchmarks.faults.ranks.case import RankCases, inputs, one, pairs, shard

CASES = RankCases()

# ---- vocabulary-parallel embedding ----


class VocabularyEmbedding(Function):
    """Each rank holds some rows of the table; what it has not is zero, and the sum is whole."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor) -> Tensor:
        start = dist.get_rank() * weight.shape[0]
        mask = (ids < start) | (ids >= start + weight.shape[0])
        local = (ids - start).masked_fill(mask, 0)
        out = F.embedding(local, weight)
        out[mask] = 0.0
        dist.all_reduce(out)
        ctx.save_for_backward(local, mask)
        ctx.rows = weight.shape[0]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        local, mask = ctx.saved_tensors
        grad = grad.masked_fill(mask.unsqueeze(-1), 0.0)
        table = grad.new_zeros(ctx.rows, grad.shape[-1])
        table.index_add_(0, local.flatten(), grad.flatten(0, -2))
        return None, table


class UnmaskedEmbedding(VocabularyEmbedding):
    """Rows of other ranks are added to row 0."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        local, _ = ctx.saved_tensors
        table = grad.new_zeros(ctx.rows, grad.shape[-1])
        table.index_add_(0, local.flatten(), grad.flatten(0, -2))
        return None, table


IDS = torch.tensor([[0, 5, 2, 7], [1, 6, 3, 4]])
CASES.add(VocabularyEmbedding, lambda rank: (IDS % (3 * dist.get_world_size()), shard(3, 5)(rank)))
CASES.add(
    UnmaskedEmbedding,
    lambda rank: (IDS % (3 * dist.get_world_size()), shard(3, 5)(rank)),
    rule="wrong-across-ranks",
)

# ---- sequence-parallel linear whose communication overlaps the product ----


class OverlappedLinear(Function):
    """Gathers the sequence for columns of the weight; backward multiplies while it scatters."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        n = dist.get_world_size()
        whole = x.new_empty(x.shape[0] * n, *x.shape[1:])
        dist.all_gather_into_tensor(whole, x.contiguous())
        ctx.save_for_backward(x, weight)
        return F.linear(whole, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        n = dist.get_world_size()
        whole = x.new_empty(x.shape[0] * n, *x.shape[1:])
        gather = dist.all_gather_into_tensor(whole, x.contiguous(), async_op=True)
        grad_whole = (grad @ weight).contiguous()
        gather.wait()
        grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
        scatter = dist.reduce_scatter_tensor(grad_x, grad_whole, async_op=True)
        flat = grad.flatten(0, -2)
        grad_weight = flat.t() @ whole.flatten(0, -2)
        grad_bias = flat.sum(0)
        scatter.wait()
        return grad_x, grad_weight, grad_bias


class UnscatteredLinear(OverlappedLinear):
    """Each rank keeps its own rows of its own product."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        n = dist.get_world_size()
        whole = x.new_empty(x.shape[0] * n, *x.shape[1:])
        dist.all_gather_into_tensor(whole, x.contiguous())
        grad_x = (grad @ weight).chunk(n)[dist.get_rank()]
        flat = grad.flatten(0, -2)
        return grad_x, flat.t() @ whole.flatten(0, -2), flat.sum(0)


LINEAR = inputs(shard(2, 3, 4), shard(5, 4, seed=1), shard(5, seed=2))
CASES.add(OverlappedLinear, LINEAR)
CASES.add(UnscatteredLinear, LINEAR, rule="missing-collective")

# ---- heads and sequence exchanged, as in Ulysses ----


def _exchanged(x: Tensor, scatter: int, gather: int, group: Any) -> Tensor:
    n = dist.get_world_size(group)
    sent = [part.contiguous() for part in x.tensor_split(n, scatter)]
    got = [torch.empty_like(sent[0]) for _ in range(n)]
    dist.all_to_all(got, sent, group=group)
    return torch.cat(got, gather)


class HeadsForSequence(Function):
    """Scatters one dimension and gathers another."""

    @staticmethod
    def forward(ctx: Any, group: Any, x: Tensor, scatter: int, gather: int) -> Tensor:
        ctx.group, ctx.scatter, ctx.gather = group, scatter, gather
        return _exchanged(x, scatter, gather, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None, None]:
        return None, HeadsForSequence.apply(ctx.group, grad, ctx.gather, ctx.scatter), None, None


def _heads(rank: int) -> tuple[Any, ...]:
    return dist.group.WORLD, shard(4, 8, 2)(rank), 1, 0


CASES.add(HeadsForSequence, _heads)

# ---- tokens to experts, uneven ----


class Dispatch(Function):
    """Sends rows to the ranks of their experts, as many as each gets."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: list[int], got: list[int]) -> Tensor:
        ctx.sent, ctx.got = sent, got
        out = x.new_empty(sum(got), *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), got, sent)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return Dispatch.apply(grad, ctx.got, ctx.sent), None, None


class DispatchAgain(Dispatch):
    """Backward sends as many rows to each rank as forward did."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return Dispatch.apply(grad, ctx.sent, ctx.got), None, None


def _tokens(rank: int) -> tuple[Any, ...]:
    n = dist.get_world_size()
    counts = [[1 + (i + 2 * j) % 3 for j in range(n)] for i in range(n)]
    got = [counts[j][rank] for j in range(n)]
    return shard(sum(counts[rank]), 3)(rank), counts[rank], got


CASES.add(Dispatch, _tokens)
CASES.add(DispatchAgain, _tokens, rule=("fails-on-ranks", "ranks-deadlock", "lost-rank"))

# ---- attention over a ring ----


def _ring(tensors: tuple[Tensor, ...], by: int = 1) -> tuple[Tensor, ...]:
    me, n = dist.get_rank(), dist.get_world_size()
    got = tuple(torch.empty_like(t) for t in tensors)
    ops = []
    for have, take in zip(tensors, got, strict=True):
        ops.append(dist.P2POp(dist.isend, have, (me + by) % n))
        ops.append(dist.P2POp(dist.irecv, take, (me - by) % n))
    for request in dist.batch_isend_irecv(ops):
        request.wait()
    return got


class RingAttention(Function):
    """Keys and values go round; softmax is joined by its logarithms."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scale = 1 / math.sqrt(q.shape[-1])
        kept = (q, k, v)
        k, v = k.contiguous(), v.contiguous()
        out, lse = torch.zeros_like(q), q.new_full(q.shape[:-1], -torch.inf)
        for step in range(dist.get_world_size()):
            scores = scale * (q @ k.transpose(-1, -2))
            block = scores.logsumexp(-1)
            joined = torch.logaddexp(lse, block)
            local = torch.softmax(scores, -1) @ v
            out = out * (lse - joined).exp().unsqueeze(-1)
            out = out + local * (block - joined).exp().unsqueeze(-1)
            lse = joined
            if step + 1 < dist.get_world_size():
                k, v = _ring((k, v))
        ctx.save_for_backward(*kept, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dq, dk, dv = RingAttention.rounds(ctx, grad)
        dk, dv = _ring((dk, dv))
        return dq, dk, dv

    @staticmethod
    def rounds(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients, those of keys and values one rank before home."""
        q, k, v, out, lse = ctx.saved_tensors
        scale = 1 / math.sqrt(q.shape[-1])
        k, v = k.contiguous(), v.contiguous()
        delta = (grad * out).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for step in range(dist.get_world_size()):
            p = (scale * (q @ k.transpose(-1, -2)) - lse.unsqueeze(-1)).exp()
            ds = p * (grad @ v.transpose(-1, -2) - delta) * scale
            dq = dq + ds @ k
            dk = dk + ds.transpose(-1, -2) @ q
            dv = dv + p.transpose(-1, -2) @ grad
            if step + 1 < dist.get_world_size():
                k, v, dk, dv = _ring((k, v, dk, dv))
        return dq, dk, dv


class RingNotClosed(RingAttention):
    """Gradients of keys and values stop one rank before their own."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return RingAttention.rounds(ctx, grad)


ATTENTION = inputs(shard(2, 3, 4), shard(2, 3, 4, seed=1), shard(2, 3, 4, seed=2))
CASES.add(RingAttention, ATTENTION)
CASES.add(RingNotClosed, ATTENTION, rule="other-ranks-gradient")

# ---- sums of the ranks before ----


class SumsBefore(Function):
    """A running sum along a sequence that the ranks share."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        own = x.cumsum(0)
        totals = [torch.empty_like(own[-1]) for _ in range(dist.get_world_size())]
        dist.all_gather(totals, own[-1].contiguous())
        for before in totals[: dist.get_rank()]:
            own = own + before
        return own

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        own = grad.flip(0).cumsum(0).flip(0)
        totals = [torch.empty_like(own[0]) for _ in range(dist.get_world_size())]
        dist.all_gather(totals, own[0].contiguous())
        for after in totals[dist.get_rank() + 1 :]:
            own = own + after
        return own


class SumsAfter(SumsBefore):
    """Backward adds what comes from the ranks before, too."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        own = grad.flip(0).cumsum(0).flip(0)
        totals = [torch.empty_like(own[0]) for _ in range(dist.get_world_size())]
        dist.all_gather(totals, own[0].contiguous())
        for before in totals[: dist.get_rank()]:
            own = own + before
        return own


CASES.add(SumsBefore, inputs(shard(3, 2)))
CASES.add(SumsAfter, inputs(shard(3, 2)), rule=("wrong-across-ranks", "wrong-group"))

# ---- a norm over a dimension that the ranks share ----


class SharedRMSNorm(Function):
    """The hidden dimension is sharded, as is the weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        squares = x.pow(2).sum(-1, keepdim=True)
        dist.all_reduce(squares)
        width = x.shape[-1] * dist.get_world_size()
        rstd = torch.rsqrt(squares / width + eps)
        ctx.save_for_backward(x, weight, rstd)
        ctx.width = width
        return x * rstd * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, rstd = ctx.saved_tensors
        normed, weighted = x * rstd, grad * weight
        inner = (weighted * normed).sum(-1, keepdim=True)
        dist.all_reduce(inner)
        grad_x = rstd * (weighted - normed * inner / ctx.width)
        return grad_x, (grad * normed).flatten(0, -2).sum(0), None


class LocalRMSNorm(SharedRMSNorm):
    """The inner product of backward is over this rank's part alone."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, rstd = ctx.saved_tensors
        normed, weighted = x * rstd, grad * weight
        inner = (weighted * normed).sum(-1, keepdim=True)
        grad_x = rstd * (weighted - normed * inner / ctx.width)
        return grad_x, (grad * normed).flatten(0, -2).sum(0), None


NORM = inputs(shard(3, 4), shard(4, seed=1), 1e-6)
CASES.add(SharedRMSNorm, NORM)
CASES.add(LocalRMSNorm, NORM, rule="missing-collective")

# ---- a loss over a sharded vocabulary ----


class VocabularyLoss(Function):
    """Cross-entropy with a smoothed label, of logits whose classes are sharded."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
        top = logits.amax(-1)
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        shifted = logits - top.unsqueeze(-1)
        width = logits.shape[-1]
        start = dist.get_rank() * width
        mask = (target < start) | (target >= start + width)
        local = (target - start).masked_fill(mask, 0)
        picked = shifted.gather(-1, local.unsqueeze(-1)).squeeze(-1).masked_fill(mask, 0.0)
        sums = torch.stack([picked, shifted.exp().sum(-1), shifted.sum(-1)])
        dist.all_reduce(sums)
        picked, total, mean = sums[0], sums[1], sums[2] / (width * dist.get_world_size())
        ctx.save_for_backward(shifted.exp() / total.unsqueeze(-1), local, mask)
        ctx.smoothing = smoothing
        return total.log() - (1 - smoothing) * picked - smoothing * mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        softmax, local, mask = ctx.saved_tensors
        classes = softmax.shape[-1] * dist.get_world_size()
        hot = F.one_hot(local, softmax.shape[-1]).to(softmax.dtype)
        hot = hot.masked_fill(mask.unsqueeze(-1), 0.0)
        own = softmax - (1 - ctx.smoothing) * hot - ctx.smoothing / classes
        return own * grad.unsqueeze(-1), None, None


class SmoothedByLocalClasses(VocabularyLoss):
    """The smoothed label is spread over this rank's classes."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        softmax, local, mask = ctx.saved_tensors
        hot = F.one_hot(local, softmax.shape[-1]).to(softmax.dtype)
        hot = hot.masked_fill(mask.unsqueeze(-1), 0.0)
        own = softmax - (1 - ctx.smoothing) * hot - ctx.smoothing / softmax.shape[-1]
        return own * grad.unsqueeze(-1), None, None


LOSS = inputs(shard(4, 3), lambda rank: torch.tensor([0, 3, 5, 2]), 0.1)
CASES.add(VocabularyLoss, LOSS)
CASES.add(SmoothedByLocalClasses, LOSS, rule="wrong-across-ranks")

# ---- contrast of all ranks' rows ----


class Contrast(Function):
    """Each rank's images against the texts of all; the loss is each rank's own."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, text: Tensor, scale: Tensor) -> Tensor:
        parts = [torch.empty_like(text) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, text.contiguous())
        texts = torch.cat(parts)
        logits = scale * image @ texts.t()
        labels = torch.arange(len(image)) + len(image) * dist.get_rank()
        ctx.save_for_backward(image, texts, scale, logits, labels)
        return F.cross_entropy(logits, labels)

    @staticmethod
    def gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of the images, of the texts of all ranks, and of the scale."""
        image, texts, scale, logits, labels = ctx.saved_tensors
        inner = (logits.softmax(-1) - F.one_hot(labels, logits.shape[-1])) * grad / len(labels)
        by_scale = (inner * (image @ texts.t())).sum().view_as(scale)
        return scale * inner @ texts, scale * inner.t() @ image, by_scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        by_image, by_texts, by_scale = Contrast.gradients(ctx, grad)
        own = torch.empty_like(by_image)
        dist.reduce_scatter_tensor(own, by_texts.contiguous())
        dist.all_reduce(by_scale)
        return by_image, own, by_scale


class ContrastKept(Contrast):
    """What other ranks' losses add to the texts is dropped."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        by_image, by_texts, by_scale = Contrast.gradients(ctx, grad)
        dist.all_reduce(by_scale)
        return by_image, by_texts.chunk(dist.get_world_size())[dist.get_rank()], by_scale


PAIRS = inputs(shard(3, 4), shard(3, 4, seed=1), one(1))
CASES.add(Contrast, PAIRS)
CASES.add(ContrastKept, PAIRS, rule="missing-collective")

# ---- the largest of all ranks ----


class LargestOfAll(Function):
    """The largest entry over the ranks, whose rank gets the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        top = x.clone()
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        ctx.save_for_backward(x == top)
        return top

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (is_mine,) = ctx.saved_tensors
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total * is_mine


class LargestForEach(LargestOfAll):
    """Every rank gets the gradient."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


CASES.add(LargestOfAll, inputs(shard(3, 4)))
CASES.add(LargestForEach, inputs(shard(3, 4)), rule=("doubled-collective", "wrong-across-ranks"))

# ---- from one rank to all ----


class FromFirst(Function):
    """The first rank's value on all; its gradient is the sum, and the others' are zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.clone()
        dist.broadcast(y, 0)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.reduce(total, 0)
        return total if dist.get_rank() == 0 else torch.zeros_like(total)


class FromFirstEarlyOut(FromFirst):
    """A rank whose cotangent is zero does not take part."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if not grad.any():
            return torch.zeros_like(grad)
        return FromFirst.backward(ctx, grad)


CASES.add(FromFirst, inputs(shard(3, 2)))
CASES.add(FromFirstEarlyOut, inputs(shard(3, 2)), rule="ranks-deadlock")

# ---- a mean over a subgroup ----


class GroupMean(Function):
    """The mean over the ranks of a group, on each of them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        y = x / dist.get_world_size(group)
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return GroupMean.apply(grad, ctx.group), None


class GroupMeanByWorld(GroupMean):
    """Backward divides by all ranks."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        total = grad / dist.get_world_size()
        dist.all_reduce(total, group=ctx.group)
        return total, None


CASES.add(GroupMean, inputs(shard(3, 2), pairs))
CASES.add(
    GroupMeanByWorld,
    inputs(shard(3, 2), pairs),
    placements={"out": "shard"},  # or it is right: the factor is that of the other convention
    rule="rank-factor",
    least=4,
)

SOUND = [case for case in CASES if not case.rules]
PLANTED = [case for case in CASES if case.rules]
