"""Attention, gating and position encodings."""
import math
import torch
from torch.amp import custom_bwd, custom_fwd
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from support import case, rand, uniform, integers, real_floating, same_shape, full_precision


class ChunkedAttention(Function):
    """softmax(q k^T scale) v over key blocks with a running log-sum-exp; scores are recomputed in backward."""

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, q, k, v, scale=None, block=4):
        real_floating("ChunkedAttention", q, k, v)
        if q.shape[-1] != k.shape[-1] or k.shape[:-1] != v.shape[:-1] or q.shape[:-2] != k.shape[:-2] or k.shape[-2] == 0 or block < 1:
            raise ValueError("ChunkedAttention: (*, M, D), (*, N, D), (*, N, E) with N > 0 and block > 0 expected")
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        top = q.new_full(q.shape[:-1], -math.inf)
        total = q.new_zeros(q.shape[:-1])
        acc = q.new_zeros(*q.shape[:-1], v.shape[-1])
        for s in range(0, k.shape[-2], block):
            score = q @ k[..., s:s + block, :].mT * scale
            new = torch.maximum(top, score.amax(-1))
            p = torch.exp(score - new[..., None])
            shrink = torch.exp(top - new)
            total = total * shrink + p.sum(-1)
            acc = acc * shrink[..., None] + p @ v[..., s:s + block, :]
            top = new
        out = acc / total[..., None]
        ctx.save_for_backward(q, k, v, out, top + torch.log(total))
        ctx.scale, ctx.block = scale, block
        return out

    @staticmethod
    @once_differentiable
    @custom_bwd(device_type="cpu")
    def backward(ctx, grad_out):
        q, k, v, out, lse = ctx.saved_tensors
        grad_out = grad_out.to(out.dtype)
        delta = (grad_out * out).sum(-1, keepdim=True)
        gq, gk, gv = torch.zeros_like(q), torch.empty_like(k), torch.empty_like(v)
        for s in range(0, k.shape[-2], ctx.block):
            part = slice(s, s + ctx.block)
            p = torch.exp(q @ k[..., part, :].mT * ctx.scale - lse[..., None])
            gv[..., part, :] = p.mT @ grad_out
            ds = p * (grad_out @ v[..., part, :].mT - delta) * ctx.scale
            gq += ds @ k[..., part, :]
            gk[..., part, :] = ds.mT @ q
        return gq, gk, gv, None, None


class CausalLinearAttention(Function):
    """out_t = phi_q_t . sum_{s<=t} phi_k_s v_s^T; the running state is rebuilt in backward, not stored."""

    @staticmethod
    def forward(ctx, q, k, v):
        real_floating("CausalLinearAttention", q, k, v)
        same_shape("CausalLinearAttention", q, k)
        if v.shape[:-1] != k.shape[:-1] or q.dim() != 3:
            raise ValueError("CausalLinearAttention: (B, T, D), (B, T, D), (B, T, E) expected")
        ctx.save_for_backward(q, k, v)
        state = q.new_zeros(q.shape[0], q.shape[2], v.shape[2])
        out = torch.empty_like(v)
        for t in range(q.shape[1]):
            state = state + k[:, t, :, None] * v[:, t, None, :]
            out[:, t] = (q[:, t, :, None] * state).sum(1)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        q, k, v = ctx.saved_tensors
        gq, gk, gv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        state = q.new_zeros(q.shape[0], q.shape[2], v.shape[2])
        for t in range(q.shape[1]):
            state = state + k[:, t, :, None] * v[:, t, None, :]
            gq[:, t] = (state * grad_out[:, t, None, :]).sum(2)
        back = torch.zeros_like(state)
        for t in reversed(range(q.shape[1])):
            back = back + q[:, t, :, None] * grad_out[:, t, None, :]
            gk[:, t] = (back * v[:, t, None, :]).sum(2)
            gv[:, t] = (back * k[:, t, :, None]).sum(1)
        return gq, gk, gv


