"""Matrix products and what is built on them: linear layers, attention, convolutions, rotations."""

import math

import torch
import torch.nn.functional as F
from torch.autograd import Function

import pullback as pb
from benchmarks.faults.sound.entry import Sound, cases_of, positive, real


class Linear(Function):
    """`x @ weight.T + bias` for any rank of `x`; `bias` may be None or left out."""

    @staticmethod
    def forward(ctx, x, weight, bias=None):
        if weight.dim() != 2:
            raise ValueError(f"weight must be a matrix, got shape {tuple(weight.shape)}")
        ctx.biased = bias is not None
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        grad_output = grad_output.to(weight.dtype)  # forward may have run under autocast
        grad_x = grad_weight = grad_bias = None
        flat = grad_output.reshape(math.prod(grad_output.shape[:-1]), weight.shape[0])
        if ctx.needs_input_grad[0]:
            grad_x = grad_output @ weight
        if ctx.needs_input_grad[1]:
            grad_weight = flat.t() @ x.reshape(flat.shape[0], weight.shape[1])
        if ctx.biased and ctx.needs_input_grad[2]:
            grad_bias = flat.sum(0)
        return grad_x, grad_weight, grad_bias


class MatMul(pb.Function):
    """The product of two matrices."""

    @staticmethod
    def forward(ctx, a, b):
        if a.dim() != 2 or b.dim() != 2:
            raise ValueError(f"takes two matrices, got shapes {a.shape} and {b.shape}")
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        grad_output = grad_output.to(a.dtype)  # forward may have run under autocast
        grad_a = grad_output @ b.t() if ctx.needs_input_grad[0] else None
        grad_b = a.t() @ grad_output if ctx.needs_input_grad[1] else None
        return grad_a, grad_b


class BatchedMatMul(Function):
    """`torch.matmul` over broadcast batches of matrices."""

    @staticmethod
    def forward(ctx, a, b):
        if a.dim() < 2 or b.dim() < 2:
            raise ValueError(f"takes matrices or batches of them, got {a.shape} and {b.shape}")
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        grad_output = grad_output.to(a.dtype)  # forward may have run under autocast
        grad_a = (grad_output @ b.mT).sum_to_size(a.shape) if ctx.needs_input_grad[0] else None
        grad_b = (a.mT @ grad_output).sum_to_size(b.shape) if ctx.needs_input_grad[1] else None
        return grad_a, grad_b


class AddMM(Function):
    """`beta * c + alpha * (a @ b)`."""

    @staticmethod
    def forward(ctx, c, a, b, alpha, beta):
        ctx.alpha, ctx.beta, ctx.shape = alpha, beta, c.shape
        ctx.save_for_backward(a, b)
        return torch.addmm(c, a, b, alpha=alpha, beta=beta)

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        grad_output = grad_output.to(a.dtype)  # forward may have run under autocast
        grad_c = grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_c = (ctx.beta * grad_output).sum_to_size(ctx.shape)
        if ctx.needs_input_grad[1]:
            grad_a = ctx.alpha * (grad_output @ b.t())
        if ctx.needs_input_grad[2]:
            grad_b = ctx.alpha * (a.t() @ grad_output)
        return grad_c, grad_a, grad_b, None, None


