"""Invertible layers, recomputation, in-place layers and domain adaptation."""
import math
import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class AdditiveCouplingRev(Function):
    """RevNet block y1 = x1 + tanh(x2 W^T), y2 = x2 + tanh(y1 U^T); keeps the outputs only."""

    @staticmethod
    def forward(ctx, x1, x2, W, U):
        y1 = x1 + torch.tanh(x2 @ W.t())
        y2 = x2 + torch.tanh(y1 @ U.t())
        ctx.save_for_backward(y1, y2, W, U)
        return y1, y2

    @staticmethod
    @once_differentiable
    def backward(ctx, g1, g2):
        y1, y2, W, U = ctx.saved_tensors
        s = torch.tanh(y1 @ U.t())
        x2 = y2 - s
        dg = g2 * (1 - s * s)
        grad_U = dg.t() @ y1
        t1 = g1 + dg @ U
        t = torch.tanh(x2 @ W.t())
        df = g1 * (1 - t * t)
        grad_W = df.t() @ x2
        return t1, g2 + df @ W, grad_W, grad_U


class ActNormFlow(Function):
    """Glow ActNorm on (N, C, L): y = exp(s) (x + b); returns y and the log determinant."""

    @staticmethod
    def forward(ctx, x, log_scale, bias):
        y = log_scale.exp().view(1, -1, 1) * (x + bias.view(1, -1, 1))
        ctx.save_for_backward(x, log_scale, bias)
        return y, x.size(2) * log_scale.sum()

    @staticmethod
    def backward(ctx, grad_y, grad_logdet):
        x, log_scale, bias = ctx.saved_tensors
        scale = log_scale.exp().view(1, -1, 1)
        gx = grad_y * scale
        grad_scale = (gx * (x + bias.view(1, -1, 1))).sum((0, 2))
        return gx, grad_scale, gx.sum((0, 2))


class SegmentCheckpoint(Function):
    """Runs `segment(x)` without a graph and recomputes it with one in backward."""

    @staticmethod
    def forward(ctx, segment, x):
        ctx.segment = segment
        ctx.save_for_backward(x)
        with torch.no_grad():
            return segment(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            y = ctx.segment(x)
        torch.autograd.backward(y, grad_output)
        return None, x.grad


class GradientReversal(Function):
    """Identity in forward; multiplies the gradient by -lambda (DANN)."""

    @staticmethod
    def forward(ctx, x, lambd=1.0):
        ctx.lambd = float(lambd)
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        return grad_output.neg_().mul_(ctx.lambd), None


class InplaceELU(Function):
    """ELU written over its input; backward needs the output only (InPlace-ABN)."""

    @staticmethod
    def forward(ctx, x, alpha=1.0):
        if alpha <= 0:
            raise ValueError("alpha must be positive to invert the activation")
        neg = x <= 0
        x[neg] = alpha * torch.expm1(x[neg])
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        ctx.alpha = alpha
        return x

    @staticmethod
    def backward(ctx, grad_output):
        y, = ctx.saved_tensors
        return grad_output * torch.where(y > 0, torch.ones_like(y), y + 1.0), None


class Invertible1x1(Function):
    """Glow 1x1 convolution on (N, C, L) with its log determinant L log|det W|."""

    @staticmethod
    def forward(ctx, x, W):
        if W.size(0) != W.size(1):
            raise ValueError("W must be square")
        ctx.save_for_backward(x, W)
        return W @ x, x.size(2) * torch.linalg.slogdet(W)[1]

    @staticmethod
    def backward(ctx, grad_y, grad_logdet):
        x, W = ctx.saved_tensors
        grad_x = W.t() @ grad_y
        grad_w = torch.einsum("nol,ncl->oc", grad_y, x)
        grad_w = grad_w + grad_logdet * torch.linalg.inv(W).t()
        return grad_x, grad_w


class MomentumStep(Function):
    """Momentum residual step v' = m v + (1 - m) f, x' = x + v' with f = tanh(x w)."""

    @staticmethod
    def forward(ctx, x, v, w, momentum=0.9):
        f = torch.tanh(x * w)
        v_new = momentum * v + (1 - momentum) * f
        ctx.x, ctx.w = x, w
        ctx.momentum = momentum
        return x + v_new, v_new

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_x, grad_v):
        f = torch.tanh(ctx.x * ctx.w)
        gv = grad_x + grad_v
        df = gv * (1 - ctx.momentum) * (1 - f * f)
        gw = (df * ctx.x).reshape(-1, ctx.w.numel()).sum(0).view_as(ctx.w)
        return grad_x + df * ctx.w, ctx.momentum * gv, gw, None


