"""Audio and signal-processing operators."""
import math

import numpy as np
import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def _softmin3(a, b, c, gamma):
    z = np.array([-a, -b, -c]) / gamma
    peak = z.max()
    if not np.isfinite(peak):
        return np.inf
    return -gamma * (np.log(np.exp(z - peak).sum()) + peak)


class SoftDTW(Function):
    """Soft dynamic time warping of a cost matrix (n, m), computed in NumPy (Cuturi & Blondel)."""

    @staticmethod
    def forward(ctx, cost, gamma):
        if cost.dim() != 2:
            raise ValueError("cost must be a matrix")
        if gamma <= 0:
            raise ValueError("gamma must be positive")
        d = cost.detach().cpu().numpy().astype(np.float64)
        n, m = d.shape
        r = np.full((n + 1, m + 1), np.inf)
        r[0, 0] = 0.0
        for i in range(1, n + 1):
            for j in range(1, m + 1):
                r[i, j] = d[i - 1, j - 1] + _softmin3(r[i - 1, j], r[i, j - 1], r[i - 1, j - 1], gamma)
        ctx.save_for_backward(cost)
        ctx.table, ctx.gamma = r, gamma
        return cost.new_tensor(r[n, m])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (cost,) = ctx.saved_tensors
        d = cost.detach().cpu().numpy().astype(np.float64)
        r, gamma = ctx.table, ctx.gamma
        n, m = d.shape
        e = np.zeros((n + 2, m + 2))
        e[n, m] = 1.0
        for i in range(n, 0, -1):
            for j in range(m, 0, -1):
                if (i, j) == (n, m):
                    continue
                total = 0.0
                for di, dj in ((1, 0), (0, 1), (1, 1)):
                    p, q = i + di, j + dj
                    if p <= n and q <= m:
                        total += e[p, q] * math.exp((r[p, q] - r[i, j] - d[p - 1, q - 1]) / gamma)
                e[i, j] = total
        align = torch.from_numpy(e[1:n + 1, 1:m + 1].copy()).to(cost)
        return grad_output * align, None


def _extend(labels, blank):
    ext = [blank]
    for s in labels:
        ext += [int(s), blank]
    return ext


class CTCNegLogLikelihood(Function):
    """CTC loss of one utterance from log-probabilities (T, C), by forward-backward in log space."""

    @staticmethod
    def _recursion(lp, ext, blank):
        """Forward variables, including the emission at each step."""
        t_len, s_len = lp.shape[0], len(ext)
        alpha = np.full((t_len, s_len), -np.inf)
        alpha[0, 0] = lp[0, ext[0]]
        if s_len > 1:
            alpha[0, 1] = lp[0, ext[1]]
        for t in range(1, t_len):
            for s in range(s_len):
                acc = alpha[t - 1, s]
                if s >= 1:
                    acc = np.logaddexp(acc, alpha[t - 1, s - 1])
                if s >= 2 and ext[s] != blank and ext[s] != ext[s - 2]:
                    acc = np.logaddexp(acc, alpha[t - 1, s - 2])
                alpha[t, s] = acc + lp[t, ext[s]]
        return alpha

    @staticmethod
    def forward(ctx, log_probs, labels, blank):
        if log_probs.dim() != 2:
            raise ValueError("log_probs must be (T, C)")
        lp = log_probs.detach().cpu().numpy().astype(np.float64)
        ext = _extend(labels.tolist(), blank)
        alpha = CTCNegLogLikelihood._recursion(lp, ext, blank)
        loglik = np.logaddexp(alpha[-1, -1], alpha[-1, -2]) if len(ext) > 1 else alpha[-1, -1]
        if not np.isfinite(loglik):
            raise ValueError("the labels cannot be aligned with this many frames")
        if ctx.needs_input_grad[0]:
            beta = CTCNegLogLikelihood._recursion(lp[::-1], ext[::-1], blank)[::-1, ::-1]
            occupancy = np.zeros_like(lp)
            for s, k in enumerate(ext):
                occupancy[:, k] += np.exp(alpha[:, s] + beta[:, s] - lp[:, k] - loglik)
            ctx.save_for_backward(torch.from_numpy(-occupancy).to(log_probs))
        return log_probs.new_tensor(-loglik)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (grad,) = ctx.saved_tensors
        return grad_output * grad, None, None


