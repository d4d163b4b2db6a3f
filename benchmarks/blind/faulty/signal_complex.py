"""Audio, spectral and complex-valued operators."""
import math
import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class PowerSpectrum(Function):
    """|rfft(x)|^2 along the last dim, one-sided."""

    @staticmethod
    def forward(ctx, x):
        spec = torch.fft.rfft(x)
        ctx.save_for_backward(x)
        return spec.real.square() + spec.imag.square()

    @staticmethod
    def backward(ctx, grad_output):
        x, = ctx.saved_tensors
        n = x.size(-1)
        spec = torch.fft.rfft(x)
        return torch.fft.irfft(2 * grad_output * spec, n=n) * n


class ModReLU(Function):
    """Complex ModReLU: relu(|z| + b) z / |z|, with one real bias for each channel."""

    @staticmethod
    def forward(ctx, z, bias):
        r = z.abs()
        ctx.save_for_backward(z, bias)
        scale = F.relu(r + bias) / r.clamp_min(1e-12)
        return z * scale

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        z, bias = ctx.saved_tensors
        r = z.abs()
        unit = z / r
        active = (r + bias) > 0
        radial = (grad_output * unit.conj()).real
        tangential = (grad_output * unit.conj()).imag
        gz = unit * (radial + 1j * tangential * (r + bias) / r)
        gz = torch.where(active, gz, torch.zeros_like(gz))
        gb = torch.where(active, radial, torch.zeros_like(radial))
        return gz, gb.reshape(-1, bias.numel()).sum(0)


class ComplexBilinear(Function):
    """Elementwise product of two complex spectra with a learned complex gain per bin."""

    @staticmethod
    def forward(ctx, spec, gain):
        if spec.size(-1) != gain.size(-1):
            raise ValueError("one gain for each frequency bin")
        ctx.save_for_backward(spec, gain)
        return spec * gain

    @staticmethod
    def backward(ctx, grad_output):
        spec, gain = ctx.saved_tensors
        grad_spec = grad_output * gain.conj()
        grad_gain = (grad_output * spec).reshape(-1, gain.size(-1)).sum(0)
        return grad_spec, grad_gain


class PreEmphasis(Function):
    """y[t] = x[t] - a x[t-1]; `a` is a number for the batch or one for each row (B, 1)."""

    @staticmethod
    def forward(ctx, x, a):
        ctx.save_for_backward(x, a)
        return torch.cat([x[..., :1], x[..., 1:] - a * x[..., :-1]], dim=-1)

    @staticmethod
    def backward(ctx, grad_output):
        x, a = ctx.saved_tensors
        g = grad_output
        grad_x = torch.cat([g[..., :-1] - a * g[..., 1:], g[..., -1:]], dim=-1)
        grad_a = -(g[..., 1:] * x[..., :-1]).sum().expand_as(a)
        return grad_x, grad_a


class LogMelFloor(Function):
    """log of a mel projection of power frames (T, F) x (F, M), floored at `floor`."""

    @staticmethod
    def forward(ctx, power, mel, floor=1e-5):
        m = power @ mel
        ctx.save_for_backward(power, mel)
        ctx.floor = floor
        return m.clamp_min(floor).log()

    @staticmethod
    def backward(ctx, grad_output):
        power, mel = ctx.saved_tensors
        m = (power @ mel).clamp_min(ctx.floor)
        g = grad_output / m
        grad_power = g @ mel.t() if ctx.needs_input_grad[0] else None
        grad_mel = power.t() @ g if ctx.needs_input_grad[1] else None
        return grad_power, grad_mel, None


class FFTCircularConv(Function):
    """Circular convolution along the last dim by the convolution theorem."""

    @staticmethod
    def forward(ctx, x, h):
        if x.size(-1) != h.size(-1):
            raise ValueError("x and h must have the same length")
        ctx.save_for_backward(x, h)
        n = x.size(-1)
        return torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(h), n=n)

    @staticmethod
    def backward(ctx, grad_output):
        x, h = ctx.saved_tensors
        G = torch.fft.rfft(grad_output)
        grad_x = torch.fft.irfft(G * torch.fft.rfft(h).conj())
        grad_h = torch.fft.irfft(G * torch.fft.rfft(x).conj())
        return grad_x, grad_h


