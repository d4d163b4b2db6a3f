"""Wrong only for some shapes: rank, size one, odd sizes, blocks, short rows, batches, empty."""

# ruff: noqa: D101

import torch
import torch.nn.functional as F
from torch.autograd import Function

from benchmarks.faults.case import Cases, double, integers, normal, positive
from benchmarks.faults.evidence import differs

CASES = Cases()

# ---- rank ----


class LayerNormRank(Function):
    @staticmethod
    def forward(ctx, x, weight):
        mean = x.mean(-1, keepdim=True)
        inv = (x.var(-1, keepdim=True, unbiased=False) + 1e-5).rsqrt()
        normed = (x - mean) * inv
        ctx.save_for_backward(normed, inv, weight)
        return normed * weight

    @staticmethod
    def backward(ctx, grad):
        normed, inv, weight = ctx.saved_tensors
        g = grad * weight
        dx = inv * (g - g.mean(1, keepdim=True) - normed * (g * normed).mean(1, keepdim=True))
        return dx, (grad * normed).flatten(0, -2).sum(0)


CASES.add(
    LayerNormRank,
    lambda: (normal(4, 6), positive(6, seed=1)),
    fault="wrong-rank",
    where="For rank three and more the means run over the wrong dimension.",
    reference=lambda x, w: F.layer_norm(x, x.shape[-1:], w),
    evidence=differs(lambda: (normal(2, 3, 6), positive(6, seed=1))),
    cites="FlagGems#5392",
)


