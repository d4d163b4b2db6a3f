"""Physics kernels, complex-valued layers and operators registered with torch.library."""
import math

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
import torch.nn.functional as F


class LennardJonesEnergy(Function):
    """Total Lennard-Jones energy of positions (n, 3) over a pair list (2, P).

    The gradient is the negative force, accumulated over the pairs.
    """

    @staticmethod
    def forward(ctx, positions, pairs, epsilon, sigma):
        if pairs.shape[0] != 2:
            raise ValueError("pairs must be (2, P)")
        ctx.save_for_backward(positions, pairs)
        ctx.epsilon, ctx.sigma = epsilon, sigma
        r2 = (positions[pairs[0]] - positions[pairs[1]]).pow(2).sum(-1)
        s6 = (sigma * sigma / r2).pow(3)
        return 4 * epsilon * (s6 * s6 - s6).sum()

    @staticmethod
    def backward(ctx, grad_output):
        positions, pairs = ctx.saved_tensors
        i, j = pairs
        diff = positions[i] - positions[j]
        r2 = diff.pow(2).sum(-1, keepdim=True)
        s6 = (ctx.sigma ** 2 / r2).pow(3)
        pull = grad_output * 24 * ctx.epsilon * (s6 - 2 * s6 * s6) / r2 * diff
        grad = torch.zeros_like(positions).index_add(0, i, pull).index_add(0, j, -pull)
        return grad, None, None, None


class KeplerSolve(Function):
    """Eccentric anomaly E with E - e sin E = M, by Newton's method, for 0 <= e < 1."""

    @staticmethod
    def forward(ctx, mean_anomaly, eccentricity, iters=50):
        if mean_anomaly.shape != eccentricity.shape:
            raise ValueError("shapes must match")
        if bool((eccentricity < 0).any()) or bool((eccentricity >= 1).any()):
            raise ValueError("eccentricity must be in [0, 1)")
        # Danby's starter
        e_anom = mean_anomaly + 0.85 * eccentricity * torch.sign(torch.sin(mean_anomaly))
        for _ in range(iters):
            f = e_anom - eccentricity * torch.sin(e_anom) - mean_anomaly
            e_anom = e_anom - f / (1 - eccentricity * torch.cos(e_anom))
        ctx.save_for_backward(eccentricity, e_anom)
        return e_anom

    @staticmethod
    def backward(ctx, grad_output):
        eccentricity, e_anom = ctx.saved_tensors
        v = grad_output / (1 - eccentricity * torch.cos(e_anom))
        return v, v * torch.sin(e_anom) if ctx.needs_input_grad[1] else None, None


def _thomas(lower, diag, upper, rhs):
    n = len(diag)
    c, d = np.zeros(n), np.zeros(n)
    c[0], d[0] = upper[0] / diag[0] if n > 1 else 0.0, rhs[0] / diag[0]
    for i in range(1, n):
        m = diag[i] - lower[i - 1] * c[i - 1]
        if i < n - 1:
            c[i] = upper[i] / m
        d[i] = (rhs[i] - lower[i - 1] * d[i - 1]) / m
    x = d.copy()
    for i in range(n - 2, -1, -1):
        x[i] -= c[i] * x[i + 1]
    return x


