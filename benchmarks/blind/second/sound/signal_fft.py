"""Signals, transforms and complex numbers."""
import math
import numpy as np
import torch
from functools import lru_cache
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from support import case, rand, uniform, crandn, real_floating, same_shape, full_precision


class CircularConv(Function):
    """Circular convolution along the last axis by FFT, kernel of the same length; any length from 1."""

    @staticmethod
    def forward(ctx, x, kernel):
        real_floating("CircularConv", x, kernel)
        if kernel.dim() != 1 or x.shape[-1:] != kernel.shape or kernel.numel() == 0:
            raise ValueError("CircularConv: a kernel as long as the last axis expected")
        ctx.save_for_backward(x, kernel)
        return torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(kernel), n=kernel.numel())

    @staticmethod
    def backward(ctx, grad_out):
        x, kernel = ctx.saved_tensors
        n = kernel.numel()
        g = torch.fft.rfft(grad_out)
        gx = torch.fft.irfft(g * torch.fft.rfft(kernel).conj(), n=n) if ctx.needs_input_grad[0] else None
        gk = torch.fft.irfft(g * torch.fft.rfft(x).conj(), n=n).sum_to_size(n) if ctx.needs_input_grad[1] else None
        return gx, gk


class WalshHadamard(Function):
    """Orthonormal fast Walsh-Hadamard transform of the last axis, a power of two; it is its own adjoint."""

    @staticmethod
    def forward(ctx, x):
        real_floating("WalshHadamard", x)
        n = x.shape[-1] if x.dim() else 0
        if n == 0 or n & (n - 1):
            raise ValueError("WalshHadamard: the last axis must be a power of two")
        y, h = x.reshape(-1, n), 1
        while h < n:
            y = y.reshape(-1, n // (2 * h), 2, h)
            y = torch.stack((y[:, :, 0] + y[:, :, 1], y[:, :, 0] - y[:, :, 1]), 2)
            h *= 2
        return y.reshape(x.shape) * n ** -0.5

    @staticmethod
    def backward(ctx, grad_out):
        return WalshHadamard.apply(grad_out)


@lru_cache(maxsize=16)
def dct_matrix(n):
    """Orthonormal DCT-II as a NumPy array; tensors are made from it per dtype and device, never cached."""
    k = np.arange(n)[:, None]
    m = np.cos(math.pi * (np.arange(n)[None] + 0.5) * k / n) * math.sqrt(2 / n)
    m[0] /= math.sqrt(2)
    m.setflags(write=False)
    return m


class DCT2(Function):
    """Orthonormal DCT-II (or its inverse) of the last axis through a cached matrix; backward is the other one."""

    @staticmethod
    def forward(ctx, x, inverse=False):
        real_floating("DCT2", x)
        if x.dim() == 0 or x.shape[-1] == 0:
            raise ValueError("DCT2: a non-empty last axis expected")
        ctx.inverse = inverse
        m = torch.tensor(dct_matrix(x.shape[-1]), dtype=x.dtype, device=x.device)
        with full_precision(x):
            return x @ (m if inverse else m.t())

    @staticmethod
    def backward(ctx, grad_out):
        return DCT2.apply(grad_out, not ctx.inverse), None


class ComplexModulus(Function):
    """|z| of a complex tensor, with gradient zero at z = 0 as torch.abs has it."""

    @staticmethod
    def forward(ctx, z):
        if not z.is_complex():
            raise TypeError("ComplexModulus: a complex tensor expected")
        out = torch.sqrt(z.real.square() + z.imag.square())
        ctx.save_for_backward(z, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        z, out = ctx.saved_tensors
        safe = torch.where(out > 0, out, torch.ones_like(out))
        return z * torch.where(out > 0, grad_out / safe, torch.zeros_like(out))


class ComplexProduct(Function):
    """Elementwise product of two complex tensors with broadcasting; gradients take the conjugate of the other."""

    @staticmethod
    def forward(ctx, a, b):
        if not (a.is_complex() and b.is_complex() and a.dtype == b.dtype):
            raise TypeError("ComplexProduct: two complex tensors of one dtype expected")
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        ga = (grad_out * b.conj()).sum_to_size(a.shape) if ctx.needs_input_grad[0] else None
        gb = (grad_out * a.conj()).sum_to_size(b.shape) if ctx.needs_input_grad[1] else None
        return ga, gb


class FixedFIR(Function):
    """'Valid' correlation of (*, T) with constant taps; their flip is given as well and serves backward."""

    @staticmethod
    def forward(ctx, x, taps, flipped):
        real_floating("FixedFIR", x, taps, flipped)
        if taps.dim() != 1 or not taps.numel() or x.dim() == 0 or x.shape[-1] < taps.numel():
            raise ValueError("FixedFIR: a signal at least as long as the taps expected")
        if not torch.equal(taps.flip(0), flipped):
            raise ValueError("FixedFIR: the third argument must be the flip of the taps")
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            raise ValueError("FixedFIR: taps are constants")
        ctx.save_for_backward(flipped)
        return (x.unfold(-1, taps.numel(), 1) * taps).sum(-1)

    @staticmethod
    def backward(ctx, grad_out):
        flipped, = ctx.saved_tensors
        k = flipped.numel()
        wide = torch.nn.functional.pad(grad_out, (k - 1, k - 1))
        return (wide.unfold(-1, k, 1) * flipped).sum(-1), None, None


class SpectralWeight(Function):
    """irfft(rfft(x) * w): real signals (*, T), complex weight (T // 2 + 1,); the ends of w act by their real part."""

    @staticmethod
    def forward(ctx, x, weight):
        real_floating("SpectralWeight", x)
        if x.dim() == 0 or x.shape[-1] == 0 or weight.shape != (x.shape[-1] // 2 + 1,) or weight.dtype != x.dtype.to_complex():
            raise ValueError("SpectralWeight: a complex weight with T // 2 + 1 entries of x's precision expected")
        ctx.save_for_backward(x, weight)
        return torch.fft.irfft(torch.fft.rfft(x) * weight, n=x.shape[-1])

    @staticmethod
    def backward(ctx, grad_out):
        x, weight = ctx.saved_tensors
        n = x.shape[-1]
        g = torch.fft.rfft(grad_out)
        gx = torch.fft.irfft(g * weight.conj(), n=n) if ctx.needs_input_grad[0] else None
        gw = None
        if ctx.needs_input_grad[1]:
            ends = torch.arange(n // 2 + 1, device=x.device) * 2 % n == 0
            both = torch.where(ends, 1.0, 2.0).to(x.dtype) / n
            spec = torch.fft.rfft(x)
            prod = g * both
            # where the conjugate is its own mirror image only the real part of the product was used
            prod = torch.where(ends, torch.complex(prod.real, torch.zeros_like(prod.real)), prod)
            gw = (prod * spec.conj()).sum_to_size(weight.shape)
        return gx, gw


class HaarLevel(Function):
    """One orthonormal Haar level of an even last axis: approximation and detail; None gradients are understood."""

    @staticmethod
    def forward(ctx, x):
        real_floating("HaarLevel", x)
        if x.dim() == 0 or x.shape[-1] % 2:
            raise ValueError("HaarLevel: an even last axis expected")
        ctx.set_materialize_grads(False)
        a, b = x[..., ::2], x[..., 1::2]
        return (a + b) * 0.5 ** 0.5, (a - b) * 0.5 ** 0.5

    @staticmethod
    def backward(ctx, grad_low, grad_high):
        if grad_low is None and grad_high is None:
            return None
        low = torch.zeros_like(grad_high) if grad_low is None else grad_low
        high = torch.zeros_like(grad_low) if grad_high is None else grad_high
        return torch.stack((low + high, low - high), -1).flatten(-2) * 0.5 ** 0.5


class AnalyticSignal(Function):
    """Real (*, T) to complex analytic signal (Hilbert transform in the imaginary part)."""

    @staticmethod
    def window(n, like):
        w = torch.zeros(n, dtype=like.real.dtype, device=like.device)
        w[0] = 1
        w[1:(n + 1) // 2] = 2
        if n % 2 == 0:
            w[n // 2] = 1
        return w

    @staticmethod
    def forward(ctx, x):
        real_floating("AnalyticSignal", x)
        if x.dim() == 0 or x.shape[-1] == 0 or x.dtype not in (torch.float32, torch.float64):
            raise TypeError("AnalyticSignal: float32 or float64 with a non-empty last axis expected")
        return torch.fft.ifft(torch.fft.fft(x) * AnalyticSignal.window(x.shape[-1], x))

    @staticmethod
    def backward(ctx, grad_out):
        return torch.fft.ifft(torch.fft.fft(grad_out) * AnalyticSignal.window(grad_out.shape[-1], grad_out)).real


def taps_pair(*values):
    t = torch.tensor(values, dtype=torch.float64)
    return t, t.flip(0)


def with_zero():
    z = crandn(3, 2, grad=False)
    return z.requires_grad_()


CASES = [
    case("circular_conv", CircularConv, lambda: (rand(3, 2048, dtype=torch.float32), rand(2048, seed=1, dtype=torch.float32)), "FFT product of a longer signal.", more=[lambda: (rand(2, 5), rand(5, seed=1)), lambda: (rand(6), rand(6, seed=1)), lambda: (rand(3, 1), rand(1))], tol32=5e-3),
    case("walsh_hadamard", WalshHadamard, lambda: (rand(4, 1024, dtype=torch.float32),), "Power-of-two axis, orthonormal and symmetric; a larger input.", more=[lambda: (rand(3, 8),), lambda: (rand(1),), lambda: (rand(0, 4),)], refuses=[lambda: (rand(6),)]),
    case("dct2", DCT2, lambda: (rand(2, 6),), "Matrix cached per length as NumPy data.", more=[lambda: (rand(5), True), lambda: (rand(2, 1),)]),
    case("complex_modulus", ComplexModulus, lambda: (with_zero(),), "Complex input, real output, subgradient zero at zero.", second="refused", refuses=[lambda: (rand(2),)]),
    case("complex_product", ComplexProduct, lambda: (crandn(3, 2), crandn(2, seed=1)), "Complex factors that broadcast.", more=[lambda: (crandn(1), crandn(2, 1, 3, seed=1)), lambda: (crandn(0, 2), crandn(2))]),
    case("fixed_fir", FixedFIR, lambda: (rand(2, 6), *taps_pair(0.5, -1.0, 0.25)), "Constant taps and their flip; other pairs are refused.", more=[lambda: (rand(2), *taps_pair(1.0, 2.0))],
         refuses=[lambda: (rand(4), torch.ones(2), torch.zeros(2))]),
    case("spectral_weight", SpectralWeight, lambda: (rand(2, 6), crandn(4)), "Real signal, complex weight, even length with a Nyquist bin.", more=[lambda: (rand(5), crandn(3)), lambda: (rand(2, 1), crandn(1))]),
    case("haar_level", HaarLevel, lambda: (rand(2, 6),), "Two outputs with set_materialize_grads(False).", more=[lambda: (rand(2),), lambda: (rand(2, 0),)], refuses=[lambda: (rand(3),)]),
    case("analytic_signal", AnalyticSignal, lambda: (rand(2, 6),), "Real to complex; backward takes the real part.", more=[lambda: (rand(5),), lambda: (rand(1),)]),
]
