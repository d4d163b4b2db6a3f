"""Functions whose backward is right, in every style that a Function may be written in.

`SOUND` gives the arguments to call each with.
"""

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import pullback as pb
from examples import combined, hybrid, my_activation, my_complex_op, my_elementwise, my_relu, nested
from tests.diagnose.faulty import COMPLEX, positive, row


class BroadcastSummedByEngine(Function):
    @staticmethod
    def forward(ctx, x, bias):
        return x + bias

    @staticmethod
    def backward(ctx, g):
        return g, g


class WithSetupContext(Function):
    @staticmethod
    def forward(x, y):
        return x.sin() * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * x.cos() * y, g * x.sin()


class NamedVjp(Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def vjp(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


class ThroughNumpy(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.from_numpy(g.numpy() * np.cos(x.detach().numpy()))


class InPlace(Function):
    @staticmethod
    def forward(ctx, x, y):
        x.mul_(3).add_(y.exp())
        ctx.mark_dirty(x)
        ctx.save_for_backward(y)
        return x

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return 3 * g, g * y.exp()


class SortedWithIndices(Function):
    @staticmethod
    def forward(ctx, x):
        values, indices = x.sort(-1)
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(indices)
        return values, indices

    @staticmethod
    def backward(ctx, g, _):
        (indices,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter(-1, indices, g)


class TwoOutputsWithoutZeros(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin(), x * x

    @staticmethod
    def backward(ctx, g_sine, g_square):
        (x,) = ctx.saved_tensors
        parts = [] if g_sine is None else [g_sine * x.cos()]
        parts += [] if g_square is None else [2 * g_square * x]
        return sum(parts)


class Softmax(pb.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True))


class LayerNorm(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        centred = x - x.mean(-1, keepdim=True)
        rstd = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps)
        normed = centred * rstd
        ctx.save_for_backward(normed, rstd, weight)
        return normed * weight + bias

    @staticmethod
    def backward(ctx, g):
        normed, rstd, weight = ctx.saved_tensors
        scaled = g * weight
        mean = scaled.mean(-1, keepdim=True)
        projected = normed * (scaled * normed).mean(-1, keepdim=True)
        return rstd * (scaled - mean - projected), (g * normed).sum(0), g.sum(0), None


class ComplexProduct(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b.conj(), g * a.conj()


class Dropout(Function):
    @staticmethod
    def forward(ctx, x, rate):
        mask = (torch.rand_like(x) > rate) / (1 - rate)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask, None


class SinglePrecisionOnly(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.weight = torch.ones(3, 3)
        return x @ ctx.weight

    @staticmethod
    def backward(ctx, g):
        return g @ ctx.weight.t()


class StableRoot(Function):
    """Zero where the derivative that PyTorch finds is not finite."""

    @staticmethod
    def forward(ctx, x):
        root = torch.sqrt(x)
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx, g):
        (root,) = ctx.saved_tensors
        return torch.where(root > 0, g / (2 * root), 0)


class BranchOnValues(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x if x.sum() > 0 else x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x if x.sum() > 0 else g * x.cos()


class OptionalBias(Function):
    @staticmethod
    def forward(ctx, x, bias, power):
        ctx.save_for_backward(x)
        ctx.power, ctx.has_bias = power, bias is not None
        return x**power + (0 if bias is None else bias)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return ctx.power * x ** (ctx.power - 1) * g, g if ctx.has_bias else None, None


class NeverAsked(Function):
    """Gives None where nobody asks for a gradient."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        needs_x, needs_y = ctx.needs_input_grad
        return g * y if needs_x else None, g * x if needs_y else None


SOUND = {
    my_complex_op.MyComplexOp: (row(5),),
    my_activation.MyActivation: (row(5),),
    my_elementwise.MyElementWise: (row(5), row(5, seed=2)),
    my_relu.MyReLU: (row(5),),
    combined.CombinedFunction: (row(5), row(5, seed=2)),
    hybrid.ComplexFunction: (row(5), row(5, seed=2)),
    nested.SquareFunction: (row(5),),
    BroadcastSummedByEngine: (row(4, 6), row(6)),
    WithSetupContext: (row(5), row(5, seed=2)),
    NamedVjp: (row(5),),
    ThroughNumpy: (row(5),),
    InPlace: (row(5), row(5, seed=2)),
    SortedWithIndices: (row(4, 3),),
    TwoOutputsWithoutZeros: (row(5),),
    Softmax: (row(4, 6),),
    LayerNorm: (row(4, 6), row(6), row(6, seed=2), 1e-5),
    ComplexProduct: COMPLEX,
    Dropout: (row(4, 6), 0.5),
    SinglePrecisionOnly: (row(4, 3).float(),),
    StableRoot: (torch.cat([torch.zeros(1, dtype=torch.float64), positive(4)]),),
    BranchOnValues: (row(5),),
    OptionalBias: (positive(5), None, 3),
    NeverAsked: (row(5).requires_grad_(), row(5, seed=2)),
}
"""The arguments of each Function."""