class TridiagonalSolve(Function):
    """Solve a diagonally dominant tridiagonal system with the Thomas algorithm in NumPy.

    lower, upper: (n - 1,); diag, rhs: (n,).
    """

    @staticmethod
    def forward(ctx, lower, diag, upper, rhs):
        n = diag.numel()
        if lower.numel() != n - 1 or upper.numel() != n - 1 or rhs.numel() != n:
            raise ValueError("inconsistent band lengths")
        bands = [t.detach().cpu().numpy().astype(np.float64) for t in (lower, diag, upper, rhs)]
        x = torch.from_numpy(_thomas(*bands)).to(rhs)
        ctx.save_for_backward(lower, diag, upper, x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        lower, diag, upper, x = ctx.saved_tensors
        lo, di, up, g = [t.detach().cpu().numpy().astype(np.float64) for t in (lower, diag, upper, grad_output)]
        lam = torch.from_numpy(_thomas(up, di, lo, g)).to(x)
        return -lam[1:] * x[:-1], -lam * x, -lam[:-1] * x[1:], lam


class PeriodicPoisson(Function):
    """Solve -u'' = f - mean(f) with zero-mean u on a periodic grid (..., N), spectrally.

    The operator is real and self-adjoint, so the backward is the operator itself.
    """

    @staticmethod
    def forward(ctx, f, length):
        if length <= 0:
            raise ValueError("length must be positive")
        ctx.length = length
        n = f.shape[-1]
        k = 2 * math.pi / length * torch.arange(n // 2 + 1, device=f.device, dtype=f.dtype)
        inv = torch.zeros_like(k)
        inv[1:] = 1 / (k[1:] * k[1:])
        return torch.fft.irfft(torch.fft.rfft(f) * inv, n=n)

    @staticmethod
    def backward(ctx, grad_output):
        return PeriodicPoisson.apply(grad_output, ctx.length), None


class LogBesselI0(Function):
    """log I0(kappa), the normaliser of a von Mises distribution, for kappa > 0."""

    @staticmethod
    def forward(ctx, kappa):
        ctx.save_for_backward(kappa)
        return torch.log(torch.special.i0e(kappa)) + kappa.abs()

    @staticmethod
    def backward(ctx, grad_output):
        (kappa,) = ctx.saved_tensors
        return grad_output * torch.special.i1e(kappa) / torch.special.i0e(kappa)


class ModReLU(Function):
    """Complex modReLU: z * relu(|z| + b) / |z| with a real bias per feature."""

    @staticmethod
    def forward(ctx, z, bias):
        if not z.is_complex() or bias.is_complex():
            raise TypeError("z must be complex and bias real")
        if bias.shape != z.shape[-1:]:
            raise ValueError("bias must have one entry per feature")
        ctx.save_for_backward(z, bias)
        r = z.abs()
        safe = torch.where(r > 0, r, torch.ones_like(r))
        return z * (torch.relu(r + bias) / safe)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        z, bias = ctx.saved_tensors
        r = z.abs()
        safe = torch.where(r > 0, r, torch.ones_like(r))
        unit = z / safe
        active = (r + bias > 0).to(r.dtype)
        radial = (grad_output * unit.conj()).real
        grad_z = grad_bias = None
        if ctx.needs_input_grad[0]:
            # radial part has slope 1, the tangential part slope (r + b) / r
            tangential = grad_output - radial * unit
            grad_z = active * (radial * unit + tangential * ((r + bias) / safe))
        if ctx.needs_input_grad[1]:
            grad_bias = (active * radial).reshape(-1, bias.shape[0]).sum(0)
        return grad_z, grad_bias


class ComplexLinear(Function):
    """Complex matrix product x @ W with conjugate-transposed gradients."""

    @staticmethod
    def forward(ctx, x, weight):
        if x.dtype != weight.dtype or not x.is_complex():
            raise TypeError("x and weight must share a complex dtype")
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        grad_x = grad_output @ weight.mH if ctx.needs_input_grad[0] else None
        grad_w = x.mH @ grad_output if ctx.needs_input_grad[1] else None
        return grad_x, grad_w


@torch.library.custom_op("blindsound::np_sinc", mutates_args=())
def np_sinc(x: torch.Tensor) -> torch.Tensor:
    """sin(x) / x evaluated with NumPy."""
    a = x.detach().cpu().numpy()
    return torch.from_numpy(np.asarray(np.sinc(a / np.pi), dtype=a.dtype).copy()).to(x.device)


@np_sinc.register_fake
def _(x):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _np_sinc_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])


def _np_sinc_backward(ctx, grad):
    (x,) = ctx.saved_tensors
    small = x.abs() < 0.1
    safe = torch.where(small, torch.ones_like(x), x)
    exact = (torch.cos(safe) - torch.sin(safe) / safe) / safe
    x2 = x * x
    series = x * (-1 / 3 + x2 * (1 / 30 + x2 * (-1 / 840 + x2 * (1 / 45360 - x2 / 3991680))))
    return grad * torch.where(small, series, exact)


np_sinc.register_autograd(_np_sinc_backward, setup_context=_np_sinc_setup)


@torch.library.custom_op("blindsound::bias_gelu", mutates_args=())
def bias_gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """gelu(x + bias), tanh approximation, bias over the last dimension."""
    if bias.dim() != 1 or bias.shape[0] != x.shape[-1]:
        raise ValueError("bias must match the last dimension of x")
    return F.gelu(x + bias, approximate="tanh")


@bias_gelu.register_fake
def _(x, bias):
    return torch.empty_like(x + bias)


def _bias_gelu_setup(ctx, inputs, output):
    x, bias = inputs
    ctx.save_for_backward(x, bias)


def _bias_gelu_backward(ctx, grad):
    x, bias = ctx.saved_tensors
    u = x + bias
    c = math.sqrt(2 / math.pi)
    t = torch.tanh(c * (u + 0.044715 * u.pow(3)))
    d = 0.5 * (1 + t) + 0.5 * u * (1 - t * t) * c * (1 + 3 * 0.044715 * u * u)
    g = grad * d
    grad_bias = g.reshape(-1, bias.shape[0]).sum(0) if ctx.needs_input_grad[1] else None
    return g if ctx.needs_input_grad[0] else None, grad_bias


