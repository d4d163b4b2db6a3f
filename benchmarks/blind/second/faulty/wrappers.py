"""NumPy wrappers, mixed precision, in-place operators, jvp and vmap staticmethods."""
import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from support import *


class NumpyInterp(Function):
    """np.interp with gradients for the queries and the table values."""

    @staticmethod
    def forward(ctx, x, xp, fp):
        ctx.save_for_backward(x, xp, fp)
        y = np.interp(x.detach().cpu().numpy(), xp.detach().cpu().numpy(), fp.detach().cpu().numpy())
        return torch.as_tensor(y, dtype=x.dtype, device=x.device)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, xp, fp = ctx.saved_tensors
        i = (torch.searchsorted(xp, x) - 1).clamp(0, xp.numel() - 2)
        width = xp[i + 1] - xp[i]
        inside = ((x >= xp[0]) & (x <= xp[-1])).to(g.dtype)
        t = ((x - xp[i]) / width).clamp(0, 1)
        gx = g * inside * (fp[i + 1] - fp[i]) / width
        gf = torch.zeros_like(fp).index_add_(0, i, g * t).index_add_(0, i + 1, g * (1 - t))
        return gx, None, gf


class NumpyPolyval(Function):
    """np.polyval: coefficients with the highest power first."""

    @staticmethod
    def forward(ctx, coef, x):
        ctx.save_for_backward(coef, x)
        y = np.polyval(coef.detach().cpu().numpy(), x.detach().cpu().numpy())
        return torch.as_tensor(y, dtype=x.dtype, device=x.device)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        coef, x = ctx.saved_tensors
        n = coef.numel()
        powers = torch.stack([x ** k for k in range(n)])
        gc = (powers * g).sum(1)
        d = np.polyder(coef.detach().cpu().numpy())
        gx = g * torch.as_tensor(np.polyval(d, x.detach().cpu().numpy()), dtype=g.dtype, device=g.device)
        return gc, gx


class AddChannelBias(Function):
    """x (N, C, L) plus a bias per channel (C,)."""

    @staticmethod
    def forward(x, bias):
        return x + bias[:, None]

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, bias = inputs
        ctx.channels = bias.numel()

    @staticmethod
    def backward(ctx, g):
        gb = None
        if ctx.needs_input_grad[1]:
            axes = [d for d in range(g.dim()) if g.size(d) != ctx.channels]
            gb = g.sum(axes)
        return g, gb


class GatedProduct(Function):
    """x * sigmoid(w) with forward- and reverse-mode derivatives."""

    @staticmethod
    def forward(x, w):
        return x * torch.sigmoid(w)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        s = torch.sigmoid(w)
        return g * s, g * x * s * (1 - s)

    @staticmethod
    def jvp(ctx, x_t, w_t):
        x, w = ctx.saved_tensors
        s = torch.sigmoid(w)
        return x_t * s + w_t * s * (1 - s)


class NumpySoftClip(Function):
    """tanh(x / c) * c through NumPy, with a batching rule."""

    @staticmethod
    def forward(x, c):
        y = np.tanh(x.detach().cpu().numpy() / c.detach().cpu().numpy()) * c.detach().cpu().numpy()
        return torch.as_tensor(y, dtype=x.dtype, device=x.device)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, c = ctx.saved_tensors
        t = torch.tanh(x / c)
        return g * (1 - t * t), (g * (t - (1 - t * t) * x / c)).sum_to_size(c.shape)

    @staticmethod
    def vmap(info, in_dims, x, c):
        xd, cd = in_dims
        if cd is not None:
            c = c.reshape(c.shape[0], *([1] * (x.dim() - 1)))
        return NumpySoftClip.apply(x, c), 0


class LowRankLinear(Function):
    """x A^T B^T for a factored weight, the small product recomputed in backward."""

    @staticmethod
    def forward(ctx, x, a, b):
        ctx.save_for_backward(x, a, b)
        return (x @ a.t()) @ b.t()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, a, b = ctx.saved_tensors
        gh = g @ b
        gx = gh @ a if ctx.needs_input_grad[0] else None
        ga = gh.t() @ x if ctx.needs_input_grad[1] else None
        gb = g.t() @ (x @ a.t()) if ctx.needs_input_grad[2] else None
        return gx, ga, gb


_WORKSPACE = {}


class NumpyCumulativeEnergy(Function):
    """Running sum of squares along the last axis, computed by NumPy into a workspace."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        key = (tuple(x.shape), x.dtype)
        if key not in _WORKSPACE:
            _WORKSPACE[key] = np.empty(x.shape, dtype=x.detach().cpu().numpy().dtype)
        buf = _WORKSPACE[key]
        np.cumsum(x.detach().cpu().numpy() ** 2, axis=-1, out=buf)
        return torch.from_numpy(buf).to(x.device)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g.flip(-1).cumsum(-1).flip(-1)


class InplaceReLU(Function):
    """ReLU that overwrites its input; the mask is taken from the sign of the result."""

    @staticmethod
    def forward(ctx, x):
        x.clamp_(min=0)
        ctx.save_for_backward(x > 0)
        return x

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask


class FeatureModulation(Function):
    """FiLM-like product of features with a modulation map."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.x = x
        ctx.scale = scale
        return x * (1 + scale)

    @staticmethod
    def backward(ctx, g):
        gx = g * (1 + ctx.scale) if ctx.needs_input_grad[0] else None
        gs = g * ctx.x if ctx.needs_input_grad[1] else None
        return gx, gs