class MemoryEfficientSwish(Function):
    """x * sigmoid(beta x) storing only x (EfficientNet)."""

    @staticmethod
    def forward(ctx, x, beta=1.0):
        ctx.save_for_backward(x)
        ctx.beta = beta
        return x * torch.sigmoid(beta * x)

    @staticmethod
    def backward(ctx, grad_output):
        x, = ctx.saved_tensors
        sig = torch.sigmoid(ctx.beta * x)
        return grad_output * sig * (1 + ctx.beta * x * sig), None


class RecomputedMLP(Function):
    """gelu(x W1^T) W2^T which drops the hidden activation and recomputes it in backward."""

    @staticmethod
    def forward(ctx, x, W1, W2):
        ctx.save_for_backward(x, W1, W2)
        return F.gelu(x @ W1.t()) @ W2.t()

    @staticmethod
    def backward(ctx, grad_output):
        x, W1, W2 = ctx.saved_tensors
        pre = x @ W1.t()
        c = math.sqrt(2.0 / math.pi)
        th = torch.tanh(c * (pre + 0.044715 * pre ** 3))
        act = 0.5 * pre * (1 + th)
        dact = 0.5 * (1 + th) + 0.5 * pre * (1 - th * th) * c * (1 + 3 * 0.044715 * pre * pre)
        gh = (grad_output @ W2) * dact
        return gh @ W1, gh.t() @ x, grad_output.t() @ act


class InplaceChannelScale(Function):
    """Scales the channels of (N, C, L) activations in place by a fixed vector."""

    @staticmethod
    def forward(ctx, x, scale):
        if scale.numel() != x.size(1):
            raise ValueError("one scale for each channel")
        ctx.save_for_backward(scale)
        x.mul_(scale.view(1, -1, 1))
        return x

    @staticmethod
    def backward(ctx, grad_output):
        scale, = ctx.saved_tensors
        return grad_output * scale.view(1, -1, 1), None


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


def _rev_in():
    return (_t(0, 2, 3), _t(1, 2, 3), _t(2, 3, 3), _t(3, 3, 3))


def _act_in():
    return (_t(0, 2, 3, 4), _t(1, 3), _t(2, 3))


def _segment(x):
    return torch.sin(x) * x


def _drop_segment(x):
    return F.dropout(torch.sin(x), 0.5, training=True)


def _ckpt(x):
    return SegmentCheckpoint.apply(_segment, x)


def _ev_grl():
    x = _t(0, 4)
    g = torch.ones(4, dtype=torch.float64)
    torch.autograd.grad(GradientReversal.apply(x, 0.5), x, g)
    return not torch.equal(g, torch.ones_like(g))


def _grl_ref(x, lambd=1.0):
    return x.detach() - lambd * (x - x.detach())


def _elu(x, alpha=1.0):
    return InplaceELU.apply(x * 1.0, alpha)


def _inv_in():
    return (_t(0, 2, 3, 4), (_t(1, 3, 3, grad=False) + 2 * torch.eye(3, dtype=torch.float64)).requires_grad_())


def _mom_in():
    return (_t(0, 2, 3), _t(1, 2, 3), _t(2, 3))


