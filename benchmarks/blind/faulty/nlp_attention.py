"""Attention, recurrent cells and language-model layers."""
import math
import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class RecomputeAttention(Function):
    """Softmax attention which stores q, k, v and recomputes the probabilities in backward."""

    @staticmethod
    def _probs(q, k, scale, causal):
        s = (q @ k.transpose(-2, -1)) * scale
        if causal:
            t = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1)
            s = s.masked_fill(t, -math.inf)
        return s.softmax(-1)

    @staticmethod
    def forward(ctx, q, k, v, causal=False):
        scale = 1.0 / math.sqrt(q.size(-1))
        p = RecomputeAttention._probs(q, k, scale, causal)
        ctx.save_for_backward(q, k, v)
        ctx.scale, ctx.causal = scale, causal
        return p @ v

    @staticmethod
    def backward(ctx, grad_output):
        q, k, v = ctx.saved_tensors
        p = RecomputeAttention._probs(q, k, ctx.scale, ctx.causal)
        dv = p.transpose(-2, -1) @ grad_output
        dp = grad_output @ v.transpose(-2, -1)
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        dq = ds @ k * ctx.scale
        dk = ds.transpose(-2, -1) @ q
        return dq, dk, dv, None


class RotaryEmbedding(Function):
    """Rotary position embedding on (B, T, D), halves convention (GPT-NeoX)."""

    @staticmethod
    def _rotate(x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

    @staticmethod
    def forward(ctx, x, cos, sin):
        if x.size(-1) % 2:
            raise ValueError("the feature size must be even")
        ctx.save_for_backward(cos, sin)
        return RotaryEmbedding._rotate(x, cos, sin)

    @staticmethod
    def backward(ctx, grad_output):
        cos, sin = ctx.saved_tensors
        return RotaryEmbedding._rotate(grad_output, cos, sin), None, None


class FusedLayerNorm(Function):
    """Layer normalisation over the last dim with affine parameters."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps=1e-5):
        mu = x.mean(-1, keepdim=True)
        rstd = (x.var(-1, unbiased=False, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, weight, mu, rstd)
        return (x - mu) * rstd * weight + bias

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, weight, mu, rstd = ctx.saved_tensors
        n = x.size(1)
        xhat = (x - mu) * rstd
        wg = grad_output * weight
        c1 = (xhat * wg).sum(-1, keepdim=True) / n
        c2 = wg.sum(-1, keepdim=True) / n
        grad_x = (wg - xhat * c1 - c2) * rstd
        lead = tuple(range(x.dim() - 1))
        return grad_x, (grad_output * xhat).sum(lead), grad_output.sum(lead), None


class GRUGates(Function):
    """Element-wise part of a GRU cell: gi, gh are the (B, 3H) projections (r, z, n)."""

    @staticmethod
    def _gates(gi, gh):
        ir, iz, in_ = gi.chunk(3, 1)
        hr, hz, hn = gh.chunk(3, 1)
        r, z = torch.sigmoid(ir + hr), torch.sigmoid(iz + hz)
        return r, z, torch.tanh(in_ + r * hn), hn

    @staticmethod
    def forward(ctx, gi, gh, h):
        r, z, n, _ = GRUGates._gates(gi, gh)
        ctx.save_for_backward(gi, gh, h)
        return (1 - z) * n + z * h

    @staticmethod
    def backward(ctx, grad_output):
        gi, gh, h = ctx.saved_tensors
        r, z, n, hn = GRUGates._gates(gi, gh)
        dn = grad_output * (1 - z) * (1 - n * n)
        dz = grad_output * (h - n) * z * (1 - z)
        dr = dn * hn * r * (1 - r)
        d_gi = torch.cat([dr, dz, dn], 1)
        d_gh = torch.cat([dr, dz, dn], 1)
        return d_gi, d_gh, grad_output * z


class SwiGLUFunction(Function):
    """silu(gate) * up, keeping only the two inputs for backward."""

    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx, grad_output):
        gate, up = ctx.saved_tensors
        sig = torch.sigmoid(gate)
        d_up = grad_output * gate * sig
        d_gate = grad_output * up * sig * (1 + gate * (1 - sig))
        return d_up, d_gate


class ChunkedCrossEntropy(Function):
    """Mean cross entropy of a tied softmax, never holding more than `chunk` rows of logits."""

    @staticmethod
    def forward(ctx, hidden, weight, target, chunk=4):
        total = hidden.new_zeros(())
        for h, t in zip(hidden.split(chunk), target.split(chunk)):
            total = total + F.cross_entropy(h @ weight.t(), t, reduction="sum")
        ctx.save_for_backward(hidden, weight, target)
        ctx.chunk = chunk
        return total / hidden.size(0)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        hidden, weight, target = ctx.saved_tensors
        pieces = list(zip(hidden.split(ctx.chunk), target.split(ctx.chunk)))
        scale = grad_output / len(pieces)
        grad_h, grad_w = [], torch.zeros_like(weight)
        for h, t in pieces:
            p = (h @ weight.t()).softmax(-1)
            p[torch.arange(t.numel()), t] -= 1
            p = p * (scale / t.numel())
            grad_h.append(p @ weight)
            grad_w += p.t() @ h
        return torch.cat(grad_h), grad_w, None, None


class CausalLinearAttention(Function):
    """o_t = q_t sum_{s<=t} k_s v_s^T without normalisation, on (T, D) tensors."""

    @staticmethod
    def forward(ctx, q, k, v):
        state = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(0)
        ctx.save_for_backward(q, k, v)
        return torch.einsum("td,tde->te", q, state)

    @staticmethod
    def backward(ctx, grad_output):
        q, k, v = ctx.saved_tensors
        state = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(0)
        dq = torch.einsum("te,tde->td", grad_output, state)
        outer = (q.unsqueeze(-1) * grad_output.unsqueeze(-2)).cumsum(0)
        dk = torch.einsum("te,tde->td", v, outer)
        dv = torch.einsum("td,tde->te", k, outer)
        return dq, dk, dv


class SparsemaxFunction(Function):
    """Sparsemax (Martins & Astudillo 2016) along `dim`."""

    @staticmethod
    def forward(ctx, x, dim=-1):
        ctx.dim = dim
        z, _ = x.sort(dim=dim, descending=True)
        shape = [1] * x.dim()
        shape[dim] = -1
        rho = torch.arange(1, x.size(dim) + 1, dtype=x.dtype).view(shape)
        cs = z.cumsum(dim) - 1
        k = (rho * z > cs).sum(dim, keepdim=True)
        tau = cs.gather(dim, k - 1) / k.to(x.dtype)
        out = (x - tau).clamp_min(0)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, grad_output):
        out, = ctx.saved_tensors
        support = (out > 0).to(out.dtype)
        g = grad_output * support
        mean = g.sum(-1, keepdim=True) / support.sum(-1, keepdim=True).clamp_min(1)
        return support * (g - mean), None


class SwitchRouter(Function):
    """Top-1 routing: returns the gate value of the chosen expert and the balance loss."""

    @staticmethod
    def forward(ctx, logits):
        ctx.set_materialize_grads(False)
        p = logits.softmax(-1)
        gate, idx = p.max(-1)
        frac = F.one_hot(idx, p.size(-1)).to(p.dtype).mean(0)
        ctx.save_for_backward(p, idx, frac)
        return gate, p.size(-1) * (frac * p.mean(0)).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_gate, grad_balance):
        p, idx, frac = ctx.saved_tensors
        dp = torch.zeros_like(p).scatter_(1, idx.unsqueeze(1), grad_gate.unsqueeze(1))
        dp = dp + grad_balance * p.size(-1) * frac / p.size(0)
        return p * (dp - (dp * p).sum(-1, keepdim=True))


class LSTMPointwise(Function):
    """Point-wise LSTM update from the (B, 4H) pre-activations (i, f, g, o) and the cell."""

    @staticmethod
    def forward(ctx, gates, cell):
        i, f, g, o = gates.chunk(4, 1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        new_cell = f * cell + i * g
        hidden = o * new_cell.tanh()
        ctx.save_for_backward(gates, cell)
        ctx.new_cell = new_cell
        return hidden, new_cell

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_hidden, grad_cell):
        gates, cell = ctx.saved_tensors
        i, f, g, o = gates.chunk(4, 1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        tc = ctx.new_cell.tanh()
        dc = grad_cell + grad_hidden * o * (1 - tc * tc)
        di = dc * g * i * (1 - i)
        df = dc * cell * f * (1 - f)
        dg = dc * i * (1 - g * g)
        do = grad_hidden * tc * o * (1 - o)
        return torch.cat([di, df, dg, do], 1), dc * f


# ------------------------------------------------------------------ tests ---

def _t(seed, *shape, grad=True, dtype=torch.float64, scale=1.0):
    gen = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=gen, dtype=dtype) * scale).requires_grad_(grad)


def _u(seed, *shape, grad=True, dtype=torch.float64, lo=0.1, hi=0.9):
    gen = torch.Generator().manual_seed(seed)
    return (torch.rand(*shape, generator=gen, dtype=dtype) * (hi - lo) + lo).requires_grad_(grad)


def _i(seed, high, *shape):
    gen = torch.Generator().manual_seed(seed)
    return torch.randint(0, high, shape, generator=gen)


def _fn(target):
    return target.apply if isinstance(target, type) else target


def _copy(args):
    return [a.detach().clone().requires_grad_(a.requires_grad) if torch.is_tensor(a) else a for a in args]


def _outs(out):
    return list(out) if isinstance(out, (tuple, list)) else [out]


def _isf(o):
    return torch.is_tensor(o) and (o.is_floating_point() or o.is_complex())


def _cots(outs, seed=7):
    gen = torch.Generator().manual_seed(seed)
    return [torch.randn(o.shape, generator=gen, dtype=o.dtype) for o in outs]


def _grads(target, args, keep=None, cots=None):
    """Reverse-mode gradients; keep = indices of the outputs that get a cotangent."""
    xs = _copy(args)
    torch.manual_seed(11)
    outs = _outs(_fn(target)(*xs))
    if keep is None:
        keep = [k for k, o in enumerate(outs) if _isf(o) and o.requires_grad]
    picked = [outs[k] for k in keep]
    if cots is None:
        cots = _cots(picked)
    wrt = [x for x in xs if torch.is_tensor(x) and x.requires_grad]
    got = torch.autograd.grad(picked, wrt, [c.clone() for c in cots], allow_unused=True)
    return [torch.zeros_like(x) if g is None else g.detach().clone() for g, x in zip(got, wrt)], keep, cots


def _numeric(target, args, keep, cots, eps=1e-6):
    def value(xs):
        torch.manual_seed(11)
        with torch.no_grad():
            outs = _outs(_fn(target)(*_copy(xs)))
        total = 0.0
        for k, c in zip(keep, cots):
            total += (outs[k] * c.conj()).sum().real.item()
        return total
    res = []
    for n, a in enumerate(args):
        if not (torch.is_tensor(a) and a.requires_grad):
            continue
        base = a.detach().clone()
        cplx = base.is_complex()
        real = torch.view_as_real(base).clone() if cplx else base.clone()
        out = torch.zeros(real.numel(), dtype=real.dtype)
        for j in range(real.numel()):
            vals = []
            for sgn in (1, -1):
                p = real.clone().contiguous()
                p.view(-1)[j] += sgn * eps
                xs = list(args)
                xs[n] = (torch.view_as_complex(p) if cplx else p).requires_grad_(True)
                vals.append(value(xs))
            out[j] = (vals[0] - vals[1]) / (2 * eps)
        out = out.view(real.shape)
        res.append(torch.view_as_complex(out) if cplx else out)
    return res


def _agrees(target, args, ref=None, keep=None, cots=None, tol=1e-5):
    got, keep, cots = _grads(target, args, keep, cots)
    want = _grads(ref, args, keep, cots)[0] if ref is not None else _numeric(target, args, keep, cots)
    return all(g.shape == w.shape and torch.allclose(g, w.to(g.dtype), rtol=tol, atol=tol) for g, w in zip(got, want))


def _wrong(target, args, ref=None, **kw):
    return not _agrees(target, args, ref, **kw)


def _second_ok(target, args):
    return torch.autograd.gradgradcheck(_fn(target), tuple(_copy(args)), raise_exception=False)


def _raises(target, args, **kw):
    try:
        _grads(target, args, **kw)
    except Exception:
        return True
    return False


def _ops(call, name):
    """How often the aten operator `name` runs inside call()."""
    from torch.utils._python_dispatch import TorchDispatchMode
    seen = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with Count():
        call()
    return sum(1 for n in seen if n == name)


def _saved_numel(out):
    return [t.numel() for t in out.grad_fn.saved_tensors if t is not None]


def _att_in():
    return (_t(0, 2, 3, 4), _t(1, 2, 3, 4), _t(2, 2, 3, 4), True)


def _rope_in():
    ang = torch.outer(torch.arange(4, dtype=torch.float64), torch.tensor([1.0, 0.1], dtype=torch.float64))
    return (_t(0, 2, 4, 4), ang.cos(), ang.sin())


def _ln_in():
    return (_t(0, 3, 5), _t(1, 5), _t(2, 5))


def _gru_in():
    return (_t(0, 2, 9), _t(1, 2, 9), _t(2, 2, 3))


def _cce_in(n=8):
    return (_t(0, n, 3), _t(1, 6, 3), _i(2, 6, n), 4)


def _lin_in():
    return (_t(0, 5, 3), _t(1, 5, 3), _t(2, 5, 2))


def _ev_leak():
    import gc
    import weakref
    gc.collect()
    gc.disable()
    try:
        h, c = LSTMPointwise.apply(_t(0, 2, 12), _t(1, 2, 3))
        ref = weakref.ref(c)
        del h, c
        alive = ref() is not None
        gc.collect()
    finally:
        gc.enable()
    return alive


CASES = [
    dict(name="recompute_attention", target=RecomputeAttention, inputs=_att_in,
         fault="the gradient of k lacks the 1/sqrt(d) scale",
         kind="wrong", visible=True, evidence=lambda: _wrong(RecomputeAttention, _att_in())),
    dict(name="rotary_embedding", target=RotaryEmbedding, inputs=_rope_in,
         fault="backward rotates by +angle instead of -angle (not the transpose)",
         kind="wrong", visible=True, evidence=lambda: _wrong(RotaryEmbedding, _rope_in())),
    dict(name="fused_layer_norm", target=FusedLayerNorm, inputs=_ln_in,
         fault="the means in backward divide by x.size(1): right for 2-d inputs, wrong for (B, T, D)",
         kind="wrong", visible=False,
         evidence=lambda: _wrong(FusedLayerNorm, (_t(0, 2, 3, 5), _t(1, 5), _t(2, 5)))),
    dict(name="gru_gates", target=GRUGates, inputs=_gru_in,
         fault="the n part of the hidden projection's gradient is not multiplied by the reset gate r",
         kind="wrong", visible=True, evidence=lambda: _wrong(GRUGates, _gru_in())),
    dict(name="swiglu", target=SwiGLUFunction, inputs=lambda: (_t(0, 3, 4), _t(1, 3, 4)),
         fault="the two gradients are returned in swapped order",
         kind="wrong", visible=True, evidence=lambda: _wrong(SwiGLUFunction, (_t(0, 3, 4), _t(1, 3, 4)))),
    dict(name="chunked_cross_entropy", target=ChunkedCrossEntropy, inputs=_cce_in,
         fault="backward takes the mean of the chunk means; wrong when the last chunk is shorter",
         kind="wrong", visible=False, evidence=lambda: _wrong(ChunkedCrossEntropy, _cce_in(6))),
    dict(name="causal_linear_attention", target=CausalLinearAttention, inputs=_lin_in,
         fault="the gradients of k and v need a reverse cumulative sum; a forward one is taken",
         kind="wrong", visible=True, evidence=lambda: _wrong(CausalLinearAttention, _lin_in())),
    dict(name="sparsemax_dim", target=SparsemaxFunction, inputs=lambda: (_t(0, 4, 5),),
         fault="backward reduces over the last dim whatever dim is; wrong for dim=0",
         kind="wrong", visible=False, evidence=lambda: _wrong(SparsemaxFunction, (_t(0, 4, 5), 0))),
    dict(name="switch_router", target=SwitchRouter, inputs=lambda: (_t(0, 5, 4),),
         fault="set_materialize_grads(False) but None cotangents are not handled: backward raises when one output is unused",
         kind="fragile", visible=False, evidence=lambda: _raises(SwitchRouter, (_t(0, 5, 4),), keep=[0])),
    dict(name="lstm_pointwise", target=LSTMPointwise, inputs=lambda: (_t(0, 2, 12), _t(1, 2, 3)),
         fault="the output new_cell is kept as an attribute of ctx: reference cycle, memory freed only by the garbage collector",
         kind="wasteful", visible=False, evidence=_ev_leak),
]