class OnePoleIIR(Function):
    """y[t] = b x[t] + a y[t-1], the recursion of an exponential smoother."""

    @staticmethod
    def forward(ctx, x, a, b):
        y, ys = torch.zeros_like(x[..., 0]), []
        for t in range(x.size(-1)):
            y = b * x[..., t] + a * y
            ys.append(y)
        out = torch.stack(ys, -1)
        ctx.save_for_backward(x, a, b, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, a, b, out = ctx.saved_tensors
        lam, lams = torch.zeros_like(x[..., 0]), []
        for t in range(x.size(-1) - 1, -1, -1):
            lam = grad_output[..., t] + a * lam
            lams.append(lam)
        lam = torch.stack(lams[::-1], -1)
        grad_a = (lam * out).sum()
        grad_b = (lam * x).sum()
        return b * lam, grad_a.view_as(a), grad_b.view_as(b)


class MagPhase(Function):
    """Magnitude and phase of a complex spectrogram, with real cotangents for both."""

    @staticmethod
    def forward(ctx, spec, eps=1e-12):
        mag = spec.abs()
        phase = torch.atan2(spec.imag, spec.real)
        ctx.save_for_backward(spec)
        ctx.eps = eps
        return mag, phase

    @staticmethod
    def backward(ctx, grad_mag, grad_phase):
        spec, = ctx.saved_tensors
        re, im = spec.real, spec.imag
        sq = (re * re + im * im).clamp_min(ctx.eps)
        r = sq.sqrt()
        g_re = grad_mag * re / r + grad_phase * im / sq
        g_im = grad_mag * im / r + grad_phase * re / sq
        return torch.complex(g_re, g_im), None


class NormalisedFFT(Function):
    """Complex FFT with a choice of normalisation ("backward" or "ortho")."""

    @staticmethod
    def forward(ctx, z, norm="backward"):
        if norm not in ("backward", "ortho"):
            raise ValueError(f"norm {norm!r} is not supported")
        ctx.norm = norm
        return torch.fft.fft(z, norm=norm)

    @staticmethod
    def backward(ctx, grad_output):
        n = grad_output.size(-1)
        return torch.fft.ifft(grad_output) * n, None


class OverlapAdd(Function):
    """Adds windowed frames (B, T, L) at the given hop into signals of length (T-1) hop + L."""

    @staticmethod
    def forward(ctx, frames, window, hop):
        b, t, length = frames.shape
        windowed = frames * window
        total = (t - 1) * hop + length
        out = F.fold(windowed.transpose(1, 2), (1, total), (1, length), stride=(1, hop))
        ctx.save_for_backward(frames, window, windowed, out)
        ctx.hop, ctx.length = hop, length
        return out.view(b, total)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        frames, window, windowed, out = ctx.saved_tensors
        g = grad_output.unfold(-1, ctx.length, ctx.hop)
        grad_frames = g * window
        grad_window = (g * frames).sum((0, 1)) if ctx.needs_input_grad[1] else None
        return grad_frames, grad_window, None


# ------------------------------------------------------------------ tests ---

def _t(seed, *shape, grad=True, dtype=torch.float64, scale=1.0):
    gen = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=gen, dtype=dtype) * scale).requires_grad_(grad)


def _u(seed, *shape, grad=True, dtype=torch.float64, lo=0.1, hi=0.9):
    gen = torch.Generator().manual_seed(seed)
    return (torch.rand(*shape, generator=gen, dtype=dtype) * (hi - lo) + lo).requires_grad_(grad)


def _i(seed, high, *shape):
    gen = torch.Generator().manual_seed(seed)
    return torch.randint(0, high, shape, generator=gen)