class OnePoleFilter(Function):
    """y[t] = a * y[t-1] + x[t] along the last dim, zero initial state, scalar coefficient a.

    The backward filters the time-reversed gradient with the same Function, so it
    can itself be differentiated.
    """

    @staticmethod
    def forward(ctx, x, a):
        if a.dim() != 0:
            raise ValueError("the coefficient must be a 0-dim tensor")
        state = torch.zeros_like(x[..., 0])
        out = []
        for sample in x.unbind(-1):
            state = a * state + sample
            out.append(state)
        y = torch.stack(out, dim=-1)
        ctx.save_for_backward(a, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        a, y = ctx.saved_tensors
        grad_x = OnePoleFilter.apply(grad_output.flip(-1), a).flip(-1)
        grad_a = None
        if ctx.needs_input_grad[1]:
            grad_a = (grad_x[..., 1:] * y[..., :-1]).sum()
        return grad_x, grad_a


class PreEmphasis(Function):
    """y[t] = x[t] - coeff * x[t-1] (with x[-1] = 0) on waveforms (..., T)."""

    @staticmethod
    def forward(ctx, wave, coeff):
        ctx.coeff = float(coeff)
        y = wave.clone()
        y[..., 1:] -= ctx.coeff * wave[..., :-1]
        return y

    @staticmethod
    def backward(ctx, grad_output):
        shifted = torch.cat([grad_output[..., 1:], torch.zeros_like(grad_output[..., :1])], dim=-1)
        return grad_output - ctx.coeff * shifted, None


class FrameSignal(Function):
    """Slice (B, T) into overlapping frames (B, n, size); its adjoint is overlap-add."""

    @staticmethod
    def forward(ctx, signal, size, hop):
        if signal.dim() != 2 or signal.shape[1] < size:
            raise ValueError("signal must be (B, T) with T >= size")
        ctx.length, ctx.size, ctx.hop = signal.shape[1], size, hop
        return signal.unfold(1, size, hop).clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx, grad_output):
        return OverlapAdd.apply(grad_output, ctx.hop, ctx.length), None, None


class OverlapAdd(Function):
    """Sum frames (B, n, size) placed every ``hop`` samples into signals (B, length)."""

    @staticmethod
    def forward(ctx, frames, hop, length):
        b, n, size = frames.shape
        if (n - 1) * hop + size > length:
            raise ValueError("frames do not fit in the requested length")
        ctx.count, ctx.size, ctx.hop = n, size, hop
        out = frames.new_zeros(b, length)
        for i in range(n):
            out[:, i * hop:i * hop + size] += frames[:, i]
        return out

    @staticmethod
    def backward(ctx, grad_output):
        used = (ctx.count - 1) * ctx.hop + ctx.size
        return FrameSignal.apply(grad_output[:, :used], ctx.size, ctx.hop), None, None


def _dct_matrix(n, like):
    k = torch.arange(n, dtype=torch.float64)
    mat = torch.cos(math.pi / n * (k[None, :] + 0.5) * k[:, None]) * math.sqrt(2.0 / n)
    mat[0] /= math.sqrt(2.0)
    return mat.to(like)


class OrthonormalDCT(Function):
    """DCT-II (or its inverse, DCT-III) of the last dimension with orthonormal scaling."""

    @staticmethod
    def forward(ctx, x, inverse):
        mat = _dct_matrix(x.shape[-1], x)
        ctx.inverse = inverse
        return x @ (mat if inverse else mat.t())

    @staticmethod
    def backward(ctx, grad_output):
        return OrthonormalDCT.apply(grad_output, not ctx.inverse), None


def dct(x):
    return OrthonormalDCT.apply(x, False)


def idct(x):
    return OrthonormalDCT.apply(x, True)


class MuLawCompress(Function):
    """sign(x) * log(1 + mu |x|) / log(1 + mu) without quantisation."""

    @staticmethod
    def forward(x, mu):
        if mu <= 0:
            raise ValueError("mu must be positive")
        return torch.sign(x) * torch.log1p(mu * x.abs()) / math.log1p(mu)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, mu = inputs
        ctx.save_for_backward(x)
        ctx.mu = mu

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * ctx.mu / ((1 + ctx.mu * x.abs()) * math.log1p(ctx.mu)), None


class FFTConvolve(Function):
    """Circular convolution of (..., N) signals with one (N,) kernel through the FFT."""

    @staticmethod
    def forward(ctx, signal, kernel):
        n = signal.shape[-1]
        if kernel.shape != (n,):
            raise ValueError("kernel must have the length of the signal")
        ctx.save_for_backward(signal, kernel)
        return torch.fft.irfft(torch.fft.rfft(signal) * torch.fft.rfft(kernel), n=n)

    @staticmethod
    def backward(ctx, grad_output):
        signal, kernel = ctx.saved_tensors
        n = signal.shape[-1]
        g = torch.fft.rfft(grad_output)
        grad_signal = grad_kernel = None
        if ctx.needs_input_grad[0]:
            grad_signal = torch.fft.irfft(g * torch.fft.rfft(kernel).conj(), n=n)
        if ctx.needs_input_grad[1]:
            corr = torch.fft.irfft(g * torch.fft.rfft(signal).conj(), n=n)
            grad_kernel = corr.reshape(-1, n).sum(0)
        return grad_signal, grad_kernel