class Outer(Function):
    """The outer product of two vectors."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return torch.outer(a, b)

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        grad_a = grad_output @ b if ctx.needs_input_grad[0] else None
        grad_b = grad_output.t() @ a if ctx.needs_input_grad[1] else None
        return grad_a, grad_b


class Bilinear(Function):
    """`a^T M b` for each row."""

    @staticmethod
    def forward(ctx, a, matrix, b):
        if a.dim() != 2 or b.dim() != 2 or matrix.shape != (a.shape[1], b.shape[1]):
            raise ValueError(f"takes (n, p), (p, q), (n, q), got {a.shape}, {matrix.shape}")
        if a.shape[0] != b.shape[0]:
            raise ValueError(f"a and b must have as many rows, got {a.shape}, {b.shape}")
        ctx.save_for_backward(a, matrix, b)
        return torch.einsum("np,pq,nq->n", a, matrix, b)

    @staticmethod
    def backward(ctx, grad_output):
        a, matrix, b = ctx.saved_tensors
        weighted = grad_output.unsqueeze(1)
        grads = [None, None, None]
        if ctx.needs_input_grad[0]:
            grads[0] = weighted * (b @ matrix.t())
        if ctx.needs_input_grad[1]:
            grads[1] = (weighted * a).t() @ b
        if ctx.needs_input_grad[2]:
            grads[2] = weighted * (a @ matrix)
        return tuple(grads)


class Attention(Function):
    """Softmax attention; backward computes the weights again from query and key."""

    @staticmethod
    def forward(ctx, q, k, v, causal):
        if not q.dim() == k.dim() == v.dim() == 4 or q.shape[-1] == 0:
            raise ValueError(f"takes (batch, heads, length, size), got {q.shape}")
        if not q.shape[:2] == k.shape[:2] == v.shape[:2]:
            raise ValueError("q, k and v must have the same batch and heads")
        if k.shape[2] == 0 or k.shape[2] != v.shape[2]:
            raise ValueError("k and v must have one length that is not 0")
        ctx.causal = causal
        ctx.save_for_backward(q, k, v)
        return (Attention.weights(q, k, causal) @ v).to(q.dtype)

    @staticmethod
    def weights(q, k, causal):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(hidden, -torch.inf)
        return torch.softmax(scores, -1)

    @staticmethod
    def backward(ctx, grad_output):
        q, k, v = ctx.saved_tensors
        weights = Attention.weights(q, k, ctx.causal)
        grad_q = grad_k = grad_v = None
        if ctx.needs_input_grad[2]:
            grad_v = weights.mT @ grad_output
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
            pulled = weights * (grad_output @ v.mT)
            scores = (pulled - weights * pulled.sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
            grad_q = scores @ k if ctx.needs_input_grad[0] else None
            grad_k = scores.mT @ q if ctx.needs_input_grad[1] else None
        return grad_q, grad_k, grad_v, None


class LinearAttention(Function):
    """Causal linear attention by running sums: `y_t = q_t . sum_{s<=t} k_s v_s^T`."""

    @staticmethod
    def forward(ctx, q, k, v):
        if not q.dim() == k.dim() == v.dim() == 3 or q.shape != k.shape:
            raise ValueError(f"takes (batch, length, size), got {q.shape} and {k.shape}")
        if q.shape[:2] != v.shape[:2]:
            raise ValueError("q, k and v must have the same batch and length")
        ctx.save_for_backward(q, k, v)
        return torch.einsum("btd,btde->bte", q, LinearAttention.memory(k, v))

    @staticmethod
    def memory(k, v):
        return torch.einsum("btd,bte->btde", k, v).cumsum(1)

    @staticmethod
    def backward(ctx, grad_output):
        q, k, v = ctx.saved_tensors
        grad_output = grad_output.to(q.dtype)  # forward may have run under autocast
        grad_q = grad_k = grad_v = None
        if ctx.needs_input_grad[0]:
            grad_q = torch.einsum("bte,btde->btd", grad_output, LinearAttention.memory(k, v))
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            later = LinearAttention.memory(q.flip(1), grad_output.flip(1)).flip(1)
            grad_k = torch.einsum("btde,bte->btd", later, v) if ctx.needs_input_grad[1] else None
            grad_v = torch.einsum("btde,btd->bte", later, k) if ctx.needs_input_grad[2] else None
        return grad_q, grad_k, grad_v


class Conv2d(Function):
    """2-d convolution with stride and padding, through torch's own gradient functions."""

    @staticmethod
    def forward(ctx, x, weight, stride, padding):
        if x.dim() != 4:
            raise ValueError(f"x must be (batch, channels, height, width), got {tuple(x.shape)}")
        ctx.stride, ctx.padding = stride, padding
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight, stride=stride, padding=padding)

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        grad_output = grad_output.to(weight.dtype)  # forward may have run under autocast
        how = {"stride": ctx.stride, "padding": ctx.padding}
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.nn.grad.conv2d_input(x.shape, weight, grad_output, **how)
        if ctx.needs_input_grad[1]:
            grad_weight = torch.nn.grad.conv2d_weight(x, weight.shape, grad_output, **how)
        return grad_x, grad_weight, None, None


