"""Custom operators, sorting, setup_context style functions and small layers."""
import math
import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable


@torch.library.custom_op("blindmisc::rms_norm", mutates_args=())
def rms_norm_op(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


@rms_norm_op.register_fake
def _(x, weight, eps):
    return torch.empty_like(x)


def _rms_setup(ctx, inputs, output):
    x, weight, eps = inputs
    ctx.save_for_backward(x, weight)
    ctx.eps = eps


def _rms_backward(ctx, grad):
    x, weight = ctx.saved_tensors
    rstd = (x.square().mean(-1, keepdim=True) + ctx.eps).rsqrt()
    wg = grad * weight
    dot = (wg * x).sum(-1, keepdim=True)
    grad_x = rstd * wg - x * rstd.pow(3) * dot
    grad_w = (grad * x * rstd).reshape(-1, weight.numel()).sum(0)
    return grad_x, grad_w, None


rms_norm_op.register_autograd(_rms_backward, setup_context=_rms_setup)


def rms_norm(x, weight, eps=1e-6):
    """Root-mean-square norm over the last dim (custom operator)."""
    if weight.shape != x.shape[-1:]:
        raise ValueError("weight must match the last dim")
    return rms_norm_op(x, weight, eps)


@torch.library.custom_op("blindmisc::pair_max", mutates_args=())
def pair_max_op(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.maximum(a, b)


@pair_max_op.register_fake
def _(a, b):
    return torch.empty_like(a)


def _pair_max_setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _pair_max_backward(ctx, grad):
    a, b = ctx.saved_tensors
    return grad * (a >= b), grad * (b >= a)


pair_max_op.register_autograd(_pair_max_backward, setup_context=_pair_max_setup)


def maxout2(a, b):
    """Maxout over two linear pieces of one shape; the gradient goes to the winner."""
    if a.shape != b.shape:
        raise ValueError("both pieces must have the same shape")
    return pair_max_op(a, b)


class SortRows(Function):
    """Sorted rows and the permutation, with a gradient for the values."""

    @staticmethod
    def forward(ctx, x, descending=False):
        values, idx = x.sort(dim=-1, descending=descending)
        ctx.save_for_backward(idx)
        ctx.mark_non_differentiable(idx)
        return values, idx

    @staticmethod
    def backward(ctx, grad_values, _grad_idx):
        idx, = ctx.saved_tensors
        return grad_values.gather(-1, idx), None


class LogCumSumExp(Function):
    """Running logsumexp along the last dim."""

    @staticmethod
    def forward(ctx, x):
        out = torch.logcumsumexp(x, dim=-1)
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, out = ctx.saved_tensors
        shift = out[..., -1:]
        weighted = grad_output * (shift - out).exp()
        return (x - shift).exp() * weighted.cumsum(-1)


class CosineSimilarityFn(Function):
    """Row-wise cosine similarity (setup_context style)."""

    @staticmethod
    def forward(a, b, eps=1e-8):
        na = a.norm(dim=-1).clamp_min(eps)
        nb = b.norm(dim=-1).clamp_min(eps)
        return (a * b).sum(-1) / (na * nb)

    @staticmethod
    def setup_context(ctx, inputs, output):
        a, b, eps = inputs
        ctx.save_for_backward(a, b)
        ctx.eps = eps

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        na = (a * a).sum(-1, keepdim=True).clamp_min(ctx.eps ** 2).sqrt()
        nb = (b * b).sum(-1, keepdim=True).clamp_min(ctx.eps ** 2).sqrt()
        ua, ub = a / na, b / nb
        cos = (ua * ub).sum(-1, keepdim=True)
        g = grad_output.unsqueeze(-1)
        return g * (ub - cos * ua) / na, g * (ua - cos * ub) / na, None


class PairwiseSqDist(Function):
    """Squared distances between the rows of x (..., N, D) and y (..., M, D)."""

    @staticmethod
    def forward(x, y):
        return (x.unsqueeze(-2) - y.unsqueeze(-3)).square().sum(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        gx = 2 * (x * grad_output.sum(-1, keepdim=True) - grad_output @ y)
        gt = grad_output.transpose(-2, -1)
        gy = 2 * (y * gt.sum(-1, keepdim=True) - gt @ x)
        return gx, gy

    @staticmethod
    def vmap(info, in_dims, x, y):
        x_dim, y_dim = in_dims
        if x_dim is None:
            x = x.expand(info.batch_size, *x.shape)
        if y_dim is None:
            y = y.expand(info.batch_size, *y.shape)
        return PairwiseSqDist.apply(x, y), 0


class SoftClip(Function):
    """Smooth saturation limit * tanh(x / limit) with forward and reverse derivatives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, limit):
        return limit * torch.tanh(x / limit)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, limit = inputs
        ctx.save_for_backward(x, limit)
        ctx.save_for_forward(x, limit)

    @staticmethod
    def backward(ctx, grad_output):
        x, limit = ctx.saved_tensors
        t = torch.tanh(x / limit)
        d = 1 - t * t
        grad_limit = (grad_output * (t - d * x / limit)).sum_to_size(limit.shape)
        return grad_output * d, grad_limit

    @staticmethod
    def jvp(ctx, x_t, limit_t):
        x, limit = ctx.saved_tensors
        t = torch.tanh(x / limit)
        d = 1 - t * t
        out = torch.zeros_like(t)
        if x_t is not None:
            out = out + d * x_t
        if limit_t is not None:
            out = out + t * limit_t
        return out


class ZigzagScan(Function):
    """JPEG zigzag order of 4 x 4 blocks: (B, 4, 4) -> (B, 16)."""

    ORDER = (0, 1, 4, 8, 5, 2, 3, 6, 9, 12, 13, 10, 7, 11, 14, 15)

    @staticmethod
    def forward(ctx, blocks):
        if blocks.shape[-2:] != (4, 4):
            raise ValueError("blocks must be 4 x 4")
        ctx.shape = blocks.shape
        return blocks.reshape(-1, 16)[:, list(ZigzagScan.ORDER)]

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        rows = grad_output.numel() // 16
        raw = grad_output.as_strided((rows, 16), (16, 1))
        grad = torch.empty(rows, 16, dtype=raw.dtype)
        grad[:, list(ZigzagScan.ORDER)] = raw
        return grad.view(ctx.shape)


class MixedLinear(Function):
    """x W^T with hand-written gradients, used inside torch.autocast training loops."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        grad_x = grad_w = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_output @ weight
        if ctx.needs_input_grad[1]:
            grad_w = grad_output.flatten(0, -2).t() @ x.flatten(0, -2)
        return grad_x, grad_w


class ScaledLinear(Function):
    """Equalised-learning-rate linear layer: gain * x W^T (+ bias)."""

    @staticmethod
    def forward(ctx, x, weight, bias=None, gain=1.0):
        ctx.save_for_backward(x, weight)
        ctx.gain = gain
        out = gain * (x @ weight.t())
        return out if bias is None else out + bias

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        grad_x = ctx.gain * (grad_output @ weight)
        grad_w = ctx.gain * (grad_output.t() @ x)
        grad_b = grad_output.sum(0)
        return grad_x, grad_w, grad_b, None


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


def _rms_in():
    return (_t(0, 3, 5), _t(1, 5))


def _ev_ties():
    a = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    b = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    ga, gb = torch.autograd.grad(maxout2(a, b).sum(), (a, b))
    return bool((ga + gb > 1.5).any())


def _cos_in():
    return (_t(0, 4, 3), _t(1, 4, 3), 1e-8)


def _ev_vmap():
    x, y = _t(0, 3, 3, 2, grad=False), _t(1, 4, 2, grad=False)
    got = torch.func.vmap(PairwiseSqDist.apply, in_dims=(1, None))(x, y)
    want = torch.stack([PairwiseSqDist.apply(x[:, k], y) for k in range(3)])
    return not (got.shape == want.shape and torch.allclose(got, want))


def _clip_in():
    return (_t(0, 3, 4), torch.tensor(1.5, dtype=torch.float64, requires_grad=True))


def _ev_jvp():
    x, limit = (a.detach() for a in _clip_in())
    tan = (torch.zeros_like(x), torch.ones_like(limit))
    _, got = torch.func.jvp(SoftClip.apply, (x, limit), tan)
    e = 1e-6
    want = (SoftClip.apply(x, limit + e) - SoftClip.apply(x, limit - e)) / (2 * e)
    return not torch.allclose(got, want, atol=1e-6)


def _ev_zigzag():
    x = _t(0, 3, 4, 4)
    g = _t(1, 16, 3, grad=False).t()
    a, = torch.autograd.grad(ZigzagScan.apply(x), x, g)
    b, = torch.autograd.grad(ZigzagScan.apply(x), x, g.contiguous())
    return not torch.allclose(a, b)


def _ev_autocast():
    x, w = _t(0, 3, 4, dtype=torch.float32), _t(1, 2, 4, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = MixedLinear.apply(x, w)
    try:
        out.float().sum().backward()
    except RuntimeError:
        return True
    return False


CASES = [
    dict(name="rms_norm_custom_op", target=rms_norm, inputs=_rms_in,
         fault="the correction term uses the sum instead of the mean (factor D)",
         kind="wrong", visible=True, evidence=lambda: _wrong(rms_norm, _rms_in())),
    dict(name="maxout2_custom_op", target=maxout2, inputs=lambda: (_t(0, 3, 4), _t(1, 3, 4)),
         fault="at ties both inputs get the full cotangent (>= twice), so the gradient is counted double",
         kind="wrong", visible=False, evidence=_ev_ties),
    dict(name="sort_rows", target=SortRows, inputs=lambda: (_t(0, 3, 6),),
         fault="gather with the permutation instead of scatter: the inverse permutation is applied",
         kind="wrong", visible=True, evidence=lambda: _wrong(SortRows, (_t(0, 3, 6),))),
    dict(name="log_cumsum_exp", target=LogCumSumExp, inputs=lambda: (_t(0, 3, 6),),
         fault="backward accumulates from the left; it must be a reverse cumulative sum",
         kind="wrong", visible=True, evidence=lambda: _wrong(LogCumSumExp, (_t(0, 3, 6),))),
    dict(name="cosine_similarity_fn", target=CosineSimilarityFn, inputs=_cos_in,
         fault="the gradient of b is divided by the norm of a",
         kind="wrong", visible=True, evidence=lambda: _wrong(CosineSimilarityFn, _cos_in())),
    dict(name="pairwise_sqdist_vmap", target=PairwiseSqDist, inputs=lambda: (_t(0, 3, 2), _t(1, 4, 2)),
         fault="the vmap rule assumes the batch dim is 0: wrong for in_dims=1",
         kind="wrong", visible=False, evidence=_ev_vmap),
    dict(name="soft_clip_jvp", target=SoftClip, inputs=_clip_in,
         fault="jvp leaves out the -d x / limit part for the limit's tangent; reverse mode is right",
         kind="wrong", visible=False, evidence=_ev_jvp),
    dict(name="zigzag_scan", target=ZigzagScan, inputs=lambda: (_t(0, 3, 4, 4),),
         fault="backward reads the cotangent's memory as if contiguous (as_strided): wrong for transposed cotangents",
         kind="wrong", visible=False, evidence=_ev_zigzag),
    dict(name="mixed_linear_autocast", target=MixedLinear, inputs=lambda: (_t(0, 3, 4), _t(1, 2, 4)),
         fault="no custom_fwd/custom_bwd: under autocast the cotangent is bfloat16 and the saved tensors float32, backward raises",
         kind="fragile", visible=False, evidence=_ev_autocast),
    dict(name="scaled_linear_optional_bias", target=ScaledLinear,
         inputs=lambda: (_t(0, 3, 4), _t(1, 2, 4), _t(2, 2), 0.5),
         fault="a gradient is returned for bias also when bias is None: backward raises",
         kind="fragile", visible=False, evidence=lambda: _raises(ScaledLinear, (_t(0, 3, 4), _t(1, 2, 4), None, 0.5))),
]