class HaarAnalysis(Function):
    """One level of the orthonormal Haar transform: (..., 2n) -> approximation, detail (..., n)."""

    @staticmethod
    def forward(ctx, x):
        if x.shape[-1] % 2:
            raise ValueError("the last dimension must be even")
        even, odd = x[..., 0::2], x[..., 1::2]
        s = math.sqrt(0.5)
        return (even + odd) * s, (even - odd) * s

    @staticmethod
    def backward(ctx, grad_approx, grad_detail):
        s = math.sqrt(0.5)
        pair = torch.stack([grad_approx + grad_detail, grad_approx - grad_detail], dim=-1) * s
        return pair.flatten(-2)


class AnalyticSignal(Function):
    """Hilbert analytic signal of real (..., N): a complex tensor whose real part is the input."""

    @staticmethod
    def _gain(n, device, dtype):
        h = torch.zeros(n, device=device, dtype=dtype)
        h[0] = 1
        h[1:(n + 1) // 2] = 2
        if n % 2 == 0:
            h[n // 2] = 1
        return h

    @staticmethod
    def forward(ctx, x):
        if x.is_complex():
            raise TypeError("expected a real signal")
        h = AnalyticSignal._gain(x.shape[-1], x.device, x.dtype)
        return torch.fft.ifft(torch.fft.fft(x) * h)

    @staticmethod
    def backward(ctx, grad_output):
        # The map is complex-linear on real input: the adjoint followed by the real part.
        h = AnalyticSignal._gain(grad_output.shape[-1], grad_output.device, grad_output.real.dtype)
        return torch.fft.ifft(torch.fft.fft(grad_output) * h).real


def _randn(*shape, seed=0, dtype=torch.float64):
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=gen, dtype=dtype)


CASES = [
    dict(name="soft_dtw", target=SoftDTW, inputs=lambda: (_randn(4, 5).abs().requires_grad_(), 0.5),
         declares={}, note="NumPy inside; once_differentiable; DP table kept as a NumPy array"),
    dict(name="ctc_nll", target=CTCNegLogLikelihood,
         inputs=lambda: (torch.log_softmax(_randn(6, 4), -1).requires_grad_(), torch.tensor([1, 2, 2]), 0),
         declares={}, note="gradient of the raw log-probs (not renormalised); precomputed only when needed"),
    dict(name="one_pole_filter", target=OnePoleFilter,
         inputs=lambda: (_randn(2, 6).requires_grad_(), torch.tensor(0.7, dtype=torch.float64, requires_grad=True)),
         declares={}, note="zero initial state; backward uses the Function itself so double backward is right"),
    dict(name="frame_signal", target=FrameSignal, inputs=lambda: (_randn(2, 11).requires_grad_(), 4, 3),
         declares={}, note="linear, tail samples dropped get zero gradient"),
    dict(name="orthonormal_dct", target=OrthonormalDCT, inputs=lambda: (_randn(3, 6).requires_grad_(), False),
         declares={}, note="orthonormal: adjoint is the inverse"),
    dict(name="fft_convolve", target=FFTConvolve,
         inputs=lambda: (_randn(2, 3, 7).requires_grad_(), _randn(7, seed=1).requires_grad_()),
         declares={}, note="circular convolution; odd length passes n"),
    dict(name="haar_analysis", target=HaarAnalysis, inputs=lambda: (_randn(3, 8).requires_grad_(),),
         declares={}, note="two outputs, orthonormal"),
    dict(name="analytic_signal", target=AnalyticSignal, inputs=lambda: (_randn(2, 8).requires_grad_(),),
         declares={}, note="real in, complex out"),
]

# Verified in the same way, but beyond the hundred.
EXTRA_CASES = [
    dict(name="pre_emphasis", target=PreEmphasis, inputs=lambda: (_randn(2, 9, dtype=torch.float32).requires_grad_(), 0.97),
         declares={}, note="linear"),
    dict(name="overlap_add", target=OverlapAdd, inputs=lambda: (_randn(2, 3, 4).requires_grad_(), 2, 9),
         declares={}, note="adjoint pair with frame_signal"),
    dict(name="mu_law_compress", target=MuLawCompress,
         inputs=lambda: (torch.tanh(_randn(3, 7)).requires_grad_(), 255.0),
         declares={}, note="setup_context"),
]