class CausalConv1d(Function):
    """Each channel with its own short filter over the past, zeros before the start."""

    @staticmethod
    def forward(ctx, x, weight):
        if x.dim() != 3 or weight.dim() != 2 or weight.shape[0] != x.shape[1]:
            raise ValueError(f"takes (batch, channels, length), (channels, width), got {x.shape}")
        if weight.shape[1] == 0:
            raise ValueError("the filter must not be empty")
        ctx.save_for_backward(x, weight)
        return CausalConv1d.filtered(x, weight)

    @staticmethod
    def filtered(x, weight):
        width = weight.shape[1]
        windows = F.pad(x, (width - 1, 0)).unfold(-1, width, 1)
        return (windows * weight[:, None]).sum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        width = weight.shape[1]
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = CausalConv1d.filtered(grad_output.flip(-1), weight).flip(-1)
        if ctx.needs_input_grad[1]:
            windows = F.pad(x, (width - 1, 0)).unfold(-1, width, 1)
            grad_weight = (windows * grad_output.unsqueeze(-1)).sum((0, 2))
        return grad_x, grad_weight


class Rotary(Function):
    """Rotary position embedding by halves; backward turns the other way."""

    @staticmethod
    def forward(ctx, x, base):
        if x.dim() < 2 or x.shape[-1] % 2:
            raise ValueError(f"x must be (..., length, even size), got {tuple(x.shape)}")
        ctx.base = base
        return Rotary.turned(x, base, 1.0)

    @staticmethod
    def turned(x, base, direction):
        length, half = x.shape[-2], x.shape[-1] // 2
        steps = torch.arange(half, dtype=torch.float64, device=x.device) / max(half, 1)
        at = torch.arange(length, dtype=torch.float64, device=x.device)
        angle = torch.outer(at, base**-steps)
        cosine, sine = angle.cos().to(x.dtype), (direction * angle.sin()).to(x.dtype)
        left, right = x.chunk(2, -1)
        return torch.cat((left * cosine - right * sine, left * sine + right * cosine), -1)

    @staticmethod
    def backward(ctx, grad_output):
        return Rotary.turned(grad_output, ctx.base, -1.0), None


class LowRank(Function):
    """A linear layer plus a low-rank correction whose middle is computed again."""

    @staticmethod
    def forward(ctx, x, weight, down, up, scale):
        if x.dim() != 2:
            raise ValueError(f"x must be a matrix, got shape {tuple(x.shape)}")
        ctx.scale = scale
        ctx.save_for_backward(x, weight, down, up)
        return x @ weight.t() + scale * (x @ down.t()) @ up.t()

    @staticmethod
    def backward(ctx, grad_output):
        x, weight, down, up = ctx.saved_tensors
        grad_output = grad_output.to(weight.dtype)  # forward may have run under autocast
        need = ctx.needs_input_grad
        inner = ctx.scale * (grad_output @ up) if need[0] or need[2] else None
        return (
            grad_output @ weight + inner @ down if need[0] else None,
            grad_output.t() @ x if need[1] else None,
            inner.t() @ x if need[2] else None,
            ctx.scale * grad_output.t() @ (x @ down.t()) if need[3] else None,
            None,
        )


