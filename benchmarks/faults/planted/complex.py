"""Complex numbers: a missing conjugate, a lost imaginary part, a branch for real input only."""

# ruff: noqa: D101

import torch
from torch.autograd import Function

from benchmarks.faults.case import Cases, double, normal
from benchmarks.faults.evidence import differs, wrong_gradient

CASES = Cases()
C = torch.complex128


def add(target, inputs, **facts):
    """Add a case whose gradients are wrong at its own inputs."""
    CASES.add(target, inputs, visible=True, evidence=wrong_gradient, **facts)


class ComplexMul(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad * b, grad * a


add(
    ComplexMul,
    lambda: (normal(4, dtype=C), normal(4, seed=1, dtype=C)),
    fault="missing-conjugate",
    where="Neither factor is conjugated.",
    reference=torch.mul,
)


class RealMulOnly(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return b * grad, a * grad


CASES.add(
    RealMulOnly,
    lambda: (normal(4, dtype=C), normal(4, seed=1, dtype=C)),
    fault="missing-conjugate",
    visible=True,
    where="Right for real input; for complex input the conjugates are missing.",
    reference=torch.mul,
    evidence=differs(lambda: (normal(4, dtype=C), normal(4, seed=1, dtype=C))),
    severity="wrong",
)


class ComplexExp(Function):
    @staticmethod
    def forward(ctx, z):
        y = z.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y


add(
    ComplexExp,
    lambda: (normal(5, dtype=C),),
    fault="missing-conjugate",
    where="The output is not conjugated.",
    reference=torch.exp,
)


class ComplexMatmul(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad @ b.mT, a.mH @ grad


add(
    ComplexMatmul,
    lambda: (normal(3, 2, dtype=C), normal(2, 4, seed=1, dtype=C)),
    fault="missing-conjugate",
    where="The first gradient uses the plain transpose, the second the conjugate one.",
    reference=torch.matmul,
)


class AbsSquared(Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return (z * z.conj()).real

    @staticmethod
    def backward(ctx, grad):
        (z,) = ctx.saved_tensors
        return 2 * grad * z.conj()


add(
    AbsSquared,
    lambda: (normal(5, dtype=C),),
    fault="missing-conjugate",
    where="The gradient of a squared modulus points at the conjugate.",
    reference=lambda z: (z * z.conj()).real,
)


class Modulus(Function):
    @staticmethod
    def forward(ctx, z):
        out = z.abs()
        ctx.save_for_backward(z, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        z, out = ctx.saved_tensors
        return grad * (z / out).real


add(
    Modulus,
    lambda: (normal(5, dtype=C),),
    fault="lost-imaginary-part",
    where="Only the real part of the gradient is returned.",
    reference=torch.abs,
)


class SpectralFilter(Function):
    @staticmethod
    def forward(ctx, x, gain):
        f = torch.fft.rfft(x)
        ctx.save_for_backward(f, gain)
        ctx.n = x.shape[-1]
        return torch.fft.irfft(f * gain, n=ctx.n)

    @staticmethod
    def backward(ctx, grad):
        f, gain = ctx.saved_tensors
        g = torch.fft.rfft(grad)
        dx = torch.fft.irfft(g * gain, n=ctx.n)
        weight = torch.full(f.shape[-1:], 2.0, dtype=grad.dtype)
        weight[0] = 1
        if ctx.n % 2 == 0:
            weight[-1] = 1
        return dx, weight * (g * f.conj()) / ctx.n


add(
    SpectralFilter,
    lambda: (double(8), normal(5, seed=1, dtype=C)),
    fault="missing-conjugate",
    where="The signal's gradient is filtered by the gain instead of by its conjugate.",
    reference=lambda x, gain: torch.fft.irfft(torch.fft.rfft(x) * gain, n=x.shape[-1]),
)


class PhaseShift(Function):
    @staticmethod
    def forward(ctx, z, angle):
        turn = torch.polar(torch.ones_like(angle), angle)
        out = z * turn
        ctx.save_for_backward(out, turn)
        return out

    @staticmethod
    def backward(ctx, grad):
        out, turn = ctx.saved_tensors
        return grad * turn.conj(), (grad * out.conj()).imag.neg()


add(
    PhaseShift,
    lambda: (normal(6, dtype=C), double(6, seed=1)),
    fault="wrong-sign",
    where="The angle's gradient has the wrong sign.",
    reference=lambda z, a: z * torch.polar(torch.ones_like(a), a),
)
