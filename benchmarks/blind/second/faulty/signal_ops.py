"""Signal processing, FFT and complex numbers."""
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import TorchDispatchMode

from support import *


class RealFFT(Function):
    """rfft along the last axis."""

    @staticmethod
    def forward(x):
        return torch.fft.rfft(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x = inputs[0]
        ctx.n = x.size(-1)

    @staticmethod
    def backward(ctx, g):
        return torch.fft.irfft(g, n=ctx.n) * ctx.n


class ComplexGain(Function):
    """Elementwise product of a spectrum with a learnable complex gain."""

    @staticmethod
    def forward(spec, gain):
        return spec * gain

    @staticmethod
    def setup_context(ctx, inputs, output):
        spec, gain = inputs
        ctx.save_for_backward(spec, gain)

    @staticmethod
    def backward(ctx, g):
        spec, gain = ctx.saved_tensors
        return g * gain.conj(), (g * spec).sum(0)


class CircularConv(Function):
    """Circular convolution of (B, N) with one kernel of length N through the FFT."""

    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x, k)
        return torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(k), n=x.size(-1))

    @staticmethod
    def backward(ctx, g):
        x, k = ctx.saved_tensors
        n = x.size(-1)
        gf = torch.fft.rfft(g)
        gx = torch.fft.irfft(gf * torch.fft.rfft(k), n=n) if ctx.needs_input_grad[0] else None
        gk = torch.fft.irfft(gf * torch.fft.rfft(x).conj(), n=n).sum(0) if ctx.needs_input_grad[1] else None
        return gx, gk


class OnePole(Function):
    """y_n = x_n + a y_{n-1} (recursive low pass), learnable a."""

    @staticmethod
    def forward(ctx, x, a):
        y = torch.empty_like(x)
        prev = torch.zeros_like(x[..., 0])
        for n in range(x.size(-1)):
            prev = x[..., n] + a * prev
            y[..., n] = prev
        ctx.save_for_backward(a, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, y = ctx.saved_tensors
        gx = torch.empty_like(g)
        acc = torch.zeros_like(g[..., 0])
        for n in range(g.size(-1) - 1, -1, -1):
            acc = g[..., n] + a * acc
            gx[..., n] = acc
        ga = (g[..., 1:] * y[..., :-1]).sum()
        return gx, ga


class Frame(Function):
    """Split (N,) into overlapping windowed frames (T, win)."""

    @staticmethod
    def forward(ctx, x, window, hop):
        ctx.save_for_backward(window)
        ctx.hop, ctx.n = hop, x.numel()
        return x.unfold(0, window.numel(), hop) * window

    @staticmethod
    def backward(ctx, g):
        (window,) = ctx.saved_tensors
        win, gx = window.numel(), g.new_zeros(ctx.n)
        for t in range(g.size(0)):
            gx[t * ctx.hop: t * ctx.hop + win] = g[t] * window
        return gx, None, None


class InverseRealFFT(Function):
    """irfft to n real samples, n = 2 (m - 1) unless given."""

    @staticmethod
    def forward(spec, n=None):
        return torch.fft.irfft(spec, n=n)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.m = inputs[0].size(-1)

    @staticmethod
    def backward(ctx, g):
        n = g.size(-1)
        gs = torch.fft.rfft(g) / n
        scale = torch.full((ctx.m,), 2.0, dtype=g.dtype, device=g.device)
        scale[0] = scale[-1] = 1.0
        return gs * scale, None


class FilterBankEnergy(Function):
    """power @ bank for spectrogram frames (T, F) and a filter bank (F, M)."""

    @staticmethod
    def forward(ctx, power, bank):
        ctx.save_for_backward(power, bank)
        return power @ bank

    @staticmethod
    def backward(ctx, g):
        power, bank = ctx.saved_tensors
        grad_power = g @ bank.t()
        grad_bank = power.t() @ g
        return grad_power, grad_bank


class CountMatmul(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten.mm.default
        return func(*args, **(kwargs or {}))


def fixed_bank_costs_the_same():
    out = FilterBankEnergy.apply(rnd(3, 4), rnd(4, 2, seed=1, grad=False))
    with CountMatmul() as mode:
        out.sum().backward()
    return mode.count == 2


CASES = [
    case("signal_rfft_hermitian", RealFFT, lambda: (rnd(2, 6, seed=1),),
         "The inverse real FFT counts the interior bins twice, which the adjoint of rfft must not."),
    case("signal_complex_gain_conj", ComplexGain, lambda: (rnd(3, 4, seed=2, dtype=C128), rnd(4, seed=3, dtype=C128)),
         "The gradient of the gain uses the spectrum without conjugation."),
    case("signal_circular_conv_adjoint", CircularConv, lambda: (rnd(2, 6, seed=4, dtype=F32), rnd(6, seed=5, dtype=F32)),
         "The input gradient convolves with the kernel where it should correlate (no conjugate)."),
    case("signal_one_pole_coefficient", OnePole, lambda: (rnd(2, 5, seed=6), ten(0.6)),
         "The coefficient gradient uses the direct cotangent and not the one accumulated through the recursion."),
    case("signal_frame_overlap", Frame, lambda: (rnd(8, seed=7), uni(4, seed=8, lo=.2, grad=False), 2),
         "Overlapping frames overwrite each other's gradient where they should add up."),
    case("signal_irfft_odd", InverseRealFFT, lambda: (rnd(2, 4, seed=9, dtype=C128),),
         "The last bin is counted once as for an even length, though with an odd length it has a mirror.", visible=False,
         elsewhere=lambda: (rnd(2, 4, seed=9, dtype=C128), 7), where="an odd output length n",
         twin=lambda s, n=None: torch.fft.irfft(s, n=n)),
    case("signal_filter_bank_needless", FilterBankEnergy, lambda: (rnd(3, 4, seed=10), rnd(4, 2, seed=11, grad=False)),
         "The gradient of the filter bank is computed although it is a constant and needs none.",
         kind="wasteful", visible=False, evidence=fixed_bank_costs_the_same),
]