def _fn(target):
    return target.apply if isinstance(target, type) else target


def _copy(args):
    return [a.detach().clone().requires_grad_(a.requires_grad) if torch.is_tensor(a) else a for a in args]


def _outs(out):
    return list(out) if isinstance(out, (tuple, list)) else [out]


def _isf(o):
    return torch.is_tensor(o) and (o.is_floating_point() or o.is_complex())


def _cots(outs, seed=7):
    gen = torch.Generator().manual_seed(seed)
    return [torch.randn(o.shape, generator=gen, dtype=o.dtype) for o in outs]


def _grads(target, args, keep=None, cots=None):
    """Reverse-mode gradients; keep = indices of the outputs that get a cotangent."""
    xs = _copy(args)
    torch.manual_seed(11)
    outs = _outs(_fn(target)(*xs))
    if keep is None:
        keep = [k for k, o in enumerate(outs) if _isf(o) and o.requires_grad]
    picked = [outs[k] for k in keep]
    if cots is None:
        cots = _cots(picked)
    wrt = [x for x in xs if torch.is_tensor(x) and x.requires_grad]
    got = torch.autograd.grad(picked, wrt, [c.clone() for c in cots], allow_unused=True)
    return [torch.zeros_like(x) if g is None else g.detach().clone() for g, x in zip(got, wrt)], keep, cots


def _numeric(target, args, keep, cots, eps=1e-6):
    def value(xs):
        torch.manual_seed(11)
        with torch.no_grad():
            outs = _outs(_fn(target)(*_copy(xs)))
        total = 0.0
        for k, c in zip(keep, cots):
            total += (outs[k] * c.conj()).sum().real.item()
        return total
    res = []
    for n, a in enumerate(args):
        if not (torch.is_tensor(a) and a.requires_grad):
            continue
        base = a.detach().clone()
        cplx = base.is_complex()
        real = torch.view_as_real(base).clone() if cplx else base.clone()
        out = torch.zeros(real.numel(), dtype=real.dtype)
        for j in range(real.numel()):
            vals = []
            for sgn in (1, -1):
                p = real.clone().contiguous()
                p.view(-1)[j] += sgn * eps
                xs = list(args)
                xs[n] = (torch.view_as_complex(p) if cplx else p).requires_grad_(True)
                vals.append(value(xs))
            out[j] = (vals[0] - vals[1]) / (2 * eps)
        out = out.view(real.shape)
        res.append(torch.view_as_complex(out) if cplx else out)
    return res


def _agrees(target, args, ref=None, keep=None, cots=None, tol=1e-5):
    got, keep, cots = _grads(target, args, keep, cots)
    want = _grads(ref, args, keep, cots)[0] if ref is not None else _numeric(target, args, keep, cots)
    return all(g.shape == w.shape and torch.allclose(g, w.to(g.dtype), rtol=tol, atol=tol) for g, w in zip(got, want))


def _wrong(target, args, ref=None, **kw):
    return not _agrees(target, args, ref, **kw)


def _second_ok(target, args):
    return torch.autograd.gradgradcheck(_fn(target), tuple(_copy(args)), raise_exception=False)


def _raises(target, args, **kw):
    try:
        _grads(target, args, **kw)
    except Exception:
        return True
    return False


def _ops(call, name):
    """How often the aten operator `name` runs inside call()."""
    from torch.utils._python_dispatch import TorchDispatchMode
    seen = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with Count():
        call()
    return sum(1 for n in seen if n == name)


def _saved_numel(out):
    return [t.numel() for t in out.grad_fn.saved_tensors if t is not None]


def _c(seed, *shape):
    return _t(seed, *shape, dtype=torch.complex128)


def _s(v):
    return torch.tensor(v, dtype=torch.float64, requires_grad=True)


def _ev_modrelu():
    z = _c(0, 3, 4).detach()
    z[0, 0] = 0
    g = _grads(ModReLU, (z.requires_grad_(), _u(1, 4)))[0]
    return bool(torch.isnan(torch.view_as_real(g[0])).any() or torch.isnan(g[1]).any())


