"""Backwards that are not linear in the cotangent: clipped, signed, normalised, shifted."""

# ruff: noqa: D101

import torch
import torch.nn.functional as F
from torch.autograd import Function

from benchmarks.faults.case import Cases, double, integers, normal, positive
from benchmarks.faults.evidence import differs, nonlinear, ones, only, scaled_by

CASES = Cases()


class StableExp(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return (grad * y).clamp(-100, 100)


CASES.add(
    StableExp,
    lambda: (normal(4, 5),),
    fault="clamped-gradient",
    where="The gradient is clipped, so large cotangents are lost.",
    reference=torch.exp,
    evidence=nonlinear(1000.0),
)


class ClampedCotangent(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad.clamp(-10, 10)


CASES.add(
    ClampedCotangent,
    lambda: (double(6),),
    fault="clamped-gradient",
    where="Cotangents beyond ten are clipped.",
    reference=torch.square,
    evidence=nonlinear(),
)


class UnitClamp(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return torch.clamp(grad, -1, 1) * (1 - y * y)


CASES.add(
    UnitClamp,
    lambda: (normal(3, 7),),
    fault="clamped-gradient",
    where="Cotangents beyond one are clipped.",
    reference=torch.tanh,
    evidence=nonlinear(),
    visible=True,
)


class L1Sum(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return (a - b).abs().sum()

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        g = torch.sign(a - b) * torch.sign(grad)
        return g, -g


CASES.add(
    L1Sum,
    lambda: (normal(8), normal(8, seed=1)),
    fault="sign-of-cotangent",
    where="Only the sign of the cotangent is used.",
    reference=lambda a, b: (a - b).abs().sum(),
    evidence=nonlinear(),
    visible=True,
)


class LossIgnoresScale(Function):
    @staticmethod
    def forward(ctx, logits, labels):
        p = torch.softmax(logits, -1)
        ctx.save_for_backward((p - F.one_hot(labels, p.shape[-1])) / len(labels))
        return F.cross_entropy(logits, labels)

    @staticmethod
    def backward(ctx, grad):
        (d,) = ctx.saved_tensors
        return d, None


CASES.add(
    LossIgnoresScale,
    lambda: (normal(5, 3), integers(3, 5)),
    fault="ignores-cotangent",
    where="The cotangent is taken to be one.",
    reference=F.cross_entropy,
    evidence=differs(cotangents=scaled_by(3)),
    visible=True,
    cites="Liger#968",
)


class GradientNorm(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        grad = grad / (grad.norm() + 1e-8) if grad.norm() > 10 else grad
        return grad * w, grad * x


CASES.add(
    GradientNorm,
    lambda: (normal(3, 4), normal(3, 4, seed=1)),
    fault="normalised-cotangent",
    where="Cotangents with a norm above ten are normalised.",
    reference=torch.mul,
    evidence=nonlinear(),
)


class UnitGradient(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return F.normalize(grad, dim=-1)


CASES.add(
    UnitGradient,
    lambda: (double(3, 5),),
    fault="normalised-cotangent",
    where="Every row of the gradient has length one.",
    reference=torch.clone,
    evidence=nonlinear(),
    visible=True,
)


class FirstEntryMean(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.pow(2).mean(-1)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x / x.shape[-1] * grad.reshape(-1)[0]


CASES.add(
    FirstEntryMean,
    lambda: (normal(4, 6),),
    fault="first-entry-only",
    where="The first entry of the cotangent stands for all.",
    reference=lambda x: x.pow(2).mean(-1),
    evidence=differs(),
    visible=True,
    cites="Liger#584",
)


class UniformCotangent(Function):
    @staticmethod
    def forward(ctx, x):
        return x.cumsum(0)

    @staticmethod
    def backward(ctx, grad):
        n = grad.shape[0]
        steps = torch.arange(n, 0, -1, dtype=grad.dtype).view(-1, *[1] * (grad.dim() - 1))
        return steps * grad.mean(0)


CASES.add(
    UniformCotangent,
    lambda: (normal(5, 2),),
    fault="first-entry-only",
    where="The cotangent is taken to be the same in every row.",
    reference=lambda x: x.cumsum(0),
    evidence=differs(),
    visible=True,
)


class NoisyIdentity(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad + 1e-2 * x


CASES.add(
    NoisyIdentity,
    lambda: (double(7),),
    fault="non-additive",
    where="Weight decay is added to the gradient.",
    reference=lambda x: x * 1,
    evidence=nonlinear(),
    visible=True,
)


class EpsilonBackward(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.sigmoid(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y * (1 - y) + 1e-3


CASES.add(
    EpsilonBackward,
    lambda: (normal(4, 3),),
    fault="non-additive",
    where="A constant is added to the gradient.",
    reference=torch.sigmoid,
    evidence=nonlinear(),
    visible=True,
)


class DropSmall(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        grad = torch.where(grad.abs() < 1e-4, torch.zeros_like(grad), grad)
        return grad @ w.t(), x.t() @ grad


CASES.add(
    DropSmall,
    lambda: (normal(3, 4), normal(4, 2, seed=1)),
    fault="thresholded-cotangent",
    where="Small cotangents are dropped.",
    reference=torch.matmul,
    evidence=nonlinear(1e-6),
)


class TopEntries(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sin(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        out = grad * torch.cos(x)
        flat = out.flatten()
        keep = torch.zeros_like(flat)
        index = flat.abs().topk(max(1, flat.numel() // 2)).indices
        keep[index] = flat[index]
        return keep.view_as(out)


CASES.add(
    TopEntries,
    lambda: (double(10),),
    fault="thresholded-cotangent",
    where="Only the larger half of the gradient is kept.",
    reference=torch.sin,
    evidence=differs(),
    visible=True,
)


class QuantisedGradient(Function):
    @staticmethod
    def forward(ctx, x):
        return x.sum(-1)

    @staticmethod
    def backward(ctx, grad):
        return (torch.round(grad * 256) / 256)[:, None].expand(-1, 4).clone()


CASES.add(
    QuantisedGradient,
    lambda: (normal(5, 4),),
    fault="quantised-gradient",
    where="The gradient is rounded to a 256th, so small cotangents vanish.",
    reference=lambda x: x.sum(-1),
    evidence=nonlinear(1e-4),
    visible=True,
)


class SkipIfSmall(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return F.linear(x, w)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        if grad.abs().max() < 1e-3:
            return torch.zeros_like(x), torch.zeros_like(w)
        return grad @ w, grad.t() @ x


CASES.add(
    SkipIfSmall,
    lambda: (normal(2, 4), normal(3, 4, seed=1)),
    fault="thresholded-cotangent",
    where="A step whose cotangents are all small is skipped.",
    reference=F.linear,
    evidence=nonlinear(1e-5),
)


class OnesAssumed(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.pow(3).sum()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x * x * (grad * grad)


CASES.add(
    OnesAssumed,
    lambda: (double(6),),
    fault="ignores-cotangent",
    where="The cotangent is used twice, which is right only for one.",
    reference=lambda x: x.pow(3).sum(),
    evidence=nonlinear(),
    visible=True,
)


class AbsoluteCotangent(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.relu(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad.clamp(min=0) * (x > 0)


CASES.add(
    AbsoluteCotangent,
    lambda: (normal(4, 4),),
    fault="sign-of-cotangent",
    where="Negative cotangents are dropped, as in guided backpropagation.",
    reference=F.relu,
    evidence=differs(),
    visible=True,
)


class NanToZero(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        grad = torch.where(grad.abs() > 1e4, torch.zeros_like(grad), grad)
        return grad * w, grad * x


CASES.add(
    NanToZero,
    lambda: (normal(6), normal(6, seed=1)),
    fault="thresholded-cotangent",
    where="Cotangents above ten thousand, which loss scaling makes, become zero.",
    reference=torch.mul,
    evidence=nonlinear(1e6),
)


class CrossTalk(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, grad_sin, grad_cos):
        (x,) = ctx.saved_tensors
        out = grad_sin * x.cos() - grad_cos * x.sin()
        if not grad_cos.any():
            return grad_sin
        return out


CASES.add(
    CrossTalk,
    lambda: (double(5),),
    fault="non-additive",
    where="With a zero cotangent for the second output the shortcut is wrong.",
    reference=lambda x: (x.sin(), x.cos()),
    evidence=only(0),
)


class PositiveWeights(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x * w).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        g = grad[:, None]
        return g * w, torch.where(g > 0, g * x, 0).sum(0)


CASES.add(
    PositiveWeights,
    lambda: (normal(4, 3), positive(3, seed=1)),
    fault="sign-of-cotangent",
    where="Rows with a negative cotangent do not reach the weight's gradient.",
    reference=lambda x, w: (x * w).sum(-1),
    evidence=differs(cotangents=lambda outputs: [-item for item in ones(outputs)]),
    visible=True,
)