class ContiguousOnly(Function):
    """A product through flat memory: the layout it demands is made inside, both ways."""

    @staticmethod
    def forward(ctx, x, weight):
        if x.dim() == 0 or weight.shape != x.shape[-1:]:
            raise ValueError(f"weight must have the size of x's rows, got {x.shape}")
        ctx.save_for_backward(x, weight)
        count = weight.numel()
        flat = x.contiguous().view(-1)
        return (flat * weight.repeat(x.numel() // max(count, 1))).view(x.shape)

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        count = weight.numel()
        flat = grad_output.contiguous().view(-1)
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = (flat * weight.repeat(x.numel() // max(count, 1))).view(x.shape)
        if ctx.needs_input_grad[1]:
            product = flat * x.contiguous().view(-1)
            grad_weight = product.view(x.numel() // max(count, 1), count).sum(0)
        return grad_x, grad_weight


def _linear_attention(q, k, v):
    scores = (q @ k.mT).tril()
    return scores @ v


def _causal_conv(x, weight):
    return F.conv1d(F.pad(x, (weight.shape[1] - 1, 0)), weight[:, None], groups=x.shape[1])


def _rotary(x, base):
    half = x.shape[-1] // 2
    steps = torch.arange(half, dtype=torch.float64) / half
    angle = torch.outer(torch.arange(x.shape[-2], dtype=torch.float64), base**-steps)
    a, b = x[..., :half], x[..., half:]
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.cat((a * cosine - b * sine, a * sine + b * cosine), -1)


def _plain_attention(q, k, v, causal):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores = scores + torch.full(scores.shape[-2:], -torch.inf).triu(1).to(scores.dtype)
    return scores.softmax(-1) @ v


SOUND = {
    "linear": Sound(Linear, lambda: (real(2, 3, 4), real(5, 4, seed=1), real(5, seed=2)), F.linear),
    "linear-without-bias": Sound(Linear, lambda: (real(3, 4), real(5, 4, seed=1)), F.linear),
    "matmul": Sound(MatMul, lambda: (real(3, 4), real(4, 5, seed=1)), torch.mm),
    "matmul-batched": Sound(
        BatchedMatMul, lambda: (real(2, 3, 4), real(4, 5, seed=1)), torch.matmul
    ),
    "addmm": Sound(
        AddMM,
        lambda: (real(5), real(3, 4, seed=1), real(4, 5, seed=2), 2.0, 0.5),
        lambda c, a, b, alpha, beta: torch.addmm(c, a, b, alpha=alpha, beta=beta),
    ),
    "outer": Sound(Outer, lambda: (real(3), real(4, seed=1)), torch.outer),
    "bilinear": Sound(
        Bilinear,
        lambda: (real(4, 3), real(3, 5, seed=1), real(4, 5, seed=2)),
        lambda a, m, b: ((a @ m) * b).sum(1),
    ),
    "attention": Sound(
        Attention,
        lambda: (real(2, 2, 3, 4), real(2, 2, 5, 4, seed=1), real(2, 2, 5, 3, seed=2), False),
        _plain_attention,
    ),
    "attention-causal": Sound(
        Attention,
        lambda: (real(1, 2, 4, 3), real(1, 2, 4, 3, seed=1), real(1, 2, 4, 3, seed=2), True),
        _plain_attention,
    ),
    "linear-attention": Sound(
        LinearAttention,
        lambda: (real(2, 5, 3), real(2, 5, 3, seed=1), real(2, 5, 4, seed=2)),
        _linear_attention,
    ),
    "conv2d": Sound(
        Conv2d,
        lambda: (real(2, 3, 6, 7), real(4, 3, 3, 3, seed=1), 2, 1),
        lambda x, w, stride, padding: F.conv2d(x, w, stride=stride, padding=padding),
    ),
    "causal-conv1d": Sound(CausalConv1d, lambda: (real(2, 3, 6), real(3, 4, seed=1)), _causal_conv),
    "rotary": Sound(Rotary, lambda: (real(2, 3, 6), 100.0), _rotary),
    "low-rank": Sound(
        LowRank,
        lambda: (real(3, 4), real(5, 4, seed=1), real(2, 4, seed=2), real(5, 2, seed=3), 0.5),
        lambda x, w, down, up, s: x @ (w + s * up @ down).t(),
    ),
    "contiguous-inside": Sound(ContiguousOnly, lambda: (real(2, 3, 4), positive(4)), torch.mul),
}

CASES = cases_of(SOUND)
