"""torch.library.custom_op with register_autograd."""
from typing import Optional
import numpy as np
import torch
from torch import Tensor
from support import case, rand, uniform, integers, real_floating, same_shape, in_range


@torch.library.custom_op("blind2::scaled_softsign", mutates_args=())
def scaled_softsign(x: Tensor, scale: float = 1.0) -> Tensor:
    """x / (scale + |x|), scale > 0."""
    real_floating("scaled_softsign", x)
    if not scale > 0:
        raise ValueError("scaled_softsign: scale must be positive")
    return x / (scale + x.abs())


@scaled_softsign.register_fake
def _(x, scale=1.0):
    return torch.empty_like(x)


def _softsign_setup(ctx, inputs, output):
    x, ctx.scale = inputs
    ctx.save_for_backward(x)


def _softsign_backward(ctx, grad):
    x, = ctx.saved_tensors
    return grad * ctx.scale / (ctx.scale + x.abs()).square(), None


scaled_softsign.register_autograd(_softsign_backward, setup_context=_softsign_setup)


@scaled_softsign.register_vmap
def _(info, in_dims, x, scale=1.0):
    return scaled_softsign(x, scale), in_dims[0]


@torch.library.custom_op("blind2::gather_add", mutates_args=())
def gather_add(base: Tensor, source: Tensor, index: Tensor) -> Tensor:
    """base + source[index] by rows; rows may be named several times."""
    real_floating("gather_add", base, source)
    in_range("gather_add", index, source.shape[0])
    if index.dim() != 1 or base.shape != (index.shape[0], *source.shape[1:]):
        raise ValueError("gather_add: one row of base per index expected")
    return base + source[index]


@gather_add.register_fake
def _(base, source, index):
    return torch.empty_like(base)


def _gather_add_setup(ctx, inputs, output):
    _, source, index = inputs
    ctx.save_for_backward(index)
    ctx.rows = source.shape[0]


def _gather_add_backward(ctx, grad):
    index, = ctx.saved_tensors
    gs = None
    if ctx.needs_input_grad[1]:
        gs = grad.new_zeros(ctx.rows, *grad.shape[1:]).index_add(0, index, grad)
    return grad if ctx.needs_input_grad[0] else None, gs, None


gather_add.register_autograd(_gather_add_backward, setup_context=_gather_add_setup)


@torch.library.custom_op("blind2::pairwise_sqdist", mutates_args=())
def pairwise_sqdist(a: Tensor, b: Tensor) -> Tensor:
    """Squared distances (N, M) of the rows of a (N, D) and b (M, D)."""
    real_floating("pairwise_sqdist", a, b)
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[1]:
        raise ValueError("pairwise_sqdist: (N, D) and (M, D) expected")
    return (a[:, None] - b).square().sum(-1)


@pairwise_sqdist.register_fake
def _(a, b):
    return a.new_empty(a.shape[0], b.shape[0])


def _sqdist_setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _sqdist_backward(ctx, grad):
    a, b = ctx.saved_tensors
    d = 2 * grad[..., None] * (a[:, None] - b)
    return d.sum(1) if ctx.needs_input_grad[0] else None, -d.sum(0) if ctx.needs_input_grad[1] else None


pairwise_sqdist.register_autograd(_sqdist_backward, setup_context=_sqdist_setup)


