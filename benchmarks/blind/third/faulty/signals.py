"""Signal processing: FFT filters, framing, wavelets, recursive filters."""
from support import *


class FFTConv(Function):
    """Circular convolution of (N, L) with one kernel of length L through the FFT."""

    @staticmethod
    def forward(ctx, x, kernel):
        ctx.save_for_backward(x, kernel)
        n = x.size(-1)
        return torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(kernel), n=n)

    @staticmethod
    def backward(ctx, grad_output):
        x, kernel = ctx.saved_tensors
        n = x.size(-1)
        g = torch.fft.rfft(grad_output)
        gx = gk = None
        if ctx.needs_input_grad[0]:
            gx = torch.fft.irfft(g * torch.fft.rfft(kernel), n=n)
        if ctx.needs_input_grad[1]:
            gk = torch.fft.irfft(g * torch.fft.rfft(x).conj(), n=n).sum(0)
        return gx, gk


class STFTMagnitude(Function):
    """Magnitude of the Fourier transform of non-overlapping frames."""

    @staticmethod
    def forward(ctx, x, width):
        spec = torch.fft.fft(x.unflatten(-1, (-1, width)))
        ctx.width = width
        ctx.save_for_backward(x)
        return spec.abs()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, = ctx.saved_tensors
        spec = torch.fft.fft(x.unflatten(-1, (-1, ctx.width)))
        phase = spec / spec.abs()
        g = torch.fft.ifft(grad_output * phase).real * ctx.width
        return g.flatten(-2), None


class UpFirDn1d(Function):
    """Pads (N, L) by (left, right), filters with a constant kernel and keeps every
    ``down``-th sample."""

    @staticmethod
    @amp_fwd
    def forward(ctx, x, kernel, left, right, down):
        ctx.save_for_backward(kernel)
        ctx.args = x.size(-1), left, right, down
        y = F.conv1d(F.pad(x, (left, right))[:, None], kernel.flip(0)[None, None])[:, 0]
        return y[:, ::down]

    @staticmethod
    @amp_bwd
    def backward(ctx, grad_output):
        kernel, = ctx.saved_tensors
        n, left, right, down = ctx.args
        full = grad_output.new_zeros(grad_output.size(0), n + left + right - kernel.numel() + 1)
        full[:, ::down] = grad_output
        k = kernel.numel() - 1
        g = F.conv1d(F.pad(full, (k, k))[:, None], kernel[None, None])[:, 0]
        return g[:, right:right + n], None, None, None, None


def upfirdn(x, left=1, right=1, down=2):
    """Binomial filter of four taps."""
    kernel = torch.tensor([1.0, 3.0, 3.0, 1.0], dtype=x.dtype, device=x.device) / 8
    return UpFirDn1d.apply(x, kernel, left, right, down)


class OnePole(Function):
    """y[t] = x[t] + a y[t-1] along the last dimension of (N, T)."""

    @staticmethod
    def forward(ctx, x, a):
        y, out = torch.zeros_like(x[:, 0]), []
        for t in range(x.size(1)):
            y = x[:, t] + a * y
            out.append(y)
        out = torch.stack(out, 1)
        ctx.save_for_backward(out, a)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        y, a = ctx.saved_tensors
        g, out = torch.zeros_like(grad_output[:, 0]), []
        for t in range(y.size(1) - 1, -1, -1):
            g = grad_output[:, t] + a * g
            out.append(g)
        gx = torch.stack(out[::-1], 1)
        ga = (gx * y).sum().view_as(a) if ctx.needs_input_grad[1] else None
        return gx, ga


class OverlapAdd(Function):
    """Overlap-add of frames (F, W) with hop H to a signal of (F - 1) H + W samples."""

    @staticmethod
    def forward(ctx, frames, hop):
        count, width = frames.shape
        ctx.args = count, width, hop
        out = frames.new_zeros((count - 1) * hop + width)
        for i in range(count):
            out[i * hop:i * hop + width] += frames[i]
        return out

    @staticmethod
    def backward(ctx, grad_output):
        count, width, hop = ctx.args
        return grad_output.as_strided((count, width), (hop, 1)).clone(), None


def _overlap_cotangent():
    x = randn(3, 4)
    y = OverlapAdd.apply(x, 2)
    pair = randn(8, 2, grad=False)
    g, = torch.autograd.grad(y, x, pair[:, 0], retain_graph=True)
    h, = torch.autograd.grad(y, x, pair[:, 0].contiguous())
    return not close(g, h)


class HaarSplit(Function):
    """One level of the Haar transform; an odd signal is extended by its last sample."""

    @staticmethod
    def forward(ctx, x):
        ctx.n = x.size(-1)
        if ctx.n % 2:
            x = torch.cat([x, x[..., -1:]], -1)
        a, b = x[..., ::2], x[..., 1::2]
        return (a + b) * 0.5 ** 0.5, (a - b) * 0.5 ** 0.5

    @staticmethod
    def backward(ctx, grad_low, grad_high):
        a = (grad_low + grad_high) * 0.5 ** 0.5
        b = (grad_low - grad_high) * 0.5 ** 0.5
        return torch.stack([a, b], -1).flatten(-2)[..., :ctx.n]


