"""Samplers, NumPy and thread wrappers, gradient modifiers, mixed precision."""
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import torch
import torch.nn.functional as F
from torch.amp import custom_bwd, custom_fwd
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from support import case, rand, uniform, integers, real_floating, same_shape


class HardGumbelSoftmax(Function):
    """One-hot sample of logits along the last axis; backward is that of the tempered softmax it came from."""

    @staticmethod
    def forward(ctx, logits, tau=1.0, seed=0):
        real_floating("HardGumbelSoftmax", logits)
        if logits.dim() == 0 or logits.shape[-1] == 0 or not tau > 0:
            raise ValueError("HardGumbelSoftmax: a non-empty last axis and tau > 0 expected")
        gen = torch.Generator(device=logits.device).manual_seed(seed)
        u = torch.rand(logits.shape, generator=gen, dtype=torch.float64, device=logits.device).clamp(1e-12, 1 - 1e-12)
        soft = torch.softmax((logits - (-u.log()).log().to(logits.dtype)) / tau, -1)
        ctx.save_for_backward(soft)
        ctx.tau = tau
        return F.one_hot(soft.argmax(-1), logits.shape[-1]).to(logits.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        soft, = ctx.saved_tensors
        g = grad_out * soft
        return (g - soft * g.sum(-1, keepdim=True)) / ctx.tau, None, None


class MaskDropout(Function):
    """Inverted dropout from the global generator with its mask kept as booleans; the identity when not training."""

    @staticmethod
    def forward(ctx, x, p=0.5, training=True):
        real_floating("MaskDropout", x)
        if not 0 <= p < 1:
            raise ValueError("MaskDropout: p in [0, 1) expected")
        ctx.scale = None
        if not training or p == 0:
            return x.clone()
        keep = torch.rand(x.shape, device=x.device) >= p
        ctx.save_for_backward(keep)
        ctx.scale = 1 / (1 - p)
        return x * keep * ctx.scale

    @staticmethod
    def backward(ctx, grad_out):
        if ctx.scale is None:
            return grad_out, None, None
        keep, = ctx.saved_tensors
        return grad_out * keep * ctx.scale, None, None


class ReparameterisedNormal(Function):
    """mean + exp(logvar / 2) noise with the noise drawn in forward and kept for backward."""

    @staticmethod
    def forward(ctx, mean, logvar):
        real_floating("ReparameterisedNormal", mean, logvar)
        same_shape("ReparameterisedNormal", mean, logvar)
        noise = torch.randn(mean.shape, dtype=mean.dtype, device=mean.device)
        ctx.save_for_backward(noise, logvar)
        return mean + torch.exp(logvar / 2) * noise

    @staticmethod
    def backward(ctx, grad_out):
        noise, logvar = ctx.saved_tensors
        glv = grad_out * noise * torch.exp(logvar / 2) / 2 if ctx.needs_input_grad[1] else None
        return grad_out if ctx.needs_input_grad[0] else None, glv


class KumaraswamySample(Function):
    """x = (1 - u^(1/b))^(1/a) for given u in (0, 1), positive a and b; exact gradients, also with respect to u."""

    @staticmethod
    def forward(ctx, a, b, u):
        real_floating("KumaraswamySample", a, b, u)
        if not a.shape == b.shape == u.shape:
            raise ValueError("KumaraswamySample: three tensors of one shape expected")
        if bool(((u <= 0) | (u >= 1) | (a <= 0) | (b <= 0)).any()):
            raise ValueError("KumaraswamySample: a, b > 0 and 0 < u < 1 expected")
        ctx.save_for_backward(a, b, u)
        return torch.exp(torch.log1p(-u ** (1 / b)) / a)

    @staticmethod
    def backward(ctx, grad_out):
        a, b, u = ctx.saved_tensors
        r = u ** (1 / b)
        log = torch.log1p(-r)
        x = torch.exp(log / a)
        common = grad_out * x / (a * (1 - r)) * r
        ga = -grad_out * x * log / a ** 2 if ctx.needs_input_grad[0] else None
        gb = common * u.log() / b ** 2 if ctx.needs_input_grad[1] else None
        gu = -common / (b * u) if ctx.needs_input_grad[2] else None
        return ga, gb, gu


class NumpyInterp(Function):
    """np.interp of x on a strictly rising constant grid with learnable values; flat outside the grid."""

    @staticmethod
    def forward(ctx, x, grid, values):
        real_floating("NumpyInterp", x, grid, values)
        if grid.dim() != 1 or grid.shape != values.shape or grid.numel() < 2 or bool((grid.diff() <= 0).any()):
            raise ValueError("NumpyInterp: a strictly rising grid of at least two points and as many values expected")
        if ctx.needs_input_grad[1]:
            raise ValueError("NumpyInterp: the grid is a constant")
        if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
            raise TypeError("NumpyInterp: float32 or float64 on the CPU expected")
        ctx.save_for_backward(x, grid, values)
        out = np.interp(x.detach().numpy(), grid.detach().numpy(), values.detach().numpy())
        return torch.as_tensor(out, dtype=x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        x, grid, values = ctx.saved_tensors
        left = (torch.searchsorted(grid, x.contiguous(), right=True) - 1).clamp(0, grid.numel() - 2)
        width = grid[left + 1] - grid[left]
        gx = gv = None
        if ctx.needs_input_grad[0]:
            inside = (x >= grid[0]) & (x < grid[-1])
            gx = grad_out * inside * (values[left + 1] - values[left]) / width
        if ctx.needs_input_grad[2]:
            w = ((x - grid[left]) / width).clamp(0, 1)
            gv = torch.zeros_like(values).index_add(0, left.reshape(-1), (grad_out * (1 - w)).reshape(-1))
            gv = gv.index_add(0, (left + 1).reshape(-1), (grad_out * w).reshape(-1))
        return gx, None, gv


class NumpyLegendre(Function):
    """Legendre series of given coefficients (a tuple of floats), evaluated and differentiated by NumPy."""

    @staticmethod
    def forward(ctx, x, coef):
        real_floating("NumpyLegendre", x)
        if x.device.type != "cpu" or x.dtype == torch.bfloat16 or not coef:
            raise TypeError("NumpyLegendre: a CPU tensor that NumPy knows and some coefficients expected")
        ctx.save_for_backward(x)
        ctx.coef = tuple(float(c) for c in coef)
        return NumpyLegendre.value(x, ctx.coef)

    @staticmethod
    def value(x, coef):
        return torch.as_tensor(np.polynomial.legendre.legval(x.detach().double().numpy(), coef)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        x, = ctx.saved_tensors
        slope = np.polynomial.legendre.legder(ctx.coef)
        return grad_out * NumpyLegendre.value(x, slope), None


class ThreadedRowNorm(Function):
    """Row norms of (N, D) computed by a pool of threads, each of which turns gradients off for itself; zero rows get zero."""

    @staticmethod
    def forward(ctx, x, workers=2):
        real_floating("ThreadedRowNorm", x)
        if x.dim() != 2 or workers < 1:
            raise ValueError("ThreadedRowNorm: (N, D) and at least one worker expected")

        def job(part):
            with torch.no_grad():
                return part.square().sum(1).sqrt()
        with ThreadPoolExecutor(workers) as pool:
            norms = torch.cat(list(pool.map(job, x.detach().chunk(workers))))
        ctx.save_for_backward(x, norms)
        return norms

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        x, norms = ctx.saved_tensors
        inv = torch.where(norms > 0, norms, torch.ones_like(norms)).reciprocal() * (norms > 0)
        return x * (grad_out * inv)[:, None], None


class GradientReversal(Function):
    """The identity whose gradient is turned round and scaled (domain-adversarial training)."""

    @staticmethod
    def forward(ctx, x, scale=1.0):
        real_floating("GradientReversal", x)
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_out):
        return -ctx.scale * grad_out, None


class GradientClamp(Function):
    """The identity whose gradient is clamped to [-bound, bound] on the way back; on purpose no derivative."""

    @staticmethod
    def forward(ctx, x, bound):
        real_floating("GradientClamp", x)
        if not bound > 0:
            raise ValueError("GradientClamp: bound must be positive")
        ctx.bound = bound
        return x.clone()

    @staticmethod
    def backward(ctx, grad_out):
        return grad_out.clamp(-ctx.bound, ctx.bound), None


class StableLogSumExp(Function):
    """log-sum-exp over the last axis; under autocast inputs come up to float32 and the result stays there."""

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x):
        real_floating("StableLogSumExp", x)
        if x.dim() == 0 or x.shape[-1] == 0:
            raise ValueError("StableLogSumExp: a non-empty last axis expected")
        out = torch.logsumexp(x, -1)
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    @once_differentiable
    @custom_bwd(device_type="cpu")
    def backward(ctx, grad_out):
        x, out = ctx.saved_tensors
        top = out.masked_fill(out == -torch.inf, 0)
        return grad_out[..., None] * torch.exp(x - top[..., None])


class AutocastLinear(Function):
    """x W^T that follows autocast as F.linear does: in bfloat16 under it, in the dtype of its operands outside."""

    @staticmethod
    @custom_fwd(device_type="cpu")
    def forward(ctx, x, weight):
        real_floating("AutocastLinear", x, weight)
        if weight.dim() != 2 or x.shape[-1:] != weight.shape[1:]:
            raise ValueError("AutocastLinear: x (*, K) and weight (M, K) expected")
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight)

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx, grad_out):
        x, weight = ctx.saved_tensors
        gx = gw = None
        if ctx.needs_input_grad[0]:
            gx = torch.matmul(grad_out, weight).to(x.dtype)
        if ctx.needs_input_grad[1]:
            rows = grad_out.reshape(-1, grad_out.shape[-1])
            gw = torch.matmul(rows.t(), x.reshape(-1, x.shape[-1])).to(weight.dtype)
        return gx, gw