def _ev_mom():
    x, v, w = _mom_in()
    y = x * 1.0
    a, _ = MomentumStep.apply(y, v, w)
    with torch.no_grad():
        y.zero_()
    try:
        got, = torch.autograd.grad(a.sum(), w)
    except RuntimeError:
        return False
    want, = torch.autograd.grad((x + 0.9 * v + 0.1 * torch.tanh(x * w)).sum(), w)
    return not torch.allclose(got, want)


def _mlp_in():
    return (_t(0, 3, 4), _t(1, 5, 4), _t(2, 2, 5))


def _scale(x, scale):
    return InplaceChannelScale.apply(x * 1.0, scale)


def _ev_scale():
    x = _t(0, 1, 2, 3)
    s = torch.tensor([2.0, 3.0], dtype=torch.float64)
    y = x * 1.0
    InplaceChannelScale.apply(y, s)
    got, = torch.autograd.grad(y.sum(), x)
    return not torch.allclose(got, s.view(1, -1, 1).expand_as(x))


ORACLES = dict(gradient_reversal=_grl_ref)

CASES = [
    dict(name="additive_coupling_rev", target=AdditiveCouplingRev, inputs=_rev_in,
         fault="the inner function's gradient uses g1 instead of g1 + the part through y2 (t1)",
         kind="wrong", visible=True, evidence=lambda: _wrong(AdditiveCouplingRev, _rev_in())),
    dict(name="actnorm_flow", target=ActNormFlow, inputs=_act_in,
         fault="the cotangent of the log determinant is ignored in the gradient of log_scale",
         kind="wrong", visible=True, evidence=lambda: _wrong(ActNormFlow, _act_in())),
    dict(name="segment_checkpoint", target=_ckpt, inputs=lambda: (_t(0, 3, 4),),
         fault="the random state is not restored before the recomputation: wrong gradient for segments with dropout",
         kind="wrong", visible=False,
         evidence=lambda: _wrong(lambda x: SegmentCheckpoint.apply(_drop_segment, x), (_t(0, 5, 8),))),
    dict(name="gradient_reversal", target=GradientReversal, inputs=lambda: (_t(0, 3, 4), 0.5),
         fault="backward negates the incoming cotangent in place; other users of that tensor see it reversed",
         kind="wrong", visible=False, evidence=_ev_grl),
    dict(name="inplace_elu", target=_elu, inputs=lambda: (_t(0, 3, 4),),
         fault="derivative from the output is y + 1 instead of y + alpha; wrong for alpha != 1",
         kind="wrong", visible=False, evidence=lambda: _wrong(_elu, (_t(0, 3, 4), 0.5))),
    dict(name="invertible_1x1", target=Invertible1x1, inputs=_inv_in,
         fault="the log determinant's gradient lacks the factor L (number of positions)",
         kind="wrong", visible=True, evidence=lambda: _wrong(Invertible1x1, _inv_in())),
    dict(name="momentum_step", target=MomentumStep, inputs=_mom_in,
         fault="tensors are hidden on ctx instead of save_for_backward: a later in-place change of x is not noticed and gives a wrong gradient",
         kind="fragile", visible=False, evidence=_ev_mom),
    dict(name="memory_efficient_swish", target=MemoryEfficientSwish, inputs=lambda: (_t(0, 3, 4),),
         fault="derivative is s(1 + x s) instead of s(1 + x (1 - s))",
         kind="wrong", visible=True, evidence=lambda: _wrong(MemoryEfficientSwish, (_t(0, 3, 4),))),
    dict(name="recomputed_mlp", target=RecomputedMLP, inputs=_mlp_in,
         fault="forward uses the erf GELU, backward recomputes with the tanh approximation (1e-3 errors)",
         kind="wrong", visible=True, evidence=lambda: _wrong(RecomputedMLP, _mlp_in())),
    dict(name="inplace_channel_scale", target=_scale, inputs=lambda: (_t(0, 2, 3, 4), _u(1, 3, grad=False)),
         fault="the input is changed in place without mark_dirty: later uses of x are differentiated as if unscaled",
         kind="wrong", visible=False, evidence=_ev_scale),
]