class RotaryEmbedding(Function):
    """Rotate the two halves of the last axis by tables cos, sin (T, D/2) made from the same angles."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        real_floating("RotaryEmbedding", x, cos, sin)
        if x.dim() < 2 or x.shape[-1] % 2 or cos.shape != (x.shape[-2], x.shape[-1] // 2) or sin.shape != cos.shape:
            raise ValueError("RotaryEmbedding: x (*, T, D) with even D and tables (T, D/2) expected")
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            raise ValueError("RotaryEmbedding: the tables are constants and must not require grad")
        ctx.save_for_backward(cos, sin)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    @staticmethod
    def backward(ctx, grad_out):
        cos, sin = ctx.saved_tensors
        a, b = grad_out.chunk(2, -1)
        return torch.cat((a * cos + b * sin, b * cos - a * sin), -1), None, None


class MaskedSoftmax(Function):
    """Softmax over `dim` among the kept places; a line with none kept gives zeros, not NaN."""

    @staticmethod
    def forward(scores, keep, dim=-1):
        real_floating("MaskedSoftmax", scores)
        if keep.dtype != torch.bool or torch.broadcast_shapes(keep.shape, scores.shape) != scores.shape:
            raise TypeError("MaskedSoftmax: a boolean mask that broadcasts to the scores expected")
        out = torch.softmax(scores.masked_fill(~keep, -math.inf), dim)
        return out.masked_fill(~keep, 0.0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.dim = inputs[2]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad_out):
        out, = ctx.saved_tensors
        g = grad_out * out
        return g - out * g.sum(ctx.dim, keepdim=True), None, None


class AlibiBias(Function):
    """scores (*, H, M, N) minus slope_h * distance; the distance matrix is built when needed."""

    @staticmethod
    def distance(like, m, n):
        rows = torch.arange(n - m, n, device=like.device)[:, None]
        return (rows - torch.arange(n, device=like.device)).abs().to(like.dtype)

    @staticmethod
    def forward(ctx, scores, slopes):
        real_floating("AlibiBias", scores, slopes)
        if scores.dim() < 3 or slopes.shape != scores.shape[-3:-2]:
            raise ValueError("AlibiBias: scores (*, H, M, N) and slopes (H,) expected")
        ctx.sizes = scores.shape[-2:]
        ctx.heads = slopes.shape
        return scores - slopes[:, None, None] * AlibiBias.distance(slopes, *ctx.sizes)

    @staticmethod
    def backward(ctx, grad_out):
        gs = None
        if ctx.needs_input_grad[1]:
            d = AlibiBias.distance(grad_out, *ctx.sizes)
            gs = -(grad_out * d).sum((-1, -2)).sum_to_size(ctx.heads)
        return grad_out, gs


class Sparsemax(Function):
    """Euclidean projection of each line along `dim` onto the simplex (Martins & Astudillo 2016)."""

    @staticmethod
    def forward(ctx, scores, dim=-1):
        real_floating("Sparsemax", scores)
        if scores.dim() == 0 or scores.shape[dim] == 0:
            raise ValueError("Sparsemax: a non-empty axis expected")
        z = scores.transpose(dim, -1)
        srt = z.sort(dim=-1, descending=True).values
        rank = torch.arange(1, z.shape[-1] + 1, device=z.device)
        cum = srt.cumsum(-1) - 1
        size = (rank * srt > cum).sum(-1, keepdim=True)
        tau = cum.gather(-1, size - 1) / size
        out = (z - tau).clamp_min(0).transpose(dim, -1)
        ctx.save_for_backward(out)
        ctx.dim = dim
        return out

    @staticmethod
    def backward(ctx, grad_out):
        out, = ctx.saved_tensors
        on = (out > 0).to(grad_out.dtype)
        mean = (grad_out * on).sum(ctx.dim, keepdim=True) / on.sum(ctx.dim, keepdim=True)
        return on * (grad_out - mean), None


class TopKGate(Function):
    """Mixture-of-experts gate: softmax over the k largest logits; returns weights and the expert indices."""

    @staticmethod
    def forward(ctx, logits, k):
        real_floating("TopKGate", logits)
        if logits.dim() == 0 or not 1 <= k <= logits.shape[-1]:
            raise ValueError("TopKGate: k must lie between 1 and the number of experts")
        best, index = logits.topk(k, dim=-1)
        weights = torch.softmax(best, -1)
        ctx.mark_non_differentiable(index)
        ctx.save_for_backward(weights, index)
        ctx.experts = logits.shape[-1]
        return weights, index

    @staticmethod
    def backward(ctx, grad_weights, _):
        weights, index = ctx.saved_tensors
        g = grad_weights * weights
        g = g - weights * g.sum(-1, keepdim=True)
        full = g.new_zeros(*g.shape[:-1], ctx.experts)
        return full.scatter(-1, index, g), None


class PagedGather(Function):
    """Rows of a paged cache (P, S, D) for each sequence by its block table (B, L), shared pages allowed."""

    @staticmethod
    def forward(ctx, cache, table):
        real_floating("PagedGather", cache)
        if cache.dim() != 3 or table.dim() != 2 or table.dtype != torch.int64:
            raise TypeError("PagedGather: cache (P, S, D) and an int64 table (B, L) expected")
        ctx.save_for_backward(table)
        ctx.shape = cache.shape
        p, s, d = cache.shape
        return cache.index_select(0, table.reshape(-1)).reshape(table.shape[0], table.shape[1] * s, d)

    @staticmethod
    def backward(ctx, grad_out):
        table, = ctx.saved_tensors
        p, s, d = ctx.shape
        g = grad_out.reshape(table.numel(), s, d)
        return grad_out.new_zeros(p, s, d).index_add(0, table.reshape(-1), g), None


class PackedSoftmax(Function):
    """Softmax within each of the runs of a packed axis 0; `lengths` (ints, zero allowed) sum to its size."""

    @staticmethod
    def forward(ctx, scores, lengths):
        real_floating("PackedSoftmax", scores)
        if scores.dim() == 0 or any(n < 0 for n in lengths) or sum(lengths) != scores.shape[0]:
            raise ValueError("PackedSoftmax: lengths must be >= 0 and sum to the first axis")
        parts = [torch.softmax(p, 0) for p in scores.split(list(lengths))]
        out = torch.cat(parts) if parts else scores.clone()
        ctx.save_for_backward(out)
        ctx.lengths = list(lengths)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        out, = ctx.saved_tensors
        w = grad_out * out
        sums = [p.sum(0, keepdim=True).expand_as(p) for p in w.split(ctx.lengths)]
        return w - out * torch.cat(sums) if sums else w, None


def rotary_tables(t, half):
    ang = torch.arange(t)[:, None] / 10 ** (torch.arange(half) / half)
    return ang.double().cos(), ang.double().sin()


def causal(n):
    return torch.ones(n, n, dtype=torch.bool).tril()


CASES = [
    case("chunked_attention", ChunkedAttention,
         lambda: (rand(2, 3, 4), rand(2, 7, 4, seed=1), rand(2, 7, 5, seed=2)),
         "Flash-style attention; the key length is no multiple of the block.", second="refused",
         more=[lambda: (rand(1, 2), rand(1, 2, seed=1), rand(1, 1, seed=2), 0.5, 1), lambda: (rand(0, 2), rand(3, 2), rand(3, 2, seed=5))]),
    case("causal_linear_attention", CausalLinearAttention,
         lambda: (uniform(2, 4, 3), uniform(2, 4, 3, seed=1), rand(2, 4, 2, seed=2)),
         "Running state from zeros, rebuilt forwards and backwards.", second="refused",
         more=[lambda: (rand(1, 0, 3), rand(1, 0, 3), rand(1, 0, 2)), lambda: (rand(1, 1, 1), rand(1, 1, 1), rand(1, 1, 1))]),
    case("rotary_embedding", RotaryEmbedding, lambda: (rand(2, 3, 4), *rotary_tables(3, 2)),
         "Cosine and sine tables of the same angles; odd sizes and tables that require grad are refused.",
         more=[lambda: (rand(1, 2), *rotary_tables(1, 1))], refuses=[lambda: (rand(3, 3), *rotary_tables(3, 2))]),
    case("masked_softmax", MaskedSoftmax,
         lambda: (rand(2, 3, 3), torch.tensor([[True, False, False], [True, True, False], [False] * 3])),
         "A mask with one line fully masked, which comes out as zeros.",
         more=[lambda: (rand(3, 4), torch.ones(3, 1, dtype=torch.bool), 0), lambda: (rand(2, 0), torch.ones(2, 0, dtype=torch.bool))]),
    case("alibi_bias", AlibiBias, lambda: (rand(2, 3, 2, 4), uniform(3, seed=1)),
         "Linear position bias with learnable slopes; nothing is saved.",
         more=[lambda: (rand(1, 2, 2), uniform(1))]),
    case("sparsemax", Sparsemax, lambda: (rand(3, 5, scale=1.5),), "Projection onto the simplex, zeros off the support.",
         more=[lambda: (rand(4, 3, 2), 0), lambda: (rand(2, 1),), lambda: (rand(0, 3),)]),
    case("topk_gate", TopKGate, lambda: (rand(4, 5), 2), "Two outputs, of which the indices carry no gradient.",
         more=[lambda: (rand(5), 5), lambda: (rand(2, 1), 1)], refuses=[lambda: (rand(2, 3), 4)]),
    case("paged_gather", PagedGather, lambda: (rand(5, 2, 3), torch.tensor([[0, 4], [4, 2], [1, 1]])),
         "The block table names pages more than once, so their gradients add up.",
         more=[lambda: (rand(2, 1, 1), torch.zeros(0, 2, dtype=torch.int64))]),
    case("packed_softmax", PackedSoftmax, lambda: (rand(6, 2), (2, 0, 3, 1)),
         "Lengths must sum to the packed axis, an empty run among them.",
         more=[lambda: (rand(3), [3]), lambda: (rand(0, 2), [0])], refuses=[lambda: (rand(4), (2, 1))]),
]
