"""Gradients that are wrong only for some values: zero, ties, negative, large, small, edges."""

# ruff: noqa: D101, RUF059

import torch
import torch.nn.functional as F
from torch.autograd import Function

from benchmarks.faults.case import Cases, double, integers, normal, positive
from benchmarks.faults.evidence import differs

CASES = Cases()

# ---- ties ----


class RowMax(Function):
    @staticmethod
    def forward(ctx, x):
        out = x.max(-1).values
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, out = ctx.saved_tensors
        return (x == out[:, None]) * grad[:, None]


CASES.add(
    RowMax,
    lambda: (normal(4, 6),),
    fault="wrong-at-ties",
    where="At a tie every maximal entry gets the full gradient.",
    reference=lambda x: x.amax(-1),
    evidence=differs(lambda: (torch.tensor([[1.0, 2.0, 2.0], [3.0, 3.0, 3.0]]).requires_grad_(),)),
)


class MaxPool(Function):
    @staticmethod
    def forward(ctx, x):
        windows = x.unfold(-1, 2, 2)
        out = windows.max(-1).values
        ctx.save_for_backward(windows, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        windows, out = ctx.saved_tensors
        return ((windows == out[..., None]) * grad[..., None]).flatten(-2)


CASES.add(
    MaxPool,
    lambda: (double(2, 8),),
    fault="wrong-at-ties",
    where="A window of equal entries sends its gradient to both.",
    reference=lambda x: F.max_pool1d(x[:, None], 2)[:, 0],
    evidence=differs(lambda: (torch.zeros(2, 8, dtype=torch.float64).requires_grad_(),)),
)


class Minimum(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return torch.minimum(a, b)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad * (a < b), grad * (b < a)


CASES.add(
    Minimum,
    lambda: (normal(7), normal(7, seed=1)),
    fault="wrong-at-ties",
    where="Where both inputs are equal neither gets a gradient.",
    reference=torch.minimum,
    evidence=differs(lambda: (normal(7), normal(7))),
)


class MedianPick(Function):
    @staticmethod
    def forward(ctx, x):
        out = x.sort(-1).values[..., x.shape[-1] // 2]
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, out = ctx.saved_tensors
        return grad[..., None] * (x == out[..., None])


CASES.add(
    MedianPick,
    lambda: (normal(3, 5),),
    fault="wrong-at-ties",
    where="Entries equal to the median are all given its gradient.",
    reference=lambda x: x.sort(-1).values[..., x.shape[-1] // 2],
    evidence=differs(lambda: (torch.tensor([[1.0, 2.0, 2.0, 2.0, 5.0]]).requires_grad_(),)),
)

# ---- zero ----


class Norm(Function):
    @staticmethod
    def forward(ctx, x):
        out = x.norm(dim=-1)
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, out = ctx.saved_tensors
        return grad[:, None] * x / out[:, None]


CASES.add(
    Norm,
    lambda: (normal(4, 3),),
    fault="wrong-at-zero",
    where="A row of zeros gets NaN.",
    reference=lambda x: x.norm(dim=-1),
    evidence=differs(lambda: (torch.zeros(2, 3).requires_grad_(),)),
)


class ProductOfRow(Function):
    @staticmethod
    def forward(ctx, x):
        out = x.prod(-1)
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, out = ctx.saved_tensors
        return (grad * out)[:, None] / x


CASES.add(
    ProductOfRow,
    lambda: (positive(3, 4),),
    fault="wrong-at-zero",
    where="A row with a zero gets NaN or infinity.",
    reference=lambda x: x.prod(-1),
    evidence=differs(lambda: (torch.tensor([[1.0, 0.0, 2.0], [3.0, 0.0, 0.0]]).requires_grad_(),)),
)


class XLogX(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return torch.special.xlogy(x, y)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * y.log(), grad * x / y


CASES.add(
    XLogX,
    lambda: (positive(6), positive(6, seed=1)),
    fault="wrong-at-zero",
    where="Where both inputs are zero the gradients are -inf and NaN.",
    reference=torch.special.xlogy,
    evidence=differs(lambda: (torch.zeros(3).requires_grad_(), torch.zeros(3).requires_grad_())),
)


class SincPi(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sinc(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        z = torch.pi * x
        return grad * torch.pi * (z * torch.cos(z) - torch.sin(z)) / (z * z)


CASES.add(
    SincPi,
    lambda: (double(9),),
    fault="wrong-at-zero",
    where="At zero the quotient is 0/0.",
    reference=torch.sinc,
    evidence=differs(lambda: (torch.zeros(3, dtype=torch.float64).requires_grad_(),)),
)


class SafeSqrt(Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.where(x > 0, x, torch.zeros_like(x)).sqrt()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, grad):
        (out,) = ctx.saved_tensors
        return grad / (2 * out)


CASES.add(
    SafeSqrt,
    lambda: (positive(8),),
    fault="wrong-when-negative",
    where="Where the input is clipped the gradient is infinite instead of zero.",
    reference=lambda x: torch.where(x > 0, x, 1.0).sqrt() * (x > 0),
    evidence=differs(lambda: (torch.tensor([-1.0, -0.5, 2.0]).requires_grad_(),)),
)


class SumOfPowers(Function):
    @staticmethod
    def forward(ctx, x, exponent):
        ctx.save_for_backward(x)
        ctx.exponent = exponent
        return x.abs() ** exponent

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.exponent * x.abs() ** (ctx.exponent - 1), None


CASES.add(
    SumOfPowers,
    lambda: (positive(6), 3.0),
    fault="wrong-when-negative",
    where="The sign of the input is missing in the gradient.",
    reference=lambda x, p: x.abs() ** p,
    evidence=differs(lambda: (normal(6), 3.0)),
)

# ---- negative ----


class LogAbs(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs().log()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad / x.abs()


CASES.add(
    LogAbs,
    lambda: (positive(5, 3),),
    fault="wrong-when-negative",
    where="For negative input the gradient has the wrong sign.",
    reference=lambda x: x.abs().log(),
    evidence=differs(lambda: (normal(5, 3),)),
)


class LeakyRelu(Function):
    @staticmethod
    def forward(ctx, x, slope):
        y = torch.where(x > 0, x, slope * x)
        ctx.save_for_backward(y)
        ctx.slope = slope
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return torch.where(y > 0, grad, grad * ctx.slope), None


CASES.add(
    LeakyRelu,
    lambda: (normal(4, 5), 0.1),
    fault="wrong-when-negative",
    where="With a negative slope the sign of the output no longer tells the branch.",
    reference=lambda x, s: torch.where(x > 0, x, s * x),
    evidence=differs(lambda: (normal(4, 5), -0.5)),
)


class Remainder(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return torch.remainder(a, b)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad, -grad * torch.trunc(a / b)


CASES.add(
    Remainder,
    lambda: (positive(8), positive(8, seed=1)),
    fault="wrong-when-negative",
    where="The quotient is truncated where the remainder is floored.",
    reference=torch.remainder,
    evidence=differs(lambda: (-positive(8).detach().requires_grad_(), positive(8, seed=1))),
)

# ---- large ----


class Softplus(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 20, x, torch.log1p(torch.exp(x.clamp(max=20))))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        e = torch.exp(x)
        return grad * e / (1 + e)


CASES.add(
    Softplus,
    lambda: (normal(4, 4),),
    fault="overflow",
    where="Above 88 in float32 the gradient is NaN.",
    reference=F.softplus,
    evidence=differs(lambda: (torch.tensor([100.0, 1.0]).requires_grad_(),)),
)


class LogCosh(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs() + F.softplus(-2 * x.abs()) - 0.6931471805599453

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        a, b = torch.exp(x), torch.exp(-x)
        return grad * (a - b) / (a + b)


CASES.add(
    LogCosh,
    lambda: (double(7),),
    fault="overflow",
    where="For large input the ratio of exponentials is inf/inf.",
    reference=lambda x: x.abs() + F.softplus(-2 * x.abs()) - 0.6931471805599453,
    evidence=differs(lambda: (torch.tensor([800.0, -3.0], dtype=torch.float64).requires_grad_(),)),
)


class SafeSoftmaxLoss(Function):
    @staticmethod
    def forward(ctx, logits, labels):
        ctx.save_for_backward(logits, labels)
        return F.cross_entropy(logits, labels)

    @staticmethod
    def backward(ctx, grad):
        logits, labels = ctx.saved_tensors
        e = torch.exp(logits)
        p = e / e.sum(-1, keepdim=True)
        return grad * (p - F.one_hot(labels, p.shape[-1])) / len(labels), None


CASES.add(
    SafeSoftmaxLoss,
    lambda: (normal(5, 4), integers(4, 5)),
    fault="overflow",
    where="The softmax of backward does not subtract the maximum.",
    reference=F.cross_entropy,
    evidence=differs(lambda: ((200 * normal(5, 4).detach()).requires_grad_(), integers(4, 5))),
)


class Hypot(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return torch.hypot(a, b)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        d = torch.sqrt(a * a + b * b)
        return grad * a / d, grad * b / d


CASES.add(
    Hypot,
    lambda: (normal(6), normal(6, seed=1)),
    fault="overflow",
    where="The squares overflow where the hypotenuse does not.",
    reference=torch.hypot,
    evidence=differs(
        lambda: (torch.full((2,), 3e25).requires_grad_(), torch.full((2,), 4e25).requires_grad_())
    ),
)


class GaussianTail(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.special.log_ndtr(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        density = torch.exp(-0.5 * x * x) / 2.5066282746310002
        return grad * density / torch.special.ndtr(x)


CASES.add(
    GaussianTail,
    lambda: (double(6),),
    fault="underflow",
    where="Far in the left tail the gradient is 0/0.",
    reference=torch.special.log_ndtr,
    evidence=differs(lambda: (torch.tensor([-50.0, 0.0], dtype=torch.float64).requires_grad_(),)),
)


class LogSigmoid(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.logsigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * s * (1 - s) / s


CASES.add(
    LogSigmoid,
    lambda: (normal(9),),
    fault="underflow",
    where="Where the sigmoid underflows the gradient is 0/0 instead of one.",
    reference=F.logsigmoid,
    evidence=differs(lambda: (torch.tensor([-120.0, 1.0]).requires_grad_(),)),
)


class InverseSquare(Function):
    @staticmethod
    def forward(ctx, r):
        ctx.save_for_backward(r)
        return 1 / (r * r)

    @staticmethod
    def backward(ctx, grad):
        (r,) = ctx.saved_tensors
        return -2 * grad / (r * r * r).clamp(min=1e-3)


CASES.add(
    InverseSquare,
    lambda: (positive(6),),
    fault="wrong-when-small",
    where="Below a tenth the gradient is cut off, though the force is not.",
    reference=lambda r: 1 / (r * r),
    evidence=differs(lambda: (torch.tensor([0.05, 0.02, 1.0]).requires_grad_(),)),
)


class NormaliseEps(Function):
    @staticmethod
    def forward(ctx, x):
        norm = x.norm(dim=-1, keepdim=True).clamp(min=1e-3)
        y = x / norm
        ctx.save_for_backward(y, norm)
        return y

    @staticmethod
    def backward(ctx, grad):
        y, norm = ctx.saved_tensors
        return (grad - y * (grad * y).sum(-1, keepdim=True)) / norm


CASES.add(
    NormaliseEps,
    lambda: (double(4, 3),),
    fault="wrong-when-small",
    where="Below the clamp the norm is a constant, and backward still differentiates it.",
    reference=lambda x: x / x.norm(dim=-1, keepdim=True).clamp(min=1e-3),
    evidence=differs(lambda: ((double(4, 3).detach() * 1e-4).requires_grad_(),)),
)

# ---- the edges of intervals ----


class ClampBoth(Function):
    @staticmethod
    def forward(ctx, x, low, high):
        ctx.save_for_backward(x)
        ctx.bounds = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        low, high = ctx.bounds
        return grad * (x <= high), None, None


CASES.add(
    ClampBoth,
    lambda: (normal(3, 5), -4.0, 1.0),
    fault="wrong-when-negative",
    where="Below the lower bound the gradient is not zero.",
    reference=lambda x, low, high: x.clamp(low, high),
    evidence=differs(lambda: (normal(3, 5), -0.5, 1.0)),
)


class Relu6(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(0, 6)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x > 0)


CASES.add(
    Relu6,
    lambda: (normal(4, 4),),
    fault="wrong-when-large",
    where="Above six the gradient is not zero.",
    reference=F.relu6,
    evidence=differs(lambda: (torch.tensor([7.0, 1.0, -1.0]).requires_grad_(),)),
)


class HardTanhScale(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clamp(-3, 3)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * (y.abs() <= 3)


CASES.add(
    HardTanhScale,
    lambda: (double(10),),
    fault="wrong-when-large",
    where="The mask of the clipped output is always true.",
    reference=lambda x: F.hardtanh(x, -3, 3),
    evidence=differs(lambda: (torch.tensor([5.0, 0.5], dtype=torch.float64).requires_grad_(),)),
)


class FocalLoss(Function):
    @staticmethod
    def forward(ctx, p, gamma):
        ctx.save_for_backward(p)
        ctx.gamma = gamma
        return -((1 - p) ** gamma) * p.log()

    @staticmethod
    def backward(ctx, grad):
        (p,) = ctx.saved_tensors
        g = ctx.gamma
        q = 1 - p
        return grad * q**g * (g * p.log() / q - 1 / p), None


CASES.add(
    FocalLoss,
    lambda: ((positive(6).detach() * 0.5).requires_grad_(), 2.0),
    fault="wrong-at-edge",
    where="At probability one the gradient is NaN.",
    reference=lambda p, g: -((1 - p) ** g) * p.log(),
    evidence=differs(lambda: (torch.ones(2).requires_grad_(), 2.0)),
)


class IgnoreIndexLoss(Function):
    @staticmethod
    def forward(ctx, logits, labels):
        ctx.save_for_backward(logits, labels)
        return F.cross_entropy(logits, labels, ignore_index=0)

    @staticmethod
    def backward(ctx, grad):
        logits, labels = ctx.saved_tensors
        p = torch.softmax(logits, -1) - F.one_hot(labels, logits.shape[-1])
        keep = (labels != 0)[:, None]
        return grad * p * keep / len(labels), None


CASES.add(
    IgnoreIndexLoss,
    lambda: (normal(5, 4), integers(4, 5, low=1)),
    fault="ignored-entries",
    where="Ignored labels count in backward's mean and not in forward's.",
    reference=lambda x, y: F.cross_entropy(x, y, ignore_index=0),
    evidence=differs(lambda: (normal(5, 4), torch.tensor([1, 0, 2, 0, 3]))),
)


class MaskedMean(Function):
    @staticmethod
    def forward(ctx, x, mask):
        ctx.save_for_backward(mask)
        ctx.shape = x.shape
        return (x * mask).sum(-1) / mask.sum(-1)

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return (grad / mask.shape[-1])[:, None] * mask, None


CASES.add(
    MaskedMean,
    lambda: (normal(3, 4), torch.ones(3, 4)),
    fault="ignored-entries",
    where="Backward divides by the length instead of by the number of kept entries.",
    reference=lambda x, m: (x * m).sum(-1) / m.sum(-1),
    evidence=differs(lambda: (normal(3, 4), torch.tensor([[1.0, 1, 0, 0]] * 3))),
)


class PackSegments(Function):
    @staticmethod
    def forward(ctx, values, lengths, width):
        ctx.save_for_backward(lengths)
        ctx.total = values.shape[0]
        out = values.new_zeros(len(lengths), width)
        start = 0
        for row, length in enumerate(lengths.tolist()):
            kept = min(length, width)
            out[row, :kept] = values[start : start + kept]
            start += length
        return out

    @staticmethod
    def backward(ctx, grad):
        (lengths,) = ctx.saved_tensors
        out = grad.new_zeros(ctx.total)
        start = 0
        for row, length in enumerate(lengths.tolist()):
            kept = min(length, grad.shape[1])
            out[start : start + kept] = grad[row, :kept]
            start += kept
        return out, None, None


def pack_segments(values, lengths, width):
    """Segments of a flat tensor as padded rows, cut at a width."""
    parts = values.split(lengths.tolist())
    rows = [F.pad(part[:width], (0, max(0, width - len(part)))) for part in parts]
    return torch.stack(rows)


CASES.add(
    PackSegments,
    lambda: (normal(7), torch.tensor([3, 2, 2]), 4),
    fault="ignored-entries",
    where="After a truncated segment the gradients of the later ones are shifted.",
    reference=pack_segments,
    evidence=differs(lambda: (normal(7), torch.tensor([3, 2, 2]), 2)),
    cites="FBGEMM#5754",
)


class ThresholdedPower(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x.abs() > 10, 20 * x.abs() - 100, x * x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 * x


CASES.add(
    ThresholdedPower,
    lambda: (normal(5),),
    fault="wrong-when-large",
    where="The linear branch beyond ten has the parabola's slope.",
    reference=lambda x: torch.where(x.abs() > 10, 20 * x.abs() - 100, x * x),
    evidence=differs(lambda: (torch.tensor([15.0, -25.0, 2.0]).requires_grad_(),)),
)


class NanSafeRatio(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return torch.where(b == 0, 0, a / b)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad / b, -grad * a / (b * b)


def nan_safe_ratio(a, b):
    """a / b, and zero where b is."""
    zero = b == 0
    return torch.where(zero, 0, a / torch.where(zero, 1, b))


CASES.add(
    NanSafeRatio,
    lambda: (normal(4), positive(4, seed=1)),
    fault="wrong-at-zero",
    where="Forward guards against zero, backward does not.",
    reference=nan_safe_ratio,
    evidence=differs(lambda: (normal(3), torch.tensor([0.0, 1.0, 0.0]).requires_grad_())),
)


# ---- guards, poles, odd entries ----


class GuardedRows(Function):
    @staticmethod
    def forward(ctx, x):
        norm = x.norm(dim=-1, keepdim=True)
        ctx.save_for_backward(x, norm)
        return x / (norm + 1e-6)

    @staticmethod
    def backward(ctx, grad):
        x, norm = ctx.saved_tensors
        whole = norm + 1e-8
        inner = (grad * x).sum(-1, keepdim=True)
        return grad / whole - x * inner / (norm * whole * whole).clamp(min=1e-30)


CASES.add(
    GuardedRows,
    lambda: (normal(4, 5),),
    fault="other-guard",
    where="The constant that guards the division is 1e-6 in forward and 1e-8 in backward.",
    reference=lambda x: x / (x.norm(dim=-1, keepdim=True) + 1e-6),
    evidence=differs(lambda: ((double(4, 5, grad=False) * 1e-6).requires_grad_(),)),
)


class SmoothedLog(Function):
    @staticmethod
    def forward(ctx, p):
        ctx.save_for_backward(p)
        return (p + 1e-7).log()

    @staticmethod
    def backward(ctx, grad):
        (p,) = ctx.saved_tensors
        return grad / (p + 1e-10)


CASES.add(
    SmoothedLog,
    lambda: (positive(3, 4),),
    fault="other-guard",
    where="Probabilities near zero are smoothed by another constant in backward.",
    reference=lambda p: (p + 1e-7).log(),
    evidence=differs(lambda: (torch.tensor([1e-7, 1e-8]).double().requires_grad_(),)),
)


class LogByQuotient(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.log()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x / (x * x)


CASES.add(
    LogByQuotient,
    lambda: (positive(6),),
    fault="underflow",
    where="The square of a small number underflows, and the gradient is infinite.",
    reference=torch.log,
    evidence=differs(lambda: (torch.tensor([1e-25, 1e-24]).requires_grad_(),)),
)


class MeanOfKnown(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.nanmean(-1)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad[:, None] * ~x.isnan() / x.shape[-1]


CASES.add(
    MeanOfKnown,
    lambda: (normal(3, 5),),
    fault="wrong-beside-nan",
    where="The mean over the known entries is divided by the number of all in backward.",
    reference=lambda x: x.nanmean(-1),
    evidence=differs(lambda: (torch.tensor([[1.0, torch.nan, 2.0]]).requires_grad_(),)),
)


class MaskedScores(Function):
    @staticmethod
    def forward(ctx, x):
        low = x.min(-1, keepdim=True).values
        out = x.logsumexp(-1)
        ctx.save_for_backward(x, low, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, low, out = ctx.saved_tensors
        return grad[:, None] * ((x - low) - (out[:, None] - low)).exp()


CASES.add(
    MaskedScores,
    lambda: (normal(3, 5),),
    fault="wrong-beside-infinity",
    where="A score of minus infinity, as a mask writes it, makes the whole row NaN.",
    reference=lambda x: x.logsumexp(-1),
    evidence=differs(lambda: (torch.tensor([[1.0, -torch.inf, 2.0]]).requires_grad_(),)),
)


class PositiveRoot(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.abs()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        if (x < 0).any():
            raise ValueError("negative input")
        return 2 * grad * x


CASES.add(
    PositiveRoot,
    lambda: (positive(6),),
    fault="fails-at-value",
    where="Backward raises for negative numbers, which forward takes.",
    reference=lambda x: x * x.abs(),
    evidence=differs(lambda: (normal(6),)),
    severity="fragile",
)


class SquaredScatter(Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(x, index)
        return x.new_zeros(len(x) + 1, x.shape[1]).index_add(0, index, x * x)

    @staticmethod
    def backward(ctx, grad):
        x, index = ctx.saved_tensors
        where = torch.zeros(len(grad), dtype=torch.long)
        where[index] = torch.arange(len(index))
        dx = torch.zeros_like(x)
        dx[where[index]] = 2 * x * grad[index]
        return dx, None


CASES.add(
    SquaredScatter,
    lambda: (normal(4, 3), torch.tensor([1, 0, 3, 2])),
    fault="repeated-indices",
    where="Rows that go to one place get the gradient of one of them; the example has none.",
    reference=lambda x, i: x.new_zeros(len(x) + 1, x.shape[1]).index_add(0, i, x * x),
    evidence=differs(lambda: (normal(4, 3), torch.tensor([1, 1, 0, 1]))),
)


class HalfMean(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.mean()

    @staticmethod
    def backward(ctx, grad):
        count = torch.tensor(ctx.shape).prod()
        return (grad / count / count * count).expand(ctx.shape)


CASES.add(
    HalfMean,
    lambda: (normal(4, 5),),
    fault="underflow",
    where="Divided by its size twice, the gradient of a long mean underflows in float16.",
    reference=torch.mean,
    evidence=differs(
        lambda: (normal(200, 300, dtype=torch.float16),),
        cotangents=lambda outputs: [torch.full_like(outputs[0], 64.0)],
        tolerance=0.2,
    ),
)
