"""Smooth functions of each element, with few bytes saved and no overflow on the way."""

import math

import torch
import torch.nn.functional as F
from torch.autograd import Function

import pullback as pb
from benchmarks.faults.sound.entry import Sound, cases_of, positive, real

# ---- saved outputs ----


class Exp(Function):
    """`exp(x)`, which is its own derivative."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * y


class Tanh(Function):
    """`tanh(x)` from its output."""

    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * (1 - y * y)


class Sigmoid(pb.Function):
    """`1 / (1 + exp(-x))` from its output."""

    @staticmethod
    def forward(x):
        return x.sigmoid()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * y * (1 - y)


class Sqrt(Function):
    """The square root; the slope at 0 is infinite."""

    @staticmethod
    def forward(ctx, x):
        y = x.sqrt()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output / (2 * y)


class RSqrt(Function):
    """One over the square root."""

    @staticmethod
    def forward(ctx, x):
        y = x.rsqrt()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return -0.5 * grad_output * y**3


class Reciprocal(Function):
    """`1 / x`."""

    @staticmethod
    def forward(ctx, x):
        y = x.reciprocal()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return -grad_output * y * y


class ELU(Function):
    """`x` above zero, `alpha * (exp(x) - 1)` below, from the output."""

    @staticmethod
    def forward(ctx, x, alpha):
        y = torch.where(x > 0, x, alpha * torch.expm1(x.clamp(max=0)))
        ctx.alpha = alpha
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return torch.where(y > 0, grad_output, grad_output * (y + ctx.alpha)), None


# ---- saved inputs ----


class Log(Function):
    """The natural logarithm."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.log()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output / x


class GuardedLog(Function):
    """`log(x)` for positive `x`; anything else is refused in words."""

    @staticmethod
    def forward(ctx, x):
        if not bool((x > 0).all()):
            raise ValueError("GuardedLog takes positive numbers only")
        ctx.save_for_backward(x)
        return x.log()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output / x


class IntegerPower(Function):
    """`x ** n` with a whole number `n`, negative bases included."""

    @staticmethod
    def forward(ctx, x, n):
        if not isinstance(n, int) or n < 0:
            raise ValueError(f"n must be a whole number of at least 0, got {n!r}")
        ctx.n = n
        ctx.save_for_backward(x)
        return x**n

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        if ctx.n == 0:
            return torch.zeros_like(x), None
        return grad_output * ctx.n * x ** (ctx.n - 1), None


class Softplus(Function):
    """`log(1 + exp(x))` without overflow."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.sigmoid(x)


class LogSigmoid(Function):
    """`log(sigmoid(x))`, right for very negative `x`."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(max=0) - torch.log1p(torch.exp(-x.abs()))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.sigmoid(-x)


class SiLU(Function):
    """`x * sigmoid(x)`; backward computes the sigmoid again."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad_output * s * (1 + x * (1 - s))


class ExactGELU(Function):
    """`x` times the normal distribution function at `x`."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        cdf = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
        density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        return grad_output * (cdf + x * density)


class GELU(Function):
    """GELU with the approximation named by a string."""

    @staticmethod
    def forward(ctx, x, approximate):
        if approximate not in ("none", "tanh"):
            raise ValueError(f"approximate must be 'none' or 'tanh', got {approximate!r}")
        ctx.approximate = approximate
        ctx.save_for_backward(x)
        return F.gelu(x, approximate=approximate)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return torch.ops.aten.gelu_backward(grad_output, x, approximate=ctx.approximate), None


class Sinc(Function):
    """`sin(x) / x` with the limit at 0."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sinc(x / math.pi)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        # Near 0 the difference of two nearly equal numbers loses every digit: use the series.
        near = x.abs() < 0.05
        safe = torch.where(near, 1.0, x)
        far = (safe.cos() - torch.sin(safe) / safe) / safe
        small = torch.where(near, x, 0.0)
        square = small * small
        series = small * (-1 / 3 + square * (1 / 30 + square * (-1 / 840 + square / 45360)))
        return grad_output * torch.where(near, series, far)


class XLogX(Function):
    """`x * log(x)`, with 0 at 0."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.special.xlogy(x, x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (x.log() + 1)


class Cauchy(Function):
    """`log(1 + x^2)`; exact for small `x`, finite for large."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log1p(x * x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * x / (1 + x * x)


class Erf(Function):
    """The error function."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.erf(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.exp(-x * x) * (2 / math.sqrt(math.pi))


class LogGamma(Function):
    """`log Γ(x)`, whose derivative is the digamma function."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.lgamma(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.digamma(x)


class ArcSine(Function):
    """The arc sine, with infinite slope at both ends."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.asin(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (1 - x * x).rsqrt()


SOUND = {
    "exp": Sound(Exp, lambda: (real(4, 5),), torch.exp),
    "tanh": Sound(Tanh, lambda: (real(4, 5),), torch.tanh),
    "sigmoid": Sound(Sigmoid, lambda: (real(4, 5),), torch.sigmoid),
    "sqrt": Sound(Sqrt, lambda: (positive(4, 5),), torch.sqrt),
    "rsqrt": Sound(RSqrt, lambda: (positive(4, 5),), torch.rsqrt),
    "reciprocal": Sound(Reciprocal, lambda: (positive(4, 5),), torch.reciprocal),
    "elu": Sound(ELU, lambda: (real(4, 5), 0.8), F.elu),
    "log": Sound(Log, lambda: (positive(4, 5),), torch.log),
    "log-of-positive": Sound(GuardedLog, lambda: (positive(4, 5),), torch.log),
    "integer-power": Sound(IntegerPower, lambda: (real(4, 5), 3), torch.pow),
    "softplus": Sound(Softplus, lambda: (real(4, 5),), F.softplus),
    "log-sigmoid": Sound(LogSigmoid, lambda: (real(4, 5),), F.logsigmoid),
    "silu": Sound(SiLU, lambda: (real(4, 5),), F.silu),
    "gelu-exact": Sound(ExactGELU, lambda: (real(4, 5),), F.gelu),
    "gelu-by-name": Sound(
        GELU, lambda: (real(4, 5), "tanh"), lambda x, a: F.gelu(x, approximate=a)
    ),
    "sinc": Sound(Sinc, lambda: (real(4, 5),), lambda x: torch.sinc(x / math.pi)),
    "x-log-x": Sound(
        XLogX,
        lambda: (positive(4, 5),),
        lambda x: torch.special.xlogy(x, x),
        convention=False,  # at 0 the slope is -inf, where torch has nan
    ),
    "cauchy": Sound(Cauchy, lambda: (real(4, 5),), lambda x: torch.log1p(x * x)),
    "erf": Sound(Erf, lambda: (real(4, 5),), torch.erf),
    "log-gamma": Sound(LogGamma, lambda: (positive(4, 5),), torch.lgamma),
    "arc-sine": Sound(ArcSine, lambda: (real(4, 5).detach().tanh().requires_grad_(),), torch.asin),
}

CASES = cases_of(SOUND)