@torch.library.custom_op("blind2::mean_and_var", mutates_args=())
def mean_and_var(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over a non-empty last axis."""
    real_floating("mean_and_var", x)
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError("mean_and_var: a non-empty last axis expected")
    return x.mean(-1), x.var(-1, unbiased=False)


@mean_and_var.register_fake
def _(x):
    return x.new_empty(x.shape[:-1]), x.new_empty(x.shape[:-1])


def _mean_var_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], output[0])


def _mean_var_backward(ctx, grad_mean, grad_var):
    x, mean = ctx.saved_tensors
    return (grad_mean[..., None] + 2 * grad_var[..., None] * (x - mean[..., None])) / x.shape[-1]


mean_and_var.register_autograd(_mean_var_backward, setup_context=_mean_var_setup)


@torch.library.custom_op("blind2::weighted_sse", mutates_args=())
def weighted_sse(pred: Tensor, target: Tensor, weight: Optional[Tensor] = None) -> Tensor:
    """Sum of weight (pred - target)^2 over everything; the weight is optional and of the same shape."""
    real_floating("weighted_sse", pred, target, weight)
    same_shape("weighted_sse", pred, target)
    sq = (pred - target).square()
    if weight is not None:
        same_shape("weighted_sse", pred, weight)
        sq = sq * weight
    return sq.sum()


@weighted_sse.register_fake
def _(pred, target, weight=None):
    return pred.new_empty(())


def _sse_setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _sse_backward(ctx, grad):
    pred, target, weight = ctx.saved_tensors
    d = pred - target
    g = 2 * grad * d if weight is None else 2 * grad * d * weight
    gw = grad * d.square() if weight is not None and ctx.needs_input_grad[2] else None
    return g if ctx.needs_input_grad[0] else None, -g if ctx.needs_input_grad[1] else None, gw


weighted_sse.register_autograd(_sse_backward, setup_context=_sse_setup)


@torch.library.custom_op("blind2::ema_scan", mutates_args=())
def ema_scan(x: Tensor, decay: float, reverse: bool = False) -> Tensor:
    """y_t = decay y_{t-1} + (1 - decay) x_t along axis 0 from zeros; backward is the scan the other way round."""
    real_floating("ema_scan", x)
    if x.dim() == 0 or not 0 <= decay < 1:
        raise ValueError("ema_scan: a time axis and a decay in [0, 1) expected")
    out, y = torch.empty_like(x), x.new_zeros(x.shape[1:])
    steps = range(x.shape[0])
    for t in reversed(steps) if reverse else steps:
        out[t] = y = decay * y + (1 - decay) * x[t]
    return out


@ema_scan.register_fake
def _(x, decay, reverse=False):
    return torch.empty_like(x)


def _ema_setup(ctx, inputs, output):
    _, ctx.decay, ctx.reverse = inputs


def _ema_backward(ctx, grad):
    return ema_scan(grad, ctx.decay, not ctx.reverse), None, None


ema_scan.register_autograd(_ema_backward, setup_context=_ema_setup)


@torch.library.custom_op("blind2::numpy_sinc", mutates_args=(), device_types="cpu")
def numpy_sinc(x: Tensor) -> Tensor:
    """sin(pi x) / (pi x) by NumPy, in float32 or float64."""
    if x.dtype not in (torch.float32, torch.float64):
        raise TypeError("numpy_sinc: float32 or float64 expected")
    return torch.tensor(np.ascontiguousarray(np.sinc(x.detach().numpy())), dtype=x.dtype).reshape(x.shape)


@numpy_sinc.register_fake
def _(x):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _sinc_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])


def _sinc_backward(ctx, grad):
    x, = ctx.saved_tensors
    z = torch.pi * x
    small = z.abs() < 1e-1
    safe = torch.where(small, torch.ones_like(z), z)
    exact = (safe.cos() - safe.sin() / safe) / safe
    q = z.square()
    series = -z / 3 * (1 - q / 10 * (1 - q / 28 * (1 - q / 54)))
    return grad * torch.pi * torch.where(small, series, exact)


numpy_sinc.register_autograd(_sinc_backward, setup_context=_sinc_setup)


@torch.library.custom_op("blind2::round_through", mutates_args=())
def round_through(x: Tensor) -> Tensor:
    """Rounding with the identity as gradient."""
    real_floating("round_through", x)
    return torch.round(x)


@round_through.register_fake
def _(x):
    return torch.empty_like(x)


def _round_backward(ctx, grad):
    return grad


round_through.register_autograd(_round_backward)


@torch.library.custom_op("blind2::segment_total", mutates_args=())
def segment_total(x: Tensor, segment: Tensor, count: int) -> Tensor:
    """Sum of the rows of x by segment number; numbers without a row give zeros."""
    real_floating("segment_total", x)
    in_range("segment_total", segment, count)
    if x.dim() == 0 or segment.shape != x.shape[:1]:
        raise ValueError("segment_total: one segment number per row expected")
    return x.new_zeros(count, *x.shape[1:]).index_add(0, segment, x)


@segment_total.register_fake
def _(x, segment, count):
    return x.new_empty(count, *x.shape[1:])


def _segment_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[1])


def _segment_backward(ctx, grad):
    segment, = ctx.saved_tensors
    return grad.index_select(0, segment), None, None


segment_total.register_autograd(_segment_backward, setup_context=_segment_setup)


def near_zero():
    x = rand(4, 2, grad=False)
    x[0] = torch.tensor([0.0, 1e-3])
    return x.requires_grad_()


CASES = [
    case("op_scaled_softsign", scaled_softsign, lambda: (rand(3, 4, shift=0.1), 0.5), "Elementwise op with a vmap rule.", vmap=True, more=[lambda: (rand(0, 2),), lambda: (rand(shift=1),)], refuses=[lambda: (rand(2), 0.0)]),
    case("op_gather_add", gather_add, lambda: (rand(4, 2), rand(3, 2, seed=1), torch.tensor([2, 0, 2, 1])), "Rows named twice add up.", more=[lambda: (rand(0, 2), rand(3, 2), torch.zeros(0, dtype=torch.int64))],
         refuses=[lambda: (rand(1, 2), rand(3, 2), torch.tensor([-1]))]),
    case("op_pairwise_sqdist", pairwise_sqdist, lambda: (rand(3, 2), rand(4, 2, seed=1)), "Distances without a matrix product.", more=[lambda: (rand(0, 2), rand(2, 2)), lambda: (rand(1, 1), rand(1, 1, seed=1))]),
    case("op_mean_and_var", mean_and_var, lambda: (rand(3, 4),), "Two outputs, one of which is kept for backward.", more=[lambda: (rand(1),), lambda: (rand(0, 3),)]),
    case("op_weighted_sse", weighted_sse, lambda: (rand(3, 2), rand(3, 2, seed=1), uniform(3, 2, seed=2)), "Optional weight.", more=[lambda: (rand(3), rand(3, seed=1)), lambda: (rand(0), rand(0), rand(0))]),
    case("op_ema_scan", ema_scan, lambda: (rand(700, 3), 0.9), "A long scan; backward calls the op itself, so higher orders work.", more=[lambda: (rand(5, 2), 0.7), lambda: (rand(3), 0.5, True), lambda: (rand(0, 2), 0.1)]),
    case("op_numpy_sinc", numpy_sinc, lambda: (near_zero(),), "NumPy op whose derivative takes a series near zero.", more=[lambda: (rand(),), lambda: (rand(0, 2),)]),
    case("op_round_through", round_through, lambda: (rand(3, 4, scale=3),), "Straight-through rounding as a custom op, not declared.", ref=lambda x: x * 1),
    case("op_segment_total", segment_total, lambda: (rand(5, 2), torch.tensor([0, 3, 0, 1, 3]), 4), "Segment sums with an unused number.", more=[lambda: (rand(2), torch.tensor([0, 0]), 1), lambda: (rand(0, 2), torch.zeros(0, dtype=torch.int64), 2)]),
]
