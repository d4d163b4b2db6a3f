"""Quantisation-aware training and spiking neurons."""
import math
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class LSQPerChannel(Function):
    """Learned step size quantisation, one step for each output channel (dim 0).

    Straight-through in x inside the range; the step gets the LSQ gradient.
    """

    @staticmethod
    def forward(ctx, x, step, qn=-8, qp=7):
        if step.dim() != 1 or step.numel() != x.size(0):
            raise ValueError("one step size for each channel is required")
        s = step.view(-1, *([1] * (x.dim() - 1)))
        ctx.save_for_backward(x, step)
        ctx.range = (qn, qp)
        return (x / s).round().clamp(qn, qp) * s

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, step = ctx.saved_tensors
        qn, qp = ctx.range
        s = step.view(-1, *([1] * (x.dim() - 1)))
        v = x / s
        low, high = v < qn, v > qp
        mid = ~(low | high)
        grad_x = grad_output * mid
        d_step = torch.where(mid, v.round() - v, v.clamp(qn, qp).round())
        grad_step = (grad_output * d_step).sum().expand_as(step).clone()
        return grad_x, grad_step, None, None


class FastSigmoidSpike(Function):
    """Heaviside spike; the surrogate derivative is 1 / (1 + slope |v|)^2 (SuperSpike)."""

    @staticmethod
    def forward(ctx, v, slope=10.0):
        ctx.save_for_backward(v)
        ctx.slope = slope
        return (v > 0).to(v.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        v, = ctx.saved_tensors
        denom = v.abs_().mul_(ctx.slope).add_(1).pow_(2)
        return grad_output / denom, None


class ATanSpike(Function):
    """Spike with the arctan surrogate: alpha / 2 / (1 + (pi / 2 alpha v)^2)."""

    alpha = 2.0

    @staticmethod
    def forward(ctx, v, alpha):
        if alpha <= 0:
            raise ValueError("alpha must be positive")
        ATanSpike.alpha = float(alpha)
        ctx.save_for_backward(v)
        return (v >= 0).to(v.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        v, = ctx.saved_tensors
        a = ATanSpike.alpha
        return grad_output * (a / 2) / (1 + (math.pi / 2 * a * v).pow(2)), None


class BinarizeHardTanh(Function):
    """sign(x) with the hard-tanh straight-through estimator (BinaryNet)."""

    @staticmethod
    def forward(ctx, x):
        mask = x.abs() <= 1
        ctx.save_for_backward(mask)
        x.clamp_(-1.0, 1.0)
        return torch.where(x >= 0, torch.ones_like(x), -torch.ones_like(x))

    @staticmethod
    def backward(ctx, grad_output):
        mask, = ctx.saved_tensors
        return grad_output * mask


class DropConnectLinear(Function):
    """y = x (W * M)^T / (1 - p) with a Bernoulli mask M over the weights."""

    @staticmethod
    def forward(ctx, x, weight, p=0.5):
        if not 0 <= p < 1:
            raise ValueError("p must be in [0, 1)")
        mask = (torch.rand_like(weight) >= p).to(weight.dtype) / (1 - p)
        ctx.save_for_backward(x, weight)
        ctx.p = p
        return x @ (weight * mask).t()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        mask = (torch.rand_like(weight) >= ctx.p).to(weight.dtype) / (1 - ctx.p)
        grad_x = grad_w = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_output @ (weight * mask)
        if ctx.needs_input_grad[1]:
            grad_w = (grad_output.t() @ x) * mask
        return grad_x, grad_w, None


class TanhMaxNormalise(Function):
    """First stage of DoReFa weights: tanh(w) / (2 max|tanh(w)|) + 1/2, in [0, 1]."""

    @staticmethod
    def forward(ctx, w):
        t = torch.tanh(w)
        m = t.abs().max()
        ctx.save_for_backward(w)
        return t / (2 * m) + 0.5

    @staticmethod
    def backward(ctx, grad_output):
        w, = ctx.saved_tensors
        t = torch.tanh(w)
        m = t.abs().max()
        return grad_output * (1 - t * t) / (2 * m)


class PACTClip(Function):
    """Parameterised clipping activation: clamp(x, 0, alpha), alpha a learned scalar."""

    @staticmethod
    def forward(ctx, x, alpha):
        ctx.save_for_backward(x, alpha)
        return torch.minimum(x.clamp_min(0), alpha)

    @staticmethod
    def backward(ctx, grad_output):
        x, alpha = ctx.saved_tensors
        inside = (x > 0) & (x < alpha)
        grad_x = grad_output * inside
        grad_alpha = (x >= alpha).to(x.dtype).sum().reshape(alpha.shape)
        return grad_x, grad_alpha


class LIFStep(Function):
    """One leaky integrate-and-fire step with soft reset; returns (spike, new voltage)."""

    @staticmethod
    def forward(ctx, current, voltage, decay=0.9, threshold=1.0, width=0.5):
        v = decay * voltage + current
        spike = (v >= threshold).to(v.dtype)
        ctx.save_for_backward(current, voltage)
        ctx.params = (decay, threshold, width)
        return spike, v - threshold * spike

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_spike, grad_voltage):
        current, voltage = ctx.saved_tensors
        decay, threshold, width = ctx.params
        v = decay * voltage + current
        surrogate = ((v - threshold).abs() < width).to(v.dtype) / (2 * width)
        grad_v = grad_spike * surrogate
        return grad_v, decay * grad_v, None, None, None


class UnitNormWeight(Function):
    """w / ||w|| along a row, computed in the dtype of w."""

    @staticmethod
    def forward(ctx, w, eps=1e-6):
        norm = w.norm(dim=1, keepdim=True).clamp_min(eps)
        ctx.save_for_backward(w)
        ctx.eps = eps
        return w / norm

    @staticmethod
    def backward(ctx, grad_output):
        w, = ctx.saved_tensors
        norm = w.pow(2).sum(dim=1, keepdim=True).clamp_min(ctx.eps ** 2).sqrt()
        proj = (grad_output * w).sum(dim=1, keepdim=True)
        return grad_output / norm - w * proj / norm.pow(3), None


class GroupwiseScaleQuant(Function):
    """Group-wise symmetric fake quantisation with one scale for each group of columns."""

    @staticmethod
    def _expand(scale, group, cols):
        return scale.repeat_interleave(group, dim=1)[:, :cols]

    @staticmethod
    def _scale_grad(g, v, qmax, group):
        q = v.round().clamp(-qmax, qmax)
        d = torch.where(v.abs() <= qmax, q - v, q)
        return (g * d).view(g.size(0), -1, group).sum(-1)

    @staticmethod
    def forward(ctx, w, scale, bits=4, group=4):
        if w.size(1) % group:
            raise ValueError("columns must be divisible by group")
        qmax = 2 ** (bits - 1) - 1
        s = GroupwiseScaleQuant._expand(scale, group, w.size(1))
        ctx.save_for_backward(w, scale)
        ctx.qmax, ctx.group = qmax, group
        return (w / s).round().clamp(-qmax, qmax) * s

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        w, scale = ctx.saved_tensors
        s = GroupwiseScaleQuant._expand(scale, ctx.group, w.size(1))
        v = w / s
        grad_w = grad_output * (v.abs() <= ctx.qmax)
        grad_s = GroupwiseScaleQuant._scale_grad(grad_output, v, ctx.qmax, ctx.group)
        return grad_w, grad_s, None, None


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


def _ste(hard, soft):
    return hard.detach() + soft - soft.detach()


def _lsq_ref(x, step, qn=-8, qp=7):
    s = step.view(-1, *([1] * (x.dim() - 1)))
    c = (x / s).clamp(qn, qp)
    return _ste(c.round(), c) * s


def _lsq_in():
    return (_t(0, 3, 5), _u(1, 3, lo=0.1, hi=0.3))


def _fast_ref(v, slope=10.0):
    return _ste((v > 0).to(v.dtype), v / (1 + slope * v.abs()))


def _ev_fast():
    v = _t(0, 5)
    before = v.detach().clone()
    torch.autograd.grad(FastSigmoidSpike.apply(v, 10.0).sum(), v)
    return not torch.equal(before, v.detach())


def _atan_ref(v, alpha):
    return _ste((v >= 0).to(v.dtype), torch.atan(math.pi / 2 * alpha * v) / math.pi)


def _ev_atan():
    v = _t(0, 5)
    a = ATanSpike.apply(v, 2.0)
    ATanSpike.apply(v, 8.0)
    got, = torch.autograd.grad(a.sum(), v)
    want, = torch.autograd.grad(_atan_ref(v, 2.0).sum(), v)
    return not torch.allclose(got, want)


def _bin_ref(x):
    c = x.clamp(-1, 1)
    return _ste(torch.where(x >= 0, 1.0, -1.0).to(x.dtype), c)


def _ev_bin():
    w = (_t(0, 20, grad=False) * 2)
    before = w.clone()
    BinarizeHardTanh.apply(w)
    return not torch.equal(before, w)


def _drop_in():
    return (_t(0, 4, 6), _t(1, 3, 6), 0.5)


def _pact_in():
    return (_t(0, 12), torch.tensor(0.6, dtype=torch.float64, requires_grad=True))


def _lif_ref(current, voltage, decay=0.9, threshold=1.0, width=0.5):
    v = decay * voltage + current
    soft = (v - threshold).clamp(-width, width) / (2 * width)
    hard = (v >= threshold).to(v.dtype)
    spike = _ste(hard, soft)
    return spike, v - threshold * spike


def _lif_in():
    return (_u(0, 3, 5, lo=0, hi=1), _u(1, 3, 5, lo=0, hi=1))


def _ev_unit():
    w = _t(0, 2, 64, scale=12.0)
    h = w.detach().half().requires_grad_()
    g = _t(1, 2, 64, grad=False)
    a, = torch.autograd.grad(UnitNormWeight.apply(h), h, g.half())
    b, = torch.autograd.grad(UnitNormWeight.apply(w), w, g)
    return bool((a.double() - b).abs().max() > 0.05 * b.abs().max()) or not bool(torch.isfinite(a).all())


def _group_ref(w, scale, bits=4, group=4):
    qmax = 2 ** (bits - 1) - 1
    s = scale.repeat_interleave(group, dim=1)
    c = (w / s).clamp(-qmax, qmax)
    return _ste(c.round(), c) * s


def _ev_group():
    def count(frozen):
        out = GroupwiseScaleQuant.apply(_t(0, 3, 8), _u(1, 3, 2, grad=not frozen))
        return _ops(lambda: out.sum().backward(), "round")
    return count(True) == count(False) > 0


ORACLES = dict(lsq_per_channel=_lsq_ref, fast_sigmoid_spike=_fast_ref, atan_spike=_atan_ref,
               binarize_hardtanh=_bin_ref, lif_step=_lif_ref, groupwise_scale_quant=_group_ref)

CASES = [
    dict(name="lsq_per_channel", target=LSQPerChannel, inputs=_lsq_in,
         fault="the step gradient is summed over all channels and given to each of them",
         kind="wrong", visible=True, evidence=lambda: _wrong(LSQPerChannel, _lsq_in(), _lsq_ref)),
    dict(name="fast_sigmoid_spike", target=FastSigmoidSpike, inputs=lambda: (_t(0, 4, 5), 10.0),
         fault="backward computes the surrogate in place on the saved tensor: the caller's membrane voltage is overwritten, a second backward is wrong",
         kind="wrong", visible=False, evidence=_ev_fast),
    dict(name="atan_spike", target=ATanSpike, inputs=lambda: (_t(0, 4, 5), 2.0),
         fault="alpha is kept on the class: a second call with another alpha before backward changes the first's gradient",
         kind="wrong", visible=False, evidence=_ev_atan),
    dict(name="binarize_hardtanh", target=BinarizeHardTanh, inputs=lambda: (_t(0, 4, 5, scale=1.5),),
         fault="forward clamps its input in place without mark_dirty: the caller's latent weights are changed",
         kind="wrong", visible=False, evidence=_ev_bin),
    dict(name="dropconnect_linear", target=DropConnectLinear, inputs=_drop_in,
         fault="backward draws a new random mask instead of using that of forward",
         kind="wrong", visible=True, evidence=lambda: _wrong(DropConnectLinear, _drop_in())),
    dict(name="tanh_max_normalise", target=TanhMaxNormalise, inputs=lambda: (_t(0, 4, 5),),
         fault="the maximum is treated as a constant: its gradient into the largest weight is missing",
         kind="wrong", visible=True, evidence=lambda: _wrong(TanhMaxNormalise, (_t(0, 4, 5),))),
    dict(name="pact_clip", target=PACTClip, inputs=_pact_in,
         fault="gradient of alpha counts the clipped elements and forgets to weight them by grad_output",
         kind="wrong", visible=True, evidence=lambda: _wrong(PACTClip, _pact_in())),
    dict(name="lif_step", target=LIFStep, inputs=_lif_in,
         fault="the cotangent of the second output (membrane voltage) is ignored",
         kind="wrong", visible=True, evidence=lambda: _wrong(LIFStep, _lif_in(), _lif_ref)),
    dict(name="unit_norm_weight", target=UnitNormWeight, inputs=lambda: (_t(0, 3, 6),),
         fault="norm**3 (and the sum of squares) overflow in float16 in backward although forward is finite: gradient wrong for half rows of norm above 40",
         kind="wrong", visible=False, evidence=_ev_unit),
    dict(name="groupwise_scale_quant", target=GroupwiseScaleQuant,
         inputs=lambda: (_t(0, 3, 8), _u(1, 3, 2, lo=0.1, hi=0.4)),
         fault="the scale gradient is computed although the scale is frozen (needs_input_grad is never asked)",
         kind="wasteful", visible=False, evidence=_ev_group),
]