def gumbel_reference(logits, tau, seed):
    gen = torch.Generator().manual_seed(seed)
    u = torch.rand(logits.shape, generator=gen, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)
    return torch.softmax((logits - (-u.log()).log()) / tau, -1)


class _Hook(torch.nn.Module):
    def forward(self, x, bound):
        y = x * 1
        if y.requires_grad:
            y.register_hook(lambda g: g.clamp(-bound, bound))
        return y


def rising_grid():
    return torch.tensor([-1.5, -0.5, 0.1, 2.0], dtype=torch.float64), rand(4, seed=5)


CASES = [
    case("hard_gumbel_softmax", HardGumbelSoftmax, lambda: (rand(3, 4), 0.7, 5), "Hard sample with the gradient of the soft one, declared.", declares={"surrogate": ["logits"]}, ref=gumbel_reference, second="refused"),
    case("mask_dropout", MaskDropout, lambda: (rand(4, 5), 0.4), "Random mask of the global generator, kept for backward.", random=True, more=[lambda: (rand(3), 0.4, False), lambda: (rand(0), 0.2)]),
    case("reparameterised_normal", ReparameterisedNormal, lambda: (rand(3, 4), rand(3, 4, seed=1)), "Random noise drawn in forward and kept.", random=True, more=[lambda: (rand(0), rand(0))], loose32=True, loose16=True),
    case("kumaraswamy_sample", KumaraswamySample, lambda: (uniform(4, low=0.5, high=2), uniform(4, seed=1, low=0.5, high=2), uniform(4, seed=2, low=0.1, high=0.9)), "Inverse distribution function on a limited domain.", more=[lambda: (uniform(0), uniform(0), uniform(0))], loose16=True),
    case("numpy_interp", NumpyInterp, lambda: (rand(3, 4), *rising_grid()), "Piecewise linear table on a sorted grid; NumPy in forward.", second="refused", more=[lambda: (rand(), *rising_grid()), lambda: (rand(0, 2), *rising_grid())],
         refuses=[lambda: (rand(2), torch.tensor([1.0, 0.0]).double(), rand(2))]),
    case("numpy_legendre", NumpyLegendre, lambda: (rand(3, 2), (0.5, -1.0, 0.25, 0.1)), "Constant coefficients on ctx; NumPy both ways.", second="refused", more=[lambda: (rand(2), (1.5,)), lambda: (rand(), (0.0, 2.0)), lambda: (rand(0), (1.0, 2.0))]),
    case("threaded_row_norm", ThreadedRowNorm, lambda: (rand(5, 3),), "Worker threads do not inherit the grad mode, so each sets its own.", second="refused", more=[lambda: (rand(1, 2), 3), lambda: (rand(0, 2),), lambda: (rand(4, 1), 1)]),
    case("gradient_reversal", GradientReversal, lambda: (rand(3, 2), 0.5), "Reversed gradient, declared.", declares={"surrogate": ["x"]}, ref=lambda x, s: x.detach() * (1 + s) - s * x),
    case("gradient_clamp", GradientClamp, lambda: (rand(3, 2), 0.5), "Clamped gradient, declared.", declares={"surrogate": ["x"]}, nonlinear=True, ref=lambda x, b: _Hook()(x, b)),
    case("stable_log_sum_exp", StableLogSumExp, lambda: (rand(3, 4, scale=3, dtype=torch.float32),), "Autocast island with custom_fwd and custom_bwd.", second="refused", more=[lambda: (rand(2),), lambda: (rand(0, 2),)], loose16=True),
    case("autocast_linear", AutocastLinear, lambda: (rand(2, 3, 4, dtype=torch.float32), rand(5, 4, seed=1, dtype=torch.float32)), "Follows autocast as F.linear does, so its result is bfloat16 there.", autocast_tol=0.1,
         more=[lambda: (rand(4), rand(2, 4, seed=1)), lambda: (rand(0, 4), rand(2, 4))]),
]
