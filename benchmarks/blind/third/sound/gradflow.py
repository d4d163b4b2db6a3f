"""Functions that steer gradients: reversal, scaling, routing, in-place."""
import torch
import torch.nn as nn

from support import *


class GradReverse(Function):
    """Identity forward, -lambda times the gradient backward (domain-adversarial training)."""

    @staticmethod
    def forward(ctx, x, lambd=1.0):
        ctx.lambd = lambd
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.neg() * ctx.lambd, None


class GradScale(Function):
    """Identity forward, ``scale`` times the gradient backward."""

    @staticmethod
    def forward(x, scale):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.scale = inputs[1]

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.scale, None


class ScaleByTensor(Function):
    """Multiplies several tensors by one learned scalar."""

    @staticmethod
    def forward(ctx, scale, *tensors):
        ctx.save_for_backward(scale, *tensors)
        ctx.set_materialize_grads(False)
        return tuple(t * scale for t in tensors)

    @staticmethod
    def backward(ctx, *grads):
        scale, *tensors = ctx.saved_tensors
        gs = None
        if ctx.needs_input_grad[0]:
            gs = sum(((g * t).sum() for g, t in zip(grads, tensors) if g is not None),
                     torch.zeros_like(scale))
        gt = tuple(g * scale if g is not None and need else None
                   for g, need in zip(grads, ctx.needs_input_grad[1:]))
        return (gs, *gt)


class ExpandLike(Function):
    """Repeats the rows of (N, D) along a new middle dimension to match ``like`` (N, L, ...); only
    the shape of ``like`` is used."""

    @staticmethod
    def forward(ctx, x, like):
        if x.size(0) != like.size(0):
            raise ValueError("batch sizes differ")
        return x.unsqueeze(1).repeat(1, like.size(1), 1)

    @staticmethod
    def backward(ctx, g):
        return (g.sum(1) if ctx.needs_input_grad[0] else None), None


class BinIndex(Function):
    """Number of the bin of width ``width`` as a float tensor.  Constant between the edges, so the
    gradient is zero; kept in the graph so that callers need no special case."""

    @staticmethod
    def forward(ctx, x, width):
        return torch.floor(x / width)

    @staticmethod
    def backward(ctx, g):
        return torch.zeros_like(g), None


class InplaceScaleShift(Function):
    """x.mul_(a).add_(b) with numbers, in place; returns the same tensor."""

    @staticmethod
    def forward(ctx, x, a, b):
        ctx.a = a
        ctx.mark_dirty(x)
        return x.mul_(a).add_(b)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.a, None, None


class _InplaceReLU(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.clamp_(min=0)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        y, = ctx.saved_tensors
        return grad_output * (y > 0)


def relu(x, inplace=False):
    """ReLU that can overwrite its argument; leaves that need a gradient are never overwritten."""
    if not inplace or (x.is_leaf and x.requires_grad and torch.is_grad_enabled()):
        x = x.clone()
    return _InplaceReLU.apply(x)


class MeanGradients(Function):
    """Gives both tensors back unchanged; the backward sends every tensor the mean of the
    gradients, which keeps tied copies together."""

    @staticmethod
    def forward(ctx, a, b):
        if a.shape != b.shape:
            raise ValueError("tied copies must have one shape")
        return a.clone(), b.clone()

    @staticmethod
    def backward(ctx, ga, gb):
        g = (ga + gb) / 2
        return (g if ctx.needs_input_grad[0] else None, g if ctx.needs_input_grad[1] else None)


CASES = [
    case("grad_reverse", GradReverse, lambda: (randn(3, 4, seed=1), 0.5), "negative on purpose", True),
    case("grad_scale_setup_context", GradScale, lambda: (randn(3, 4, seed=2), 0.1), "scaled on purpose", True),
    case("scale_many_tensors", ScaleByTensor,
         lambda: (torch.tensor(1.7, dtype=torch.float64, requires_grad=True), randn(2, 3, seed=3), randn(4, seed=4),
                  randn(1, 2, 2, seed=5)),
         "any number of inputs and outputs; unused outputs come as None"),
    case("expand_like_shape_only", ExpandLike, lambda: (randn(2, 3, seed=6), randn(2, 4, 5, seed=7)),
         "the second tensor gives its shape only, so None is its right gradient"),
    case("bin_index_zero_gradient", BinIndex, lambda: (randn(4, 3, seed=14), 0.5),
         "piecewise constant: zero is the right gradient, not a surrogate"),
    case("inplace_scale_shift", InplaceScaleShift, lambda: (randn(3, 4, seed=8) * 1.0, 2.0, -0.5),
         "overwrites its input and says so with mark_dirty; the input is not a leaf"),
    case("relu_optional_inplace", relu, lambda: (randn(3, 5, seed=9), True),
         "copies a leaf that requires a gradient before it works in place"),
    case("tied_copies_mean_gradient", MeanGradients, lambda: (randn(2, 4, seed=10), randn(2, 4, seed=11)),
         "gradients are averaged over the copies on purpose", True),
]