class LinearBias(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.t() @ x, grad.sum(0)


CASES.add(
    LinearBias,
    lambda: (normal(5, 4), normal(3, 4, seed=1), normal(3, seed=2)),
    fault="wrong-rank",
    where="A batch of sequences makes backward fail: t() is for matrices only.",
    reference=F.linear,
    evidence=differs(lambda: (normal(2, 5, 4), normal(3, 4, seed=1), normal(3, seed=2))),
    severity="fragile",
)


class SoftmaxDim(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return y * (grad - (grad * y).sum(1, keepdim=True))


CASES.add(
    SoftmaxDim,
    lambda: (double(3, 5),),
    fault="wrong-rank",
    where="Dimension 1 stands for the last, which holds for matrices only.",
    reference=lambda x: torch.softmax(x, -1),
    evidence=differs(lambda: (double(2, 3, 5),)),
)


class TransposeMatmul(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return torch.matmul(a, b)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad.matmul(b.transpose(0, 1)), a.transpose(0, 1).matmul(grad)


CASES.add(
    TransposeMatmul,
    lambda: (normal(3, 4), normal(4, 2, seed=1)),
    fault="wrong-rank",
    where="Batched factors are transposed over the wrong pair of dimensions.",
    reference=torch.matmul,
    evidence=differs(lambda: (normal(3, 3, 3), normal(3, 3, 3, seed=1))),
)


class BroadcastMul(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        ds = grad * x
        while ds.dim() > scale.dim():
            ds = ds.sum(0)
        for dim, size in enumerate(scale.shape):
            if size == 1:
                ds = ds.mean(dim, keepdim=True)
        return grad * scale, ds


CASES.add(
    BroadcastMul,
    lambda: (normal(4, 5), normal(5, seed=1)),
    fault="size-one-dimension",
    where="Broadcast dimensions of size one are averaged instead of summed.",
    reference=torch.mul,
    evidence=differs(lambda: (normal(4, 5), normal(4, 1, seed=1))),
)

# ---- size one ----


class StdRow(Function):
    @staticmethod
    def forward(ctx, x):
        mean = x.mean(-1, keepdim=True)
        out = ((x - mean) ** 2).sum(-1).div(max(x.shape[-1] - 1, 1)).sqrt()
        ctx.save_for_backward(x - mean, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        centred, out = ctx.saved_tensors
        n = centred.shape[-1]
        return (grad / out)[:, None] * centred / (n - 1)


CASES.add(
    StdRow,
    lambda: (normal(3, 5),),
    fault="size-one-dimension",
    where="A row of one entry divides by zero in backward and not in forward.",
    reference=lambda x: x.std(-1) if x.shape[-1] > 1 else (x * 0).sum(-1),
    evidence=differs(lambda: (normal(3, 1),)),
)


class AttentionSqueeze(Function):
    @staticmethod
    def forward(ctx, q, k):
        ctx.save_for_backward(q, k)
        return torch.einsum("bd,bnd->bn", q, k)

    @staticmethod
    def backward(ctx, grad):
        q, k = ctx.saved_tensors
        dq = (grad[:, None] @ k).squeeze()
        dk = grad[..., None] * q[:, None]
        return dq, dk


CASES.add(
    AttentionSqueeze,
    lambda: (normal(3, 4), normal(3, 5, 4, seed=1)),
    fault="size-one-dimension",
    where="squeeze without a dimension drops a batch of one, and the shape no longer fits.",
    reference=lambda q, k: torch.einsum("bd,bnd->bn", q, k),
    evidence=differs(lambda: (normal(3, 1), normal(3, 5, 1, seed=1))),
    severity="fragile",
)


class UpsampleTwice(Function):
    @staticmethod
    def forward(ctx, x):
        return x.repeat_interleave(2, -1)

    @staticmethod
    def backward(ctx, grad):
        n = grad.shape[-1] // 2
        if n == 1:
            return grad[..., :1]
        return grad.unflatten(-1, (n, 2)).sum(-1)


CASES.add(
    UpsampleTwice,
    lambda: (double(2, 4),),
    fault="size-one-dimension",
    where="For one entry only the first of its two copies counts.",
    reference=lambda x: x.repeat_interleave(2, -1),
    evidence=differs(lambda: (double(2, 1),)),
)

# ---- odd sizes ----


class HalfPool(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.n = x.shape[-1]
        return F.avg_pool1d(x[:, None], 2, ceil_mode=True)[:, 0]

    @staticmethod
    def backward(ctx, grad):
        out = grad.repeat_interleave(2, -1) / 2
        return out[..., : ctx.n]


CASES.add(
    HalfPool,
    lambda: (normal(2, 8),),
    fault="odd-size",
    where="For an odd length the last window has one entry and is still halved.",
    reference=lambda x: F.avg_pool1d(x[:, None], 2, ceil_mode=True)[:, 0],
    evidence=differs(lambda: (normal(2, 7),)),
)


class PairSwap(Function):
    @staticmethod
    def forward(ctx, x):
        out = x.clone()
        n = x.shape[-1] // 2 * 2
        out[..., 0:n:2], out[..., 1:n:2] = x[..., 1:n:2], x[..., 0:n:2]
        return out

    @staticmethod
    def backward(ctx, grad):
        out = torch.zeros_like(grad)
        n = grad.shape[-1] // 2 * 2
        out[..., 0:n:2], out[..., 1:n:2] = grad[..., 1:n:2], grad[..., 0:n:2]
        return out


def pair_swap(x):
    """Exchange neighbours; an odd last entry stays."""
    n = x.shape[-1] // 2 * 2
    return torch.cat([x[..., :n].unflatten(-1, (-1, 2)).flip(-1).flatten(-2), x[..., n:]], -1)


CASES.add(
    PairSwap,
    lambda: (double(3, 6),),
    fault="odd-size",
    where="An odd last entry gets no gradient.",
    reference=pair_swap,
    evidence=differs(lambda: (double(3, 7),)),
)


class ReverseHalves(Function):
    @staticmethod
    def forward(ctx, x):
        a, b = x.tensor_split(2, -1)
        ctx.sizes = a.shape[-1], b.shape[-1]
        return torch.cat([b, a], -1)

    @staticmethod
    def backward(ctx, grad):
        a, b = grad.split(ctx.sizes, -1)
        return torch.cat([b, a], -1)


CASES.add(
    ReverseHalves,
    lambda: (normal(2, 6),),
    fault="odd-size",
    where="For an odd length the cotangent is cut at the wrong place.",
    reference=lambda x: torch.cat(x.tensor_split(2, -1)[::-1], -1),
    evidence=differs(lambda: (normal(2, 7),)),
)

# ---- blocks ----


class BlockSum(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        dw = torch.zeros_like(w)
        for start in range(0, x.shape[0] // 8 * 8, 8):
            dw += (grad[start : start + 8] * x[start : start + 8]).sum(0)
        return grad * w, dw


CASES.add(
    BlockSum,
    lambda: (normal(16, 3), normal(3, seed=1)),
    fault="block-remainder",
    where="Rows after the last whole block of eight do not reach the weight's gradient.",
    reference=torch.mul,
    evidence=differs(lambda: (normal(17, 3), normal(3, seed=1))),
)


class TiledMatmul(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        da = torch.zeros_like(a)
        step = 4
        for k in range(0, grad.shape[1], step):
            if k + step > grad.shape[1] and k > 0:
                k = grad.shape[1] - step
            da += grad[:, k : k + step] @ b[:, k : k + step].t()
        return da, a.t() @ grad


CASES.add(
    TiledMatmul,
    lambda: (normal(3, 5), normal(5, 8, seed=1)),
    fault="block-remainder",
    where="The last partial tile is moved back and counts some columns twice.",
    reference=torch.matmul,
    evidence=differs(lambda: (normal(3, 5), normal(5, 9, seed=1))),
)


class ChunkedLoss(Function):
    @staticmethod
    def forward(ctx, logits, labels):
        ctx.save_for_backward(logits, labels)
        return F.cross_entropy(logits, labels)

    @staticmethod
    def backward(ctx, grad):
        logits, labels = ctx.saved_tensors
        parts = []
        for x, y in zip(logits.split(4), labels.split(4), strict=True):
            d = torch.softmax(x, -1) - F.one_hot(y, x.shape[-1])
            parts.append(d / len(y) / -(-len(logits) // 4))
        return grad * torch.cat(parts), None


CASES.add(
    ChunkedLoss,
    lambda: (normal(8, 3), integers(3, 8)),
    fault="block-remainder",
    where="A shorter last chunk weighs as much as the others.",
    reference=F.cross_entropy,
    evidence=differs(lambda: (normal(10, 3), integers(3, 10))),
    cites="Liger#1391",
)


class OverlappingBlocks(Function):
    @staticmethod
    def forward(ctx, x):
        return F.avg_pool1d(x[None], 3, 1, padding=1)[0]

    @staticmethod
    def backward(ctx, grad):
        out = torch.zeros_like(grad)
        block = 16
        n = grad.shape[-1]
        padded = F.pad(grad, (1, 1))
        for start in range(0, n, block):
            stop = min(start + block, n)
            piece = padded[..., start : stop + 2].unfold(-1, 3, 1).sum(-1) / 3
            if start:
                piece = piece.clone()
                piece[..., 0] -= padded[..., start] / 3
            out[..., start:stop] = piece
        return out


CASES.add(
    OverlappingBlocks,
    lambda: (normal(2, 12),),
    fault="block-remainder",
    where="Past the first block of sixteen an update at the border is lost.",
    reference=lambda x: F.avg_pool1d(x[None], 3, 1, padding=1)[0],
    evidence=differs(lambda: (normal(2, 20),)),
    cites="cherimoya#25",
)


class WideHead(Function):
    @staticmethod
    def forward(ctx, p, v):
        ctx.save_for_backward(p, v)
        return p @ v

    @staticmethod
    def backward(ctx, grad):
        p, v = ctx.saved_tensors
        dv = torch.zeros_like(v)
        full = p.mT @ grad
        half = min(v.shape[-1], 32)
        dv[..., :half] = full[..., :half]
        if v.shape[-1] > 32:
            dv[..., -32:] = full[..., 32 - v.shape[-1] :][..., -32:].roll(1, -1)
        return grad @ v.mT, dv


CASES.add(
    WideHead,
    lambda: (positive(3, 4), normal(4, 16, seed=1)),
    fault="block-remainder",
    where="Heads wider than 32 write the second column block one column off.",
    reference=torch.matmul,
    evidence=differs(lambda: (positive(3, 4), normal(4, 48, seed=1))),
    cites="FA#2552",
)


class SmallIndex(Function):
    @staticmethod
    def forward(ctx, x):
        out, index = x.max(-1)
        ctx.save_for_backward(index.to(torch.uint8))
        ctx.n = x.shape[-1]
        return out

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        out = grad.new_zeros(*grad.shape, ctx.n)
        return out.scatter(-1, index.long()[..., None], grad[..., None])


CASES.add(
    SmallIndex,
    lambda: (normal(3, 20),),
    fault="index-overflow",
    where="The saved index has eight bits and wraps in rows longer than 256.",
    reference=lambda x: x.max(-1).values,
    evidence=differs(lambda: (normal(3, 700),)),
    cites="ffpa-attn#299",
)


class ShortOffset(Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index.to(torch.int16))
        ctx.shape = x.shape
        return x[index]

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        width = ctx.shape[1]
        flat = grad.new_zeros(ctx.shape[0] * width)
        start = index * width
        for row, first in enumerate(start.tolist()):
            flat[first : first + width] += grad[row] if first >= 0 else 0
        return flat.view(ctx.shape), None


CASES.add(
    ShortOffset,
    lambda: (normal(8, 4), torch.tensor([1, 5, 1])),
    fault="index-overflow",
    where="Offsets have sixteen bits: past 32767 entries gradients are lost.",
    reference=lambda x, i: x[i],
    evidence=differs(lambda: (normal(300, 200), torch.tensor([1, 250, 1]))),
    cites="DLBlas#171",
)

# ---- short ----


class ConvState(Function):
    @staticmethod
    def forward(ctx, x, state):
        ctx.w, ctx.n = state.shape[-1], x.shape[-1]
        return torch.cat([state, x], -1)[..., -ctx.w :].clone()

    @staticmethod
    def backward(ctx, grad):
        w, n = ctx.w, ctx.n
        dx = grad.new_zeros(*grad.shape[:-1], n)
        dx[..., max(0, n - w) :] = grad[..., -min(n, w) :]
        return dx, torch.zeros_like(grad)


CASES.add(
    ConvState,
    lambda: (normal(2, 9), normal(2, 4, seed=1)),
    fault="short-input",
    where="When the input is shorter than the window the state's gradient is dropped.",
    reference=lambda x, s: torch.cat([s, x], -1)[..., -s.shape[-1] :],
    evidence=differs(lambda: (normal(2, 2), normal(2, 4, seed=1))),
    cites="fla#1140",
)


class EdgeDifference(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.n = x.shape[-1]
        return torch.gradient(x, dim=-1)[0]

    @staticmethod
    def backward(ctx, grad):
        n = ctx.n
        out = torch.zeros_like(grad)
        out[..., 2:] += 0.5 * grad[..., 1:-1]
        out[..., :-2] -= 0.5 * grad[..., 1:-1]
        out[..., 0] -= grad[..., 0]
        out[..., 1] += grad[..., 0]
        out[..., n - 1] += grad[..., -1]
        out[..., max(n - 2, 1)] -= grad[..., -1]
        return out


CASES.add(
    EdgeDifference,
    lambda: (double(2, 6),),
    fault="short-input",
    where="For rows of two entries the right edge is written in the wrong place.",
    reference=lambda x: torch.gradient(x, dim=-1)[0],
    evidence=differs(lambda: (double(2, 2),)),
)


class WindowedSum(Function):
    @staticmethod
    def forward(ctx, x):
        return x.cumsum(-1) - F.pad(x.cumsum(-1), (3, 0))[..., : x.shape[-1]]

    @staticmethod
    def backward(ctx, grad):
        back = grad.flip(-1).cumsum(-1).flip(-1)
        out = back.clone()
        out[..., :-3] -= back[..., 3:]
        if grad.shape[-1] <= 3:
            out = grad * grad.shape[-1]
        return out


CASES.add(
    WindowedSum,
    lambda: (double(2, 8),),
    fault="short-input",
    where="Rows no longer than the window take a wrong shortcut.",
    reference=lambda x: x.cumsum(-1) - F.pad(x.cumsum(-1), (3, 0))[..., : x.shape[-1]],
    evidence=differs(lambda: (double(2, 3),)),
)

# ---- batches and ratios ----


class SharedFilter(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        dx = torch.nn.grad.conv2d_input(x.shape, weight, grad)
        dw = torch.nn.grad.conv2d_weight(x[:1], weight.shape, grad[:1])
        return dx, dw


CASES.add(
    SharedFilter,
    lambda: (normal(1, 2, 6, 6), normal(3, 2, 3, 3, seed=1)),
    fault="batch-size",
    where="Only the first image of a batch reaches the weight's gradient.",
    reference=F.conv2d,
    evidence=differs(lambda: (normal(2, 2, 6, 6), normal(3, 2, 3, 3, seed=1))),
    cites="mmcv#1169",
)


class BatchSteps(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        steps = x.reshape(-1, min(32, len(x)), x.shape[1])
        grads = grad.reshape(-1, min(32, len(x)), grad.shape[1])
        return grad @ weight.t(), (steps.transpose(1, 2) @ grads).sum(0)


CASES.add(
    BatchSteps,
    lambda: (normal(6, 3), normal(3, 2, seed=1)),
    fault="batch-size",
    where="A batch above 32 that is no multiple of it fails.",
    reference=torch.matmul,
    evidence=differs(lambda: (normal(33, 3), normal(3, 2, seed=1))),
    cites="mmcv#565",
    severity="fragile",
)


class GroupedQuery(Function):
    @staticmethod
    def forward(ctx, q, k):
        groups = q.shape[0] // k.shape[0]
        ctx.save_for_backward(q, k)
        return torch.einsum("hnd,hmd->hnm", q, k.repeat_interleave(groups, 0))

    @staticmethod
    def backward(ctx, grad):
        q, k = ctx.saved_tensors
        heads = k.shape[0]
        groups = q.shape[0] // heads
        dq = torch.einsum("hnm,hmd->hnd", grad, k.repeat_interleave(groups, 0))
        full = torch.einsum("hnm,hnd->hmd", grad, q)
        return dq, full.view(groups, heads, *full.shape[1:]).sum(0)


CASES.add(
    GroupedQuery,
    lambda: (normal(2, 3, 4), normal(2, 3, 4, seed=1)),
    fault="ratio-of-sizes",
    where="With several query heads per key head the gradients are summed over the wrong heads.",
    reference=lambda q, k: torch.einsum(
        "hnd,hmd->hnm", q, k.repeat_interleave(q.shape[0] // k.shape[0], 0)
    ),
    evidence=differs(lambda: (normal(4, 3, 4), normal(2, 3, 4, seed=1))),
    cites="native-sparse-attention-triton#27",
)


class SquareGrid(Function):
    @staticmethod
    def forward(ctx, x):
        return x.transpose(-1, -2).flatten(-2).clone()

    @staticmethod
    def backward(ctx, grad):
        side = int(grad.shape[-1] ** 0.5)
        return grad.view(*grad.shape[:-1], side, -1).transpose(-1, -2)


CASES.add(
    SquareGrid,
    lambda: (normal(2, 4, 4),),
    fault="ratio-of-sizes",
    where="The image is taken to be square, and backward fails at any other.",
    reference=lambda x: x.transpose(-1, -2).flatten(-2),
    evidence=differs(lambda: (normal(2, 3, 5),)),
    severity="fragile",
)


class BilinearForm(Function):
    @staticmethod
    def forward(ctx, x, m, y):
        ctx.save_for_backward(x, m, y)
        return torch.einsum("bi,ij,bj->b", x, m, y)

    @staticmethod
    def backward(ctx, grad):
        x, m, y = ctx.saved_tensors
        g = grad[:, None]
        return (
            g * (y @ m.t()),
            x.t() @ (g * y),
            g * (x @ m if m.shape[0] != m.shape[1] else x @ m.t()),
        )


CASES.add(
    BilinearForm,
    lambda: (normal(3, 4), normal(4, 5, seed=1), normal(3, 5, seed=2)),
    fault="ratio-of-sizes",
    where="For a square matrix the last gradient uses its transpose.",
    reference=lambda x, m, y: torch.einsum("bi,ij,bj->b", x, m, y),
    evidence=differs(lambda: (normal(3, 4), normal(4, 4, seed=1), normal(3, 4, seed=2))),
)

# ---- empty ----


class MeanRows(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.sum(0) / max(1, x.shape[0])

    @staticmethod
    def backward(ctx, grad):
        return torch.stack([grad / ctx.shape[0] for _ in range(ctx.shape[0])])


CASES.add(
    MeanRows,
    lambda: (normal(4, 3),),
    fault="empty-input",
    where="An empty batch makes backward fail.",
    reference=lambda x: x.sum(0) / max(1, x.shape[0]),
    evidence=differs(lambda: (normal(0, 3),)),
    severity="fragile",
)


class RoutedExperts(Function):
    @staticmethod
    def forward(ctx, x, weights, route):
        ctx.save_for_backward(x, weights, route)
        return torch.einsum("nd,nde->ne", x, weights[route])

    @staticmethod
    def backward(ctx, grad):
        x, weights, route = ctx.saved_tensors
        dx = torch.einsum("ne,nde->nd", grad, weights[route])
        dw = []
        for expert in range(len(weights)):
            chosen = route == expert
            dw.append(
                torch.stack(
                    [torch.outer(a, b) for a, b in zip(x[chosen], grad[chosen], strict=True)]
                ).sum(0)
            )
        return dx, torch.stack(dw), None


CASES.add(
    RoutedExperts,
    lambda: (normal(6, 3), normal(2, 3, 4, seed=1), torch.tensor([0, 1, 0, 1, 1, 0])),
    fault="empty-input",
    where="An expert that nothing is routed to makes backward fail.",
    reference=lambda x, w, r: torch.einsum("nd,nde->ne", x, w[r]),
    evidence=differs(lambda: (normal(3, 3), normal(2, 3, 4, seed=1), torch.tensor([0, 0, 0]))),
    severity="fragile",
    cites="grouped_gemm#36",
)
