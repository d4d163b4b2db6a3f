"""Filters, transforms and complex-valued functions."""
import torch
import torch.nn as nn

from support import *


class FFTConv(Function):
    """Circular convolution along the last dimension of (B, C, T) with a kernel (C, T)."""

    @staticmethod
    def forward(ctx, x, kernel):
        if x.size(-1) != kernel.size(-1):
            raise ValueError("signal and kernel must have one length")
        ctx.save_for_backward(x, kernel)
        return torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(kernel), n=x.size(-1))

    @staticmethod
    def backward(ctx, g):
        x, kernel = ctx.saved_tensors
        n = x.size(-1)
        G = torch.fft.rfft(g)
        gx = gk = None
        if ctx.needs_input_grad[0]:
            gx = torch.fft.irfft(G * torch.fft.rfft(kernel).conj(), n=n)
        if ctx.needs_input_grad[1]:
            gk = torch.fft.irfft((G * torch.fft.rfft(x).conj()).sum(0), n=n)
        return gx, gk


class ModReLU(Function):
    """relu(|z| + b) z / |z| for complex z (B, C) and real b (C,).  Zero at z = 0."""

    @staticmethod
    def _unit(z, b):
        r = z.abs()
        ok = (r > 0) & (r + b > 0)
        safe = torch.where(r > 0, r, torch.ones_like(r))
        return z / safe, r, safe, ok

    @staticmethod
    def forward(ctx, z, b):
        if not z.is_complex() or b.is_complex():
            raise TypeError("modrelu takes a complex input and a real bias")
        ctx.save_for_backward(z, b)
        u, r, _, ok = ModReLU._unit(z, b)
        return u * torch.where(ok, r + b, torch.zeros_like(r))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        z, b = ctx.saved_tensors
        u, r, safe, ok = ModReLU._unit(z, b)
        local = u.conj() * g
        gz = gb = None
        if ctx.needs_input_grad[0]:
            gz = u * torch.complex(local.real, local.imag * (r + b) / safe) * ok
        if ctx.needs_input_grad[1]:
            gb = (local.real * ok).sum(0)
        return gz, gb


class PowerSpectrum(Function):
    """|rfft(x)|^2 of a real signal."""

    @staticmethod
    def forward(x):
        X = torch.fft.rfft(x)
        return X.real.square() + X.imag.square()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        n = x.size(-1)
        full = F.pad(2 * g * torch.fft.rfft(x), (0, n - g.size(-1)))
        return torch.fft.ifft(full, norm="forward").real


class LinearRecurrence(Function):
    """h_t = a_t h_{t-1} + x_t along dim 1 of (B, T, C), from ``h0`` or from zero."""

    @staticmethod
    def forward(ctx, a, x, h0=None):
        h = torch.zeros_like(x[:, 0]) if h0 is None else h0
        out = []
        for t in range(x.size(1)):
            h = a[:, t] * h + x[:, t]
            out.append(h)
        y = torch.stack(out, 1)
        ctx.save_for_backward(a, h0, y)
        return y

    @staticmethod
    def backward(ctx, g):
        a, h0, y = ctx.saved_tensors
        first = torch.zeros_like(y[:, 0]) if h0 is None else h0
        carry = torch.zeros_like(y[:, 0])
        gx = []
        for t in range(y.size(1) - 1, -1, -1):
            d = g[:, t] + carry
            gx.append(d)
            carry = a[:, t] * d
        gx = torch.stack(gx[::-1], 1)
        ga = None
        if ctx.needs_input_grad[0]:
            ga = gx * torch.cat([first.unsqueeze(1), y[:, :-1]], 1)
        return (ga, gx if ctx.needs_input_grad[1] else None, carry if ctx.needs_input_grad[2] else None)


class HaarSplit(Function):
    """One level of the orthonormal Haar transform: (approximation, detail).  Even length only."""

    @staticmethod
    def forward(ctx, x):
        if x.size(-1) % 2:
            raise ValueError(f"an even length is needed, got {x.size(-1)}")
        ctx.set_materialize_grads(False)
        a, b = x[..., 0::2], x[..., 1::2]
        return (a + b) * math.sqrt(0.5), (a - b) * math.sqrt(0.5)

    @staticmethod
    def backward(ctx, ga, gd):
        if ga is None and gd is None:
            return None
        ga = torch.zeros_like(gd) if ga is None else ga
        gd = torch.zeros_like(ga) if gd is None else gd
        return torch.stack([ga + gd, ga - gd], -1).flatten(-2) * math.sqrt(0.5)


class FractionalDelay(Function):
    """Delays real signals (B, T) by ``tau`` samples, one number for each, in the Fourier domain.
    Odd lengths only, where no Nyquist bin has to be treated on its own."""

    @staticmethod
    def _phase(tau, n):
        w = 2 * math.pi * torch.arange(n // 2 + 1, dtype=tau.dtype, device=tau.device) / n
        return w, torch.polar(torch.ones((), dtype=tau.dtype, device=tau.device), -w * tau[:, None])

    @staticmethod
    def forward(ctx, x, tau):
        n = x.size(-1)
        if n % 2 == 0:
            raise ValueError("the length must be odd")
        ctx.save_for_backward(x, tau)
        return torch.fft.irfft(torch.fft.rfft(x) * FractionalDelay._phase(tau, n)[1], n=n)

    @staticmethod
    def backward(ctx, g):
        x, tau = ctx.saved_tensors
        n = x.size(-1)
        w, ph = FractionalDelay._phase(tau, n)
        gx = gt = None
        if ctx.needs_input_grad[0]:
            gx = torch.fft.irfft(torch.fft.rfft(g) * ph.conj(), n=n)
        if ctx.needs_input_grad[1]:
            slope = torch.fft.irfft(torch.fft.rfft(x) * ph * (-1j * w), n=n)
            gt = (g * slope).sum(-1)
        return gx, gt


def _modrelu_inputs():
    z = torch.complex(randn(3, 4, seed=3, grad=False), randn(3, 4, seed=4, grad=False))
    return z.requires_grad_(), torch.tensor([-0.5, -0.2, 0.0, 0.3], dtype=torch.float64, requires_grad=True)


CASES = [
    case("fft_circular_conv", FFTConv, lambda: (randn(2, 3, 5, seed=1), randn(3, 5, seed=2)),
         "odd length given to irfft; signal and kernel lengths go together"),
    case("complex_modrelu", ModReLU, _modrelu_inputs, "complex input, real bias; dead below the bias"),
    case("power_spectrum", PowerSpectrum, lambda: (randn(2, 6, seed=5),)),
    case("linear_recurrence_optional_state", LinearRecurrence,
         lambda: (rand(2, 5, 3, seed=6), randn(2, 5, 3, seed=7), None),
         "the first state is optional; the factors of the first step get zero gradient then"),
    case("haar_split", HaarSplit, lambda: (randn(2, 6, seed=8),),
         "orthonormal, so nothing is saved; an unused output arrives as None"),
    case("fractional_delay", FractionalDelay, lambda: (randn(2, 7, seed=10), randn(2, seed=11)),
         "odd lengths only"),
]