class MedianFilter(Function):
    """Running median of width three, the ends being left out."""

    @staticmethod
    def forward(ctx, x):
        win = x.unfold(-1, 3, 1)
        out = win.median(-1)[0]
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx, grad_output):
        x, out = ctx.saved_tensors
        hit = (x.unfold(-1, 3, 1) == out.unsqueeze(-1)).to(grad_output.dtype)
        g = hit * grad_output.unsqueeze(-1)
        n = out.size(-1)
        return sum(F.pad(g[..., i], (i, x.size(-1) - n - i)) for i in range(3))


class PowerSpectrum(Function):
    """|rfft(x)|^2; supports forward mode."""

    @staticmethod
    def forward(x):
        s = torch.fft.fft(x)
        return s.real ** 2 + s.imag ** 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx, grad_output):
        x, = ctx.saved_tensors
        return 2 * torch.fft.ifft(grad_output * torch.fft.fft(x)).real * x.size(-1)

    @staticmethod
    def jvp(ctx, tx):
        x, = ctx.saved_tensors
        s, t = torch.fft.fft(x), torch.fft.fft(tx)
        return s.real * t.real + s.imag * t.imag


def _power_jvp():
    import torch.autograd.forward_ad as fwad
    x, v = randn(5, grad=False), randn(5, seed=1, grad=False)
    with fwad.dual_level():
        t = fwad.unpack_dual(PowerSpectrum.apply(fwad.make_dual(x, v))).tangent
    want = (PowerSpectrum.apply(x + 1e-6 * v) - PowerSpectrum.apply(x - 1e-6 * v)) / 2e-6
    return not close(t, want)


class CircularShift(Function):
    """Rolls the last dimension by a whole number of samples."""

    @staticmethod
    def forward(x, shift):
        return torch.roll(x, shift, -1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.shift = inputs[1]

    @staticmethod
    def backward(ctx, grad_output):
        return CircularShift.apply(grad_output, -ctx.shift), None

    @staticmethod
    def vmap(info, in_dims, x, shift):
        return CircularShift.apply(x, shift), in_dims[0]


def _shift_vmap():
    x = randn(4, 3, grad=False)
    want = torch.stack([CircularShift.apply(x[:, i], 1) for i in range(3)])
    return not close(torch.vmap(lambda t: CircularShift.apply(t, 1), in_dims=1)(x), want)


CASES = [
    {"name": "fft_conv_conjugate", "target": FFTConv, "inputs": lambda: (randn(2, 5), randn(5, seed=1)),
     "fault": "The input gradient multiplies by the spectrum of the kernel, not by its conjugate.",
     "kind": "wrong", "visible": True, "evidence": lambda: wrong_first(FFTConv, (randn(2, 5), randn(5, seed=1)))},
    {"name": "stft_magnitude_silence", "target": STFTMagnitude, "inputs": lambda: (randn(2, 8), 4),
     "fault": "A silent frame has a NaN gradient (0 / 0 in the phase).",
     "kind": "wrong", "visible": False,
     "evidence": lambda: bool(torch.isnan(analytic(STFTMagnitude, (tensor([0.0] * 4 + [1.0, 2.0, 0.0, 4.0]), 4))[0][0][:4]).all())},
    {"name": "upfirdn_asymmetric_padding", "target": upfirdn, "inputs": lambda: (randn(2, 7),),
     "fault": "backward crops the right padding from the left end, wrong unless the two are equal.",
     "kind": "wrong", "visible": False, "evidence": lambda: wrong_first(upfirdn, (randn(1, 6), 2, 1, 1))},
    {"name": "one_pole_delay", "target": OnePole, "inputs": lambda: (randn(2, 5), tensor(0.7)),
     "fault": "The coefficient's gradient pairs the adjoint with y[t], not with y[t-1].",
     "kind": "wrong", "visible": True, "evidence": lambda: wrong_first(OnePole, (randn(1, 4), tensor(0.7)))},
    {"name": "overlap_add_strided_cotangent", "target": OverlapAdd, "inputs": lambda: (randn(3, 4), 2),
     "fault": "backward uses as_strided on grad_output as if it were contiguous.",
     "kind": "fragile", "visible": False, "evidence": _overlap_cotangent},
    {"name": "haar_split_odd_length", "target": HaarSplit, "inputs": lambda: (randn(2, 6),),
     "fault": "For odd lengths the gradient of the repeated last sample is cut off, not added.",
     "kind": "wrong", "visible": False, "evidence": lambda: wrong_first(HaarSplit, (randn(1, 5),))},
    {"name": "median_filter_ties", "target": MedianFilter, "inputs": lambda: (randn(2, 6),),
     "fault": "Every window entry equal to the median gets the full gradient, so flat signals get a multiple.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: analytic(MedianFilter, (torch.ones(3, dtype=f64).requires_grad_(),), [torch.ones(1, dtype=f64)])[0][0].sum().item() == 3.0},
    {"name": "power_spectrum_jvp_factor", "target": PowerSpectrum, "inputs": lambda: (randn(2, 5),),
     "fault": "The forward-mode rule lacks the factor two.",
     "kind": "wrong", "visible": False, "evidence": _power_jvp},
    {"name": "circular_shift_vmap_dim", "target": CircularShift, "inputs": lambda: (randn(2, 5), 2),
     "fault": "The vmap rule does not move the batch dimension, so it rolls along the batch if that is last.",
     "kind": "wrong", "visible": False, "evidence": _shift_vmap},
]
