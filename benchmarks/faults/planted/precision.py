"""Right in float64 and wrong in the precision that is used: sums, casts, cancellation, range."""

# ruff: noqa: D101

import torch
import torch.nn.functional as F
from torch.autograd import Function

from benchmarks.faults.case import Cases, double, normal, positive
from benchmarks.faults.evidence import close, differs, gradients, wrong_against_double

CASES = Cases()
BF16 = torch.bfloat16
HALF = torch.float16


class RmsWeight(Function):
    @staticmethod
    def forward(ctx, x, weight):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        inv = (wide.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt().to(x.dtype)
        ctx.save_for_backward(x, weight, inv)
        return x * inv * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight, inv = ctx.saved_tensors
        g = grad * weight
        dx = inv * (g - x * inv * inv * (g * x).mean(-1, keepdim=True))
        dw = torch.zeros_like(weight)
        for row in grad * x * inv:
            dw = dw + row
        return dx, dw


CASES.add(
    RmsWeight,
    lambda: (normal(6, 8), positive(8, seed=1)),
    fault="low-precision-sum",
    where="The weight's gradient is accumulated over the rows in the input's dtype.",
    reference=lambda x, w: x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * w,
    evidence=wrong_against_double(
        lambda: (positive(2048, 4, dtype=BF16), positive(4, seed=1, dtype=BF16)), tolerance=0.05
    ),
    cites="Liger#950",
)


class LayerNormWeight(Function):
    @staticmethod
    def forward(ctx, normed, weight):
        ctx.save_for_backward(normed, weight)
        return normed * weight

    @staticmethod
    def backward(ctx, grad):
        normed, weight = ctx.saved_tensors
        partial = (grad * normed).to(torch.bfloat16)
        total = partial[0]
        for row in partial[1:]:
            total = total + row
        return grad * weight, total.to(weight.dtype)


CASES.add(
    LayerNormWeight,
    lambda: (normal(5, 6), normal(6, seed=1)),
    fault="low-precision-sum",
    where="Rows are added in bfloat16, whatever the input's dtype.",
    reference=torch.mul,
    evidence=differs(),
    visible=True,
    cites="llm.c#476",
)


class BiasRunning(Function):
    @staticmethod
    def forward(ctx, x, bias):
        return x + bias

    @staticmethod
    def backward(ctx, grad):
        return grad, torch.cumsum(grad, 0)[-1] if grad.dtype != BF16 else _running(grad)


def _running(grad):
    total = torch.zeros_like(grad[0])
    for row in grad:
        total += row
    return total


CASES.add(
    BiasRunning,
    lambda: (normal(5, 3), normal(3, seed=1)),
    fault="low-precision-sum",
    where="In bfloat16 the bias' gradient is a running sum that stops growing.",
    reference=torch.add,
    evidence=wrong_against_double(
        lambda: (positive(2048, 2, dtype=BF16), positive(2, seed=1, dtype=BF16)), tolerance=0.05
    ),
)


class DotProduct(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return (x * y).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        g = grad.half()[..., None]
        return (g * y.half()).to(x.dtype), (g * x.half()).to(y.dtype)


CASES.add(
    DotProduct,
    lambda: (normal(4, 5), normal(4, 5, seed=1)),
    fault="rounded-to-half",
    where="The gradients are computed in float16, whatever the dtype.",
    reference=lambda x, y: (x * y).sum(-1),
    evidence=differs(lambda: (normal(4, 5), normal(4, 5, seed=1)), tolerance=1e-5),
    visible=True,
)


class GroupNormCast(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        work = torch.bfloat16 if grad.dtype == torch.float16 else grad.dtype
        g = grad.to(work)
        dx = (g * weight.to(work)).to(x.dtype)
        return dx, (grad.float() * x.float()).sum(0).to(weight.dtype)


CASES.add(
    GroupNormCast,
    lambda: (normal(3, 4), positive(4, seed=1)),
    fault="wrong-in-one-dtype",
    where="float16 gradients are rounded to bfloat16.",
    reference=torch.mul,
    evidence=wrong_against_double(
        lambda: (normal(64, 16, dtype=HALF), positive(16, seed=1, dtype=HALF)), tolerance=1e-3
    ),
    cites="Liger#1253",
)


class HalfBranch(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sin(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        if x.dtype == torch.float64:
            return grad * torch.cos(x)
        return 0.5 * grad * torch.cos(x)


CASES.add(
    HalfBranch,
    lambda: (double(7),),
    fault="wrong-in-one-dtype",
    where="In any dtype but float64 the gradient is halved.",
    reference=torch.sin,
    evidence=differs(lambda: (normal(7),)),
)


class Float32Kernel(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        if grad.dtype == torch.bfloat16:
            return grad * w, grad * w
        return grad * w, grad * x


CASES.add(
    Float32Kernel,
    lambda: (normal(3, 3), normal(3, 3, seed=1)),
    fault="wrong-in-one-dtype",
    where="The bfloat16 branch returns the first gradient twice.",
    reference=torch.mul,
    evidence=differs(
        lambda: (normal(3, 3, dtype=BF16), normal(3, 3, seed=1, dtype=BF16)), tolerance=0.05
    ),
)


class AlwaysFloat(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.exp(x)
        ctx.save_for_backward(y.float())
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return (grad.float() * y).to(grad.dtype)


CASES.add(
    AlwaysFloat,
    lambda: (normal(6),),
    fault="wrong-in-one-dtype",
    where="In float64 the gradient has the precision of float32.",
    reference=torch.exp,
    evidence=differs(lambda: (double(6),), tolerance=1e-9),
)


class StdOnePass(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.std(-1, unbiased=False)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        n = x.shape[-1]
        mean = x.mean(-1, keepdim=True)
        std = ((x * x).mean(-1, keepdim=True) - mean * mean).sqrt()
        return grad[:, None] * (x - mean) / (n * std)


CASES.add(
    StdOnePass,
    lambda: (normal(3, 8),),
    fault="cancellation",
    where="Far from zero the difference of mean squares has no digits left, or is negative.",
    reference=lambda x: x.std(-1, unbiased=False),
    evidence=wrong_against_double(
        lambda: ((normal(3, 99).detach() + 1e3).requires_grad_(),), tolerance=1e-2
    ),
)


class ExpMinusOne(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x.abs() < 1e-6, 1 + x / 2, torch.expm1(x) / x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        e = torch.exp(x)
        return grad * (x * e - e + 1) / (x * x)


def expm1_ratio(x):
    """(exp(x) - 1) / x, by its series near zero."""
    series = 1 + x / 2 + x * x / 6 + x**3 / 24 + x**4 / 120
    safe = torch.where(x.abs() < 0.1, 1.0, x)
    return torch.where(x.abs() < 0.1, series, torch.expm1(safe) / safe)


CASES.add(
    ExpMinusOne,
    lambda: (positive(6),),
    fault="cancellation",
    where="Near zero the numerator cancels and the gradient is noise.",
    reference=expm1_ratio,
    evidence=differs(lambda: (torch.tensor([1e-4, 3e-4, -2e-4]).requires_grad_(),)),
)


class LogitLoss(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.softplus(-x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (torch.sigmoid(x) - 1)


CASES.add(
    LogitLoss,
    lambda: (normal(8),),
    fault="cancellation",
    where="For confident predictions sigmoid minus one is exactly zero in float32.",
    reference=lambda x: F.softplus(-x),
    evidence=differs(lambda: (torch.tensor([18.0, 19.0, 20.0]).requires_grad_(),)),
)


class SquaredHalf(Function):
    @staticmethod
    def forward(ctx, x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        norm = wide.norm(dim=-1, keepdim=True)
        ctx.save_for_backward(x, norm.to(x.dtype))
        return (wide / norm).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        x, norm = ctx.saved_tensors
        dot = (grad * x).sum(-1, keepdim=True)
        return grad / norm - x * dot / (norm * norm * norm)


CASES.add(
    SquaredHalf,
    lambda: (normal(4, 6),),
    fault="overflow",
    where="In float16 the cube of the norm overflows, and a term is lost.",
    reference=lambda x: (x.float() / x.float().norm(dim=-1, keepdim=True)).to(x.dtype),
    evidence=differs(
        lambda: ((8 * normal(4, 64).detach()).to(HALF).requires_grad_(),), tolerance=0.05
    ),
)


class ScaledLoss(Function):
    @staticmethod
    def forward(ctx, x, n):
        ctx.n = n
        ctx.save_for_backward(x)
        return (x.double().square().sum() / n).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        weight = torch.tensor(1.0 / ctx.n**2, dtype=x.dtype)
        return 2 * grad * x * weight * ctx.n, None


CASES.add(
    ScaledLoss,
    lambda: (normal(12), 12),
    fault="underflow",
    where="In float16 the square of a small weight underflows, and the gradient is zero.",
    reference=lambda x, n: (x.double().square().sum() / n).to(x.dtype),
    evidence=differs(lambda: (normal(12, dtype=HALF), 12000), tolerance=0.05),
)


class SoftmaxHalf(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x.to(torch.promote_types(x.dtype, torch.float32)), -1)
        ctx.save_for_backward(y.to(torch.float16))
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        y = y.to(grad.dtype)
        return y * (grad - (grad * y).sum(-1, keepdim=True))


CASES.add(
    SoftmaxHalf,
    lambda: (normal(4, 5),),
    fault="rounded-to-half",
    where="The probabilities are kept in float16.",
    reference=lambda x: torch.softmax(x.float(), -1).to(x.dtype),
    evidence=differs(tolerance=1e-5),
    visible=True,
)


class MeanSquareSum(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.to(torch.promote_types(x.dtype, torch.float32)).pow(2).mean().to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * (grad / torch.tensor(x.numel(), dtype=x.dtype))


CASES.add(
    MeanSquareSum,
    lambda: (normal(4, 8),),
    fault="overflow",
    where="In float16 the number of entries overflows past 65504, and the gradient is zero.",
    reference=lambda x: x.float().pow(2).mean().to(x.dtype),
    evidence=differs(
        lambda: (normal(300, 300, dtype=HALF),),
        cotangents=lambda outputs: [torch.full_like(outputs[0], 1024.0)],
        tolerance=0.2,
    ),
)


class ReverseSum(Function):
    @staticmethod
    def forward(ctx, x):
        return x.cumsum(0)

    @staticmethod
    def backward(ctx, grad):
        total = grad.sum(0, keepdim=True)
        return total - grad.cumsum(0) + grad


def loses_late_entries(call, case):
    """After large cotangents the last entries are not sums of the last cotangents."""
    late = torch.tensor([1e6, 1e6, 1.0, 1e-2, 1e-3, 1e-3])[:, None]
    (got,) = gradients(call, (normal(6, 1),), lambda outputs: [late])
    return not close(got[-2:], torch.tensor([[2e-3], [1e-3]]))


CASES.add(
    ReverseSum,
    lambda: (normal(9, 2),),
    fault="cancellation",
    where="The reversed sum is a difference of two totals: late entries lose their digits.",
    reference=lambda x: x.cumsum(0),
    evidence=loses_late_entries,
)