bias_gelu.register_autograd(_bias_gelu_backward, setup_context=_bias_gelu_setup)


@torch.library.custom_op("blindsound::topk_pool", mutates_args=())
def topk_pool(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean of the k largest entries of each row, and their positions."""
    values, index = x.topk(k, dim=-1)
    return values.mean(-1), index


@topk_pool.register_fake
def _(x, k):
    return x.new_empty(x.shape[:-1]), x.new_empty((*x.shape[:-1], k), dtype=torch.int64)


def _topk_pool_setup(ctx, inputs, output):
    x, k = inputs
    _, index = output
    ctx.mark_non_differentiable(index)
    ctx.save_for_backward(index)
    ctx.in_shape, ctx.k = x.shape, k


def _topk_pool_backward(ctx, grad_mean, _grad_index):
    (index,) = ctx.saved_tensors
    share = (grad_mean / ctx.k).unsqueeze(-1).expand(index.shape)
    return grad_mean.new_zeros(ctx.in_shape).scatter(-1, index, share), None


topk_pool.register_autograd(_topk_pool_backward, setup_context=_topk_pool_setup)


def _randn(*shape, seed=0, dtype=torch.float64):
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=gen, dtype=dtype)


def _atoms():
    base = torch.tensor([[0., 0., 0.], [1.2, 0., 0.], [0., 1.3, 0.], [0.2, 0.1, 1.4]], dtype=torch.float64)
    return (base + 0.05 * _randn(4, 3)).requires_grad_(), torch.tensor([[0, 0, 0, 1, 1, 2], [1, 2, 3, 2, 3, 3]]), 0.8, 1.0


CASES = [
    dict(name="lennard_jones_energy", target=LennardJonesEnergy, inputs=_atoms,
         declares={}, note="pair list; double backward (Hessian) right"),
    dict(name="kepler_solve", target=KeplerSolve,
         inputs=lambda: (torch.linspace(0.2, 2.9, 6, dtype=torch.float64).requires_grad_(),
                         torch.tensor([0.05, 0.1, 0.3, 0.5, 0.2, 0.7], dtype=torch.float64).requires_grad_()),
         declares={}, note="implicit function theorem; saves output, double backward right"),
    dict(name="tridiagonal_solve", target=TridiagonalSolve,
         inputs=lambda: (_randn(4).requires_grad_(), (4 + _randn(5, seed=1).abs()).requires_grad_(), _randn(4, seed=2).requires_grad_(), _randn(5, seed=3).requires_grad_()),
         declares={}, note="NumPy Thomas solver forward and transposed backward; once_differentiable"),
    dict(name="periodic_poisson", target=PeriodicPoisson, inputs=lambda: (_randn(2, 8).requires_grad_(), 2.0),
         declares={}, note="self-adjoint linear operator; backward applies itself"),
    dict(name="log_bessel_i0", target=LogBesselI0, inputs=lambda: ((_randn(3, 4).abs() * 3 + 0.2).requires_grad_(),),
         declares={}, note="i1e/i0e gradient, differentiable"),
    dict(name="mod_relu", target=ModReLU,
         inputs=lambda: (torch.complex(_randn(4, 3), _randn(4, 3, seed=1)).requires_grad_(), (0.3 * _randn(3, seed=2) - 0.3).requires_grad_()),
         declares={}, note="complex input, real bias; once_differentiable"),
    dict(name="complex_linear", target=ComplexLinear,
         inputs=lambda: (torch.complex(_randn(3, 4), _randn(3, 4, seed=1)).requires_grad_(), torch.complex(_randn(4, 2, seed=2), _randn(4, 2, seed=3)).requires_grad_()),
         declares={}, note="conjugate-transposed gradients in torch's convention"),
    dict(name="np_sinc_op", target=np_sinc, inputs=lambda: (_randn(3, 5).requires_grad_(),),
         declares={}, note="custom_op with NumPy; series near zero in the backward"),
    dict(name="bias_gelu_op", target=bias_gelu,
         inputs=lambda: (_randn(2, 3, 4).requires_grad_(), _randn(4, seed=1).requires_grad_()),
         declares={}, note="custom_op with register_autograd; gelu tanh"),
    dict(name="topk_pool_op", target=topk_pool, inputs=lambda: (_randn(3, 6).requires_grad_(), 2),
         declares={}, note="custom_op with an integer output marked non-differentiable"),
]
