"""Second derivatives: wrong, detached, from saved intermediates, or by a wrong formula."""

# ruff: noqa: D101

import numpy as np
import torch
import torch.nn.functional as F
from torch.autograd import Function

from benchmarks.faults.case import Cases, double, normal, positive
from benchmarks.faults.evidence import second_differs

CASES = Cases()


def add(target, inputs, **facts):
    """Add a case whose second derivative is wrong at its own inputs."""
    CASES.add(target, inputs, evidence=second_differs(), **facts)


class SavedIntermediate(Function):
    @staticmethod
    def forward(ctx, x):
        e = x.exp()
        ctx.save_for_backward(e)
        return e / (1 + e)

    @staticmethod
    def backward(ctx, grad):
        (e,) = ctx.saved_tensors
        return grad * e / (1 + e) ** 2


add(
    SavedIntermediate,
    lambda: (double(5),),
    fault="double-backward-of-intermediate",
    where="A saved intermediate is a constant to the second backward.",
    reference=torch.sigmoid,
    cites="pytorch#76185",
)


class RmsIntermediate(Function):
    @staticmethod
    def forward(ctx, x):
        inv = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        ctx.save_for_backward(x, inv)
        return x * inv

    @staticmethod
    def backward(ctx, grad):
        x, inv = ctx.saved_tensors
        n = x * inv
        return inv * (grad - n * (grad * n).mean(-1, keepdim=True))


add(
    RmsIntermediate,
    lambda: (normal(3, 4),),
    fault="double-backward-of-intermediate",
    where="The saved inverse norm has no path back to the input.",
    reference=lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt(),
    cites="pytorch#104040",
)


class MaskIntermediate(Function):
    @staticmethod
    def forward(ctx, x, w):
        scores = torch.softmax(x @ w, -1)
        ctx.save_for_backward(x, w, scores)
        return scores.square().sum(-1)

    @staticmethod
    def backward(ctx, grad):
        x, w, p = ctx.saved_tensors
        g = 2 * p * grad[:, None]
        ds = p * (g - (g * p).sum(-1, keepdim=True))
        return ds @ w.t(), x.t() @ ds


add(
    MaskIntermediate,
    lambda: (double(3, 4), double(4, 5, seed=1)),
    fault="double-backward-of-intermediate",
    where="Attention probabilities are saved, and the second derivative misses them.",
    reference=lambda x, w: torch.softmax(x @ w, -1).square().sum(-1),
    cites="pytorch#58509",
)


class DetachedBackward(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.pow(4)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 4 * x.detach() ** 3


add(
    DetachedBackward,
    lambda: (normal(5),),
    fault="double-backward-detached",
    where="Backward detaches the input: the second derivative is zero.",
    reference=lambda x: x.pow(4),
)


class NoGradBackward(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return F.silu(x) * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        with torch.no_grad():
            s = torch.sigmoid(x)
            slope = s * (1 + x * (1 - s))
        return grad * w * slope, grad * F.silu(x)


add(
    NoGradBackward,
    lambda: (double(4), double(4, seed=1)),
    fault="double-backward-detached",
    where="The slope is computed under no_grad.",
    reference=lambda x, w: F.silu(x) * w,
)


class DataBackward(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad - grad * (y.data * y.data)


add(
    DataBackward,
    lambda: (double(6),),
    fault="double-backward-detached",
    where=".data cuts the path from the output to the input.",
    reference=torch.tanh,
)


class NumpyBackward(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sin(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.from_numpy(np.cos(x.detach().numpy()))


add(
    NumpyBackward,
    lambda: (double(5),),
    fault="double-backward-detached",
    where="The slope comes from numpy, and no once_differentiable says so.",
    reference=torch.sin,
)


class InnerFunction(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y.exp()

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        dx, dy = _InnerFunctionBackward.apply(grad, x, y)
        return dx, dy


class _InnerFunctionBackward(Function):
    @staticmethod
    def forward(ctx, grad, x, y):
        ctx.save_for_backward(grad, x, y)
        e = y.exp()
        return grad * e, grad * x * e

    @staticmethod
    def backward(ctx, ddx, ddy):
        grad, x, y = ctx.saved_tensors
        e = y.exp()
        return ddx * e + ddy * x * e, ddy * grad * e, ddy * grad * x * e


add(
    InnerFunction,
    lambda: (double(4), double(4, seed=1)),
    fault="double-backward-wrong",
    where="The second backward forgets how the first gradient depends on the exponent.",
    reference=lambda x, y: x * y.exp(),
)


class TensorProduct(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b * b

    @staticmethod
    def backward(ctx, grad):
        return _TensorProductBackward.apply(grad, *ctx.saved_tensors)


class _TensorProductBackward(Function):
    @staticmethod
    def forward(ctx, grad, a, b):
        ctx.save_for_backward(grad, a, b)
        return grad * b * b, 2 * grad * a * b

    @staticmethod
    def backward(ctx, *cotangents):
        grad, a, b = ctx.saved_tensors
        needed = [i for i in (0, 1) if ctx.needs_input_grad[i + 1]]
        given = dict(zip(needed, cotangents, strict=False))
        da = given.get(0, torch.zeros_like(a))
        db = given.get(1, torch.zeros_like(b))
        return da * b * b + 2 * db * a * b, 2 * db * grad * b, 2 * grad * (da * b + db * a)


def frozen_first():
    """The first factor needs no gradient."""
    return double(4, grad=False), double(4, seed=1)


CASES.add(
    TensorProduct,
    lambda: (double(4), double(4, seed=1)),
    fault="double-backward-wrong",
    where="With a frozen factor the second backward takes the wrong cotangent.",
    reference=lambda a, b: a * b * b,
    evidence=second_differs(frozen_first),
    cites="cuEquivariance#264",
)


class SquaredDistance(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return (x - y).square().sum(-1)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        d = 2 * grad.detach()[:, None] * (x - y)
        return d, -d


add(
    SquaredDistance,
    lambda: (normal(3, 4), normal(3, 4, seed=1)),
    fault="double-backward-detached",
    where="The cotangent is detached: force training loses its gradient.",
    reference=lambda x, y: (x - y).square().sum(-1),
    cites="torchmd-net#179",
)


class MixedSecond(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.cos()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return _MixedSecondBackward.apply(grad, x)


class _MixedSecondBackward(Function):
    @staticmethod
    def forward(ctx, grad, x):
        ctx.save_for_backward(grad, x)
        return -grad * x.sin()

    @staticmethod
    def backward(ctx, dd):
        grad, x = ctx.saved_tensors
        return -dd * x.sin(), dd * grad * x.cos()


add(
    MixedSecond,
    lambda: (double(6),),
    fault="double-backward-wrong",
    where="The second derivative has the wrong sign.",
    reference=torch.cos,
)


class OutputItself(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.sqrt()
        ctx.y = y.detach()
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad / (2 * ctx.y)


add(
    OutputItself,
    lambda: (positive(5, dtype=torch.float64),),
    fault="double-backward-of-intermediate",
    where="A detached copy of the output on ctx hides the second derivative.",
    reference=torch.sqrt,
)


class InnerGrad(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x.sin() * x).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            out = (leaf.sin() * leaf).sum(-1)
        return torch.autograd.grad(out, leaf, grad)[0]


add(
    InnerGrad,
    lambda: (double(3, 4),),
    fault="double-backward-detached",
    where="Backward differentiates a recomputed forward without create_graph.",
    reference=lambda x: (x.sin() * x).sum(-1),
)
