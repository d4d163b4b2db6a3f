"""Functions with one known fault each in backward, named by what is wrong.

`EXAMPLES` gives the arguments to call each with.
"""

import math

import torch
from torch.autograd import Function

import pullback as pb


def row(*shape: int, seed: int = 1) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def positive(*shape: int, seed: int = 1) -> torch.Tensor:
    """Numbers above 1/2."""
    return row(*shape, seed=seed).abs() + 0.5


# ---- a constant factor, a sign ----


class SquareWithoutTwo(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x


class CubeWithTwo(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x**2


class PowerTooHigh(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**4

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 4 * x**4 * g


class NormalWithoutRoot(Function):
    @staticmethod
    def forward(ctx, x):
        return x * math.sqrt(2)

    @staticmethod
    def backward(ctx, g):
        return g


class DecayWithoutMinus(Function):
    @staticmethod
    def forward(ctx, x, rate):
        decay = torch.exp(-rate)
        ctx.save_for_backward(x, decay)
        return x * decay

    @staticmethod
    def backward(ctx, g):
        x, decay = ctx.saved_tensors
        return g * decay, g * x * decay


class CosineWithPlus(pb.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.cos(x) + x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (1 + torch.sin(x))


class DifferenceWithMinusTwice(Function):
    @staticmethod
    def forward(ctx, a, b):
        return a - b

    @staticmethod
    def backward(ctx, g):
        return -g, -g


# ---- gradients in the wrong place ----


class ProductSwapped(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * a, g * b


class PowerSwapped(Function):
    @staticmethod
    def forward(ctx, x, scale, shift):
        ctx.save_for_backward(x, scale)
        return scale * x.exp() + shift

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        return g * x.exp(), g * scale * x.exp(), g


class ProductWithNone(pb.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        _, b = ctx.saved_tensors
        return g * b, None


class NamedWithoutOne(pb.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a.sin() * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return {"a": g * a.cos() * b}


# ---- reductions ----


class BiasWithMean(Function):
    @staticmethod
    def forward(ctx, x, bias):
        return x + bias

    @staticmethod
    def backward(ctx, g):
        return g, g.mean(0)


class BiasOverColumns(Function):
    @staticmethod
    def forward(ctx, x, bias):
        return x + bias

    @staticmethod
    def backward(ctx, g):
        return g, g.sum(1)


class MeanWithSum(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.count = x.shape[0]
        return x.mean(0)

    @staticmethod
    def backward(ctx, g):
        return g.expand(ctx.count, *g.shape)


class SoftmaxWithoutSum(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - g * y)


class SoftmaxOverRows(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(0, keepdim=True))


class SoftmaxWithoutKeepdim(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1))


# ---- summands and factors ----


class GeluWithoutDensity(Function):
    @staticmethod
    def forward(ctx, x):
        cdf = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        ctx.save_for_backward(x, cdf)
        return x * cdf

    @staticmethod
    def backward(ctx, g):
        _, cdf = ctx.saved_tensors
        return g * cdf


class GateWithoutSecond(Function):
    @staticmethod
    def forward(ctx, x):
        gate = torch.sigmoid(x)
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    def backward(ctx, g):
        x, gate = ctx.saved_tensors
        return g * x * gate * (1 - gate)


class CentredWithoutMean(Function):
    @staticmethod
    def forward(ctx, x):
        mean = x.mean(-1, keepdim=True)
        return x - mean

    @staticmethod
    def backward(ctx, g):
        return g


class NormedWithoutMean(Function):
    @staticmethod
    def forward(ctx, x, eps):
        centred = x - x.mean(-1, keepdim=True)
        rstd = torch.rsqrt((centred**2).mean(-1, keepdim=True) + eps)
        normed = centred * rstd
        ctx.save_for_backward(normed, rstd)
        return normed

    @staticmethod
    def backward(ctx, g):
        normed, rstd = ctx.saved_tensors
        projected = normed * (g * normed).mean(-1, keepdim=True)
        return rstd * (g - projected), None


class NormedWithConstantScale(Function):
    @staticmethod
    def forward(ctx, x):
        rms = torch.sqrt((x * x).mean(-1, keepdim=True))
        ctx.save_for_backward(rms)
        return x / rms

    @staticmethod
    def backward(ctx, g):
        (rms,) = ctx.saved_tensors
        return g / rms


class NormedWithScaleForValue(Function):
    @staticmethod
    def forward(ctx, x):
        rstd = torch.rsqrt((x * x).mean(-1, keepdim=True))
        normed = x * rstd
        ctx.save_for_backward(normed, rstd)
        return normed

    @staticmethod
    def backward(ctx, g):
        normed, rstd = ctx.saved_tensors
        return rstd * (g - rstd * (g * normed).mean(-1, keepdim=True))


class SquareWithSummandTooMany(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * x + y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * (2 * x + y), g


class LogWithFactorTooMany(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x.log() + scale

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        return g * scale / x, g


class ExpWithoutCotangent(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp() + x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return x.exp() + 1


class PairWithoutSecondCotangent(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), x * x

    @staticmethod
    def backward(ctx, g_sine, g_square):
        (x,) = ctx.saved_tensors
        return g_sine * x.cos()


class ReluWithoutMask(Function):
    @staticmethod
    def forward(ctx, x):
        mask = x > 0
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, g):
        return g


# ---- one value for another ----


class SineWithSavedSine(Function):
    @staticmethod
    def forward(ctx, x):
        s = torch.sin(x)
        ctx.save_for_backward(s)
        return s**2

    @staticmethod
    def backward(ctx, g):
        (s,) = ctx.saved_tensors
        return 2 * s * torch.cos(s) * g


class TanhWithInput(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (1 - x * x)


class QuotientWithNumerator(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a / b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g / a, -g * a / (b * b)


class TwoOutputsCrossed(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x.sin(), y.exp()

    @staticmethod
    def backward(ctx, g_sine, g_exp):
        x, y = ctx.saved_tensors
        return g_exp * x.cos(), g_exp * y.exp()


class SineForCosine(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.sin()


# ---- transposed, reversed, conjugated ----


class LinearTransposed(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w, x.t() @ g


class SquareLinearTransposed(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w, x.t() @ g


class SumNotExpanded(Function):
    @staticmethod
    def forward(ctx, x):
        return x.sum()

    @staticmethod
    def backward(ctx, g):
        return g


class ScaleNotReduced(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale.unsqueeze(1)

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        return g * scale.unsqueeze(1), g * x


class CumsumNotReversed(Function):
    @staticmethod
    def forward(ctx, x):
        return x.cumsum(0)

    @staticmethod
    def backward(ctx, g):
        return g.cumsum(0)


class RollForwards(Function):
    @staticmethod
    def forward(ctx, x):
        return x.roll(1, 0)

    @staticmethod
    def backward(ctx, g):
        return g.roll(1, 0)


class ComplexNotConjugated(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b, g * a.conj()


# ---- here and there ----


class LeakyWithoutSlope(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 0, x, 0.1 * x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, g, g * 0.01)


class EluWithWrongBranch(Function):
    @staticmethod
    def forward(ctx, x):
        is_positive = x > 0
        ctx.save_for_backward(x, is_positive)
        return torch.where(is_positive, x, x.exp() - 1)

    @staticmethod
    def backward(ctx, g):
        x, is_positive = ctx.saved_tensors
        return torch.where(is_positive, g, g * (x.exp() - 1))


class BranchOfPython(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x if x.sum() > 0 else x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x if x.sum() > 0 else g * x.cos()


class OneOfAThousand(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        gradient = g * x.cos()
        gradient[617] = g[617]
        return gradient


class LastRowForgotten(Function):
    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, g):
        gradient = torch.zeros_like(g)
        gradient[:-1] = 3 * g[:-1]
        return gradient


class MeanOfFour(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * x).mean(0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g / 4


class ClampedCotangent(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g.clamp(-1, 1)


class StraightThrough(Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


class SeveralThingsAtOnce(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin() * x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x.cosh() - 3 * x.tan())


class LinearSwapped(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g.t() @ x, g @ w


class HiddenFromAutograd(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.detach().sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.sin()


class ManySteps(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        for _ in range(8):
            x = (0.9 * x).sin() + 0.1 * x
        return x

    @staticmethod
    def backward(ctx, g):
        states = list(ctx.saved_tensors)
        for _ in range(8):
            states.append((0.9 * states[-1]).sin() + 0.1 * states[-1])
        for step in reversed(range(8)):
            slope = 0.2 if step == 5 else 0.1
            g = g * (0.9 * (0.9 * states[step]).cos() + slope)
        return g


class LayerNormWithCotangentOnce(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        mean = x.mean(-1, keepdim=True)
        centred = x - mean
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
        return rstd * (scaled - mean - projected), (scaled * normed).sum(0), g.mean(0), None


class AttentionNotTransposed(Function):
    @staticmethod
    def forward(ctx, q, k, v):
        probs = torch.softmax(q @ k.mT, -1)
        ctx.save_for_backward(q, k, v, probs)
        return probs @ v

    @staticmethod
    def backward(ctx, g):
        q, k, v, probs = ctx.saved_tensors
        g_probs = g @ v.mT
        g_scores = probs * (g_probs - (g_probs * probs).sum(-1, keepdim=True))
        return g_scores @ k, g_scores.mT @ q, probs @ g


COMPLEX = torch.complex(row(5), row(5, seed=2)), torch.complex(row(5, seed=3), row(5, seed=4))
BATCHES = row(2, 4, 3), row(2, 4, 3, seed=2), row(2, 4, 3, seed=3)

EXAMPLES = {
    SquareWithoutTwo: (row(5),),
    CubeWithTwo: (row(5),),
    PowerTooHigh: (row(5),),
    NormalWithoutRoot: (row(5),),
    DecayWithoutMinus: (row(5), row(5, seed=2)),
    CosineWithPlus: (row(5),),
    DifferenceWithMinusTwice: (row(5), row(5, seed=2)),
    ProductSwapped: (row(5), row(5, seed=2)),
    PowerSwapped: (row(5), row(5, seed=2), row(5, seed=3)),
    LinearSwapped: (row(4, 6), row(5, 6)),
    ProductWithNone: (row(5), row(5, seed=2)),
    NamedWithoutOne: (row(5), row(5, seed=2)),
    BiasWithMean: (row(4, 6), row(6)),
    BiasOverColumns: (row(6, 6), row(6)),
    MeanWithSum: (row(4, 6),),
    SoftmaxWithoutSum: (row(4, 6),),
    SoftmaxOverRows: (row(4, 6),),
    SoftmaxWithoutKeepdim: (row(6, 6),),
    GeluWithoutDensity: (row(6),),
    GateWithoutSecond: (row(6),),
    CentredWithoutMean: (row(4, 6),),
    NormedWithoutMean: (row(4, 6), 1e-5),
    NormedWithConstantScale: (row(4, 6),),
    NormedWithScaleForValue: (row(4, 6),),
    LayerNormWithCotangentOnce: (row(4, 6), row(6), row(6, seed=2), 1e-5),
    SquareWithSummandTooMany: (row(5), row(5, seed=2)),
    LogWithFactorTooMany: (positive(5), positive(5, seed=2)),
    ExpWithoutCotangent: (row(5),),
    PairWithoutSecondCotangent: (row(5),),
    ReluWithoutMask: (row(8),),
    SineWithSavedSine: (row(5),),
    TanhWithInput: (row(5),),
    QuotientWithNumerator: (positive(5), positive(5, seed=2)),
    TwoOutputsCrossed: (row(5), row(5, seed=2)),
    SineForCosine: (row(5),),
    LinearTransposed: (row(4, 6), row(5, 6)),
    SquareLinearTransposed: (row(4, 6), row(6, 6)),
    AttentionNotTransposed: BATCHES,
    SumNotExpanded: (row(5),),
    ScaleNotReduced: (row(4, 6), row(4)),
    CumsumNotReversed: (row(5),),
    RollForwards: (row(5),),
    ComplexNotConjugated: COMPLEX,
    LeakyWithoutSlope: (row(8),),
    EluWithWrongBranch: (row(8),),
    BranchOfPython: (positive(5),),
    OneOfAThousand: (row(1000),),
    LastRowForgotten: (row(4, 3),),
    MeanOfFour: (row(4, 3),),
    ClampedCotangent: (row(5),),
    StraightThrough: (row(5),),
    HiddenFromAutograd: (row(5),),
    ManySteps: (row(5),),
    SeveralThingsAtOnce: (row(5),),
}
"""The arguments of each Function."""