def _pre_in():
    return (_t(0, 2, 6), _s(0.97))


def _mel_in():
    return (_u(0, 3, 5), _u(1, 5, 4))


def _ev_mel():
    p, m = _mel_in()
    p = p.detach().clone()
    p[1] = 1e-8
    return _wrong(LogMelFloor, (p.requires_grad_(), m), keep=[0], cots=[torch.ones(3, 4, dtype=torch.float64)])


def _iir_in():
    return (_t(0, 2, 7), _s(0.6), _s(0.4))


def _ola_in():
    return (_t(0, 2, 4, 6), torch.hann_window(6, dtype=torch.float64).requires_grad_(), 3)


CASES = [
    dict(name="power_spectrum", target=PowerSpectrum, inputs=lambda: (_t(0, 2, 8),),
         fault="irfft doubles the interior bins of the one-sided spectrum, which have one cotangent each: those bins' gradient is twice too large",
         kind="wrong", visible=True, evidence=lambda: _wrong(PowerSpectrum, (_t(0, 2, 8),))),
    dict(name="mod_relu", target=ModReLU, inputs=lambda: (_c(0, 3, 4), _t(1, 4, scale=0.3)),
         fault="z / |z| without guard in backward: NaN gradient at z = 0",
         kind="wrong", visible=False, evidence=_ev_modrelu),
    dict(name="complex_gain", target=ComplexBilinear, inputs=lambda: (_c(0, 3, 5), _c(1, 5)),
         fault="missing conjugate of spec in the gradient of the gain",
         kind="wrong", visible=True, evidence=lambda: _wrong(ComplexBilinear, (_c(0, 3, 5), _c(1, 5)))),
    dict(name="pre_emphasis", target=PreEmphasis, inputs=_pre_in,
         fault="the coefficient's gradient is summed over everything and expanded; wrong for one coefficient per row",
         kind="wrong", visible=False, evidence=lambda: _wrong(PreEmphasis, (_t(0, 2, 6), _u(1, 2, 1)))),
    dict(name="log_mel_floor", target=LogMelFloor, inputs=_mel_in,
         fault="no mask of the floored bins: where the floor is active forward is constant but backward gives g / floor",
         kind="wrong", visible=False, evidence=_ev_mel),
    dict(name="fft_circular_conv", target=FFTCircularConv, inputs=lambda: (_t(0, 2, 8), _t(1, 2, 8)),
         fault="irfft without n in backward: for odd lengths the gradient has one sample too few and backward raises",
         kind="fragile", visible=False, evidence=lambda: _raises(FFTCircularConv, (_t(0, 2, 7), _t(1, 2, 7)))),
    dict(name="one_pole_iir", target=OnePoleIIR, inputs=_iir_in,
         fault="the gradient of a pairs lambda[t] with y[t] instead of y[t-1]",
         kind="wrong", visible=True, evidence=lambda: _wrong(OnePoleIIR, _iir_in())),
    dict(name="mag_phase", target=MagPhase, inputs=lambda: (_c(0, 3, 4),),
         fault="sign of the phase gradient in the real part is wrong (should be -im / |z|^2)",
         kind="wrong", visible=True, evidence=lambda: _wrong(MagPhase, (_c(0, 3, 4),))),
    dict(name="normalised_fft", target=NormalisedFFT, inputs=lambda: (_c(0, 2, 6),),
         fault="backward ignores norm: with norm='ortho' the gradient is sqrt(n) too large",
         kind="wrong", visible=False, evidence=lambda: _wrong(NormalisedFFT, (_c(0, 2, 6), "ortho"))),
    dict(name="overlap_add", target=OverlapAdd, inputs=_ola_in,
         fault="saves the windowed frames and the output, which backward never uses",
         kind="wasteful", visible=False,
         evidence=lambda: sum(_saved_numel(OverlapAdd.apply(*_ola_in()))) > 2 * 48),
]