def inplace_relu(x):
    return InplaceReLU.apply(x * 1.0)


def batched_last_axis():
    x, c = rnd(3, 4, seed=8, grad=False), ten(0.8, grad=False)
    vm = lambda d: torch.func.vmap(NumpySoftClip.apply, in_dims=(d, None))(x, c)
    loop = torch.stack([NumpySoftClip.apply(x[:, i], c) for i in range(4)])
    return (torch.allclose(vm(0), NumpySoftClip.apply(x, c)) and ok(NumpySoftClip, (x.requires_grad_(), c))
            and (vm(1).shape != loop.shape or not torch.allclose(vm(1), loop)))


def autocast_raises():
    args = [rnd(3, 4, seed=1, dtype=F32), rnd(2, 4, seed=2, dtype=F32), rnd(5, 2, seed=3, dtype=F32)]

    def run(fn):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = fn(*args)
        torch.autograd.grad(out, args, torch.ones_like(out))

    run(lambda x, a, b: (x @ a.t()) @ b.t())
    return raises(lambda: run(LowRankLinear.apply), RuntimeError)


def first_result_changes():
    first = NumpyCumulativeEnergy.apply(rnd(2, 3, seed=1))
    kept = first.detach().clone()
    NumpyCumulativeEnergy.apply(rnd(2, 3, seed=2))
    return not torch.equal(first.detach(), kept)


def input_used_afterwards():
    res = []
    for fn in (InplaceReLU.apply, torch.relu_):
        x = rnd(5, seed=3)
        h = x * 1.0
        fn(h)
        res.append(torch.autograd.grad((h + 3 * h).sum(), x)[0])
    return not torch.allclose(*res)


def silent_after_change():
    x, s = rnd(4, seed=1), rnd(4, seed=2)
    h = x * 1.0
    out = FeatureModulation.apply(h, s)
    with torch.no_grad():
        h.zero_()
    (gs,) = torch.autograd.grad(out.sum(), s)
    h = x * 1.0
    plain = h * (1 + s)
    with torch.no_grad():
        h.zero_()
    return torch.equal(gs, torch.zeros_like(gs)) and raises(lambda: torch.autograd.grad(plain.sum(), s), RuntimeError)


GRID = lambda: ten([-1.0, -0.2, 0.5, 1.5], grad=False)

CASES = [
    case("wrappers_numpy_interp_table", NumpyInterp, lambda: (uni(6, seed=1, lo=-.9, hi=1.4), GRID(), rnd(4, seed=2)),
         "The two interpolation weights of the table gradient are exchanged."),
    case("wrappers_numpy_polyval_order", NumpyPolyval, lambda: (rnd(4, seed=3), rnd(5, seed=4)),
         "The coefficient gradients come lowest power first although the coefficients are ordered highest first."),
    case("wrappers_channel_bias_equal_sizes", AddChannelBias, lambda: (rnd(2, 3, 4, seed=5), rnd(3, seed=6)),
         "The axes to sum are those whose size differs from the channel count, so a length equal to it is not summed.",
         visible=False, elsewhere=lambda: (rnd(2, 3, 3, seed=5), rnd(3, seed=6)), where="last axis as long as the number of channels"),
    case("wrappers_gated_product_jvp", GatedProduct, lambda: (rnd(4, seed=7), rnd(4, seed=8)),
         "The forward-mode tangent of the gate lacks the factor x.", visible=False,
         evidence=lambda: ok(GatedProduct, (rnd(4, seed=7), rnd(4, seed=8)))
         and jvp_wrong(GatedProduct, (rnd(4, seed=7), rnd(4, seed=8))), where="jvp (forward mode)"),
    case("wrappers_numpy_soft_clip_vmap", NumpySoftClip, lambda: (rnd(3, 4, seed=8), ten(0.8)),
         "The batching rule takes the batch axis of x to be the first whatever in_dims says.", visible=False,
         evidence=batched_last_axis, where="torch.vmap with in_dims other than 0"),
    case("wrappers_low_rank_linear_autocast", LowRankLinear,
         lambda: (rnd(3, 4, seed=9, dtype=F32), rnd(2, 4, seed=10, dtype=F32), rnd(5, 2, seed=11, dtype=F32)),
         "Under autocast the output is bfloat16 while the saved operands stay float32, so the products in backward fail (no custom_fwd/custom_bwd).",
         kind="fragile", visible=False, evidence=autocast_raises),
    case("wrappers_numpy_workspace", NumpyCumulativeEnergy, lambda: (rnd(2, 3, seed=12),),
         "The result shares memory with a global workspace which the next call of the same shape overwrites.",
         kind="fragile", visible=False, evidence=first_result_changes),
    case("wrappers_inplace_relu_dirty", inplace_relu, lambda: (rnd(5, seed=13),),
         "The input is changed in place without mark_dirty, so later uses of that tensor bypass the Function in the graph.",
         kind="fragile", visible=False, evidence=input_used_afterwards),
    case("wrappers_feature_modulation_ctx", FeatureModulation, lambda: (rnd(4, seed=14), rnd(4, seed=15)),
         "The inputs are kept as attributes of ctx and not by save_for_backward, so an in-place change between forward and backward goes unnoticed.",
         kind="fragile", visible=False, evidence=silent_after_change),
]
