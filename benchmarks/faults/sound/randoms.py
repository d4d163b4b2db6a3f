"""Random numbers: a mask given, a mask kept, a seed kept; backward draws nothing new."""

import torch
from torch.autograd import Function

import pullback as pb
from benchmarks.faults.sound.entry import Sound, cases_of, coins, real


def mask_of(seed, shape, rate, device):
    """The same mask for the same seed; the global generator is not touched."""
    rng = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=rng) >= rate).to(device)


class DropoutByMask(Function):
    """Dropout with the mask as an argument."""

    @staticmethod
    def forward(ctx, x, mask, rate):
        if x.shape != mask.shape:
            raise ValueError(f"x and mask must have one shape, got {x.shape} and {mask.shape}")
        ctx.rate = rate
        ctx.save_for_backward(mask)
        return torch.where(mask, x / (1 - rate), 0.0)

    @staticmethod
    def backward(ctx, grad_output):
        (mask,) = ctx.saved_tensors
        return torch.where(mask, grad_output / (1 - ctx.rate), 0.0), None, None


class DropoutBySeed(Function):
    """Dropout that keeps a seed in place of the mask, and draws the same mask in backward."""

    @staticmethod
    def forward(ctx, x, rate, seed):
        ctx.rate, ctx.seed = rate, seed
        return torch.where(mask_of(seed, x.shape, rate, x.device), x / (1 - rate), 0.0)

    @staticmethod
    def backward(ctx, grad_output):
        mask = mask_of(ctx.seed, grad_output.shape, ctx.rate, grad_output.device)
        return torch.where(mask, grad_output / (1 - ctx.rate), 0.0), None, None


class Dropout(pb.Function):
    """Dropout from the global generator: drawn once, in forward, and kept."""

    @staticmethod
    def forward(ctx, x, rate, training):
        if not training or rate == 0:
            ctx.scale = 1.0
            ctx.save_for_backward(None)
            return x.clone()
        mask = torch.rand(x.shape, device=x.device) >= rate
        ctx.scale = 1 / (1 - rate)
        ctx.save_for_backward(mask)
        return torch.where(mask, x * ctx.scale, 0.0)

    @staticmethod
    def backward(ctx, grad_output):
        (mask,) = ctx.saved_tensors
        if mask is None:
            return grad_output, None, None
        return torch.where(mask, grad_output * ctx.scale, 0.0), None, None


class DropPath(Function):
    """Whole examples dropped by the seed: stochastic depth over a residual."""

    @staticmethod
    def forward(ctx, x, branch, rate, seed):
        if x.dim() == 0 or x.shape != branch.shape:
            raise ValueError(f"x and branch must have one shape, got {x.shape}")
        ctx.rate, ctx.seed = rate, seed
        return x + DropPath.kept(branch, rate, seed)

    @staticmethod
    def kept(branch, rate, seed):
        mask = mask_of(seed, branch.shape[:1], rate, branch.device)
        mask = mask.view(-1, *(1,) * (branch.dim() - 1))
        return torch.where(mask, branch / (1 - rate), 0.0)

    @staticmethod
    def backward(ctx, grad_output):
        grad_branch = None
        if ctx.needs_input_grad[1]:
            grad_branch = DropPath.kept(grad_output, ctx.rate, ctx.seed)
        return grad_output, grad_branch, None, None


class RandomLeaky(Function):
    """Leaky ReLU whose slopes come as a tensor of noise."""

    @staticmethod
    def forward(ctx, x, slopes):
        if x.shape != slopes.shape:
            raise ValueError(f"x and slopes must have one shape, got {x.shape}")
        ctx.save_for_backward(x, slopes)
        return torch.where(x > 0, x, slopes * x)

    @staticmethod
    def backward(ctx, grad_output):
        x, slopes = ctx.saved_tensors
        return torch.where(x > 0, grad_output, slopes * grad_output), None


class Reparameterised(Function):
    """A normal sample `mean + exp(log_scale) * noise`, the noise from a seed."""

    @staticmethod
    def forward(ctx, mean, log_scale, seed):
        if mean.shape != log_scale.shape:
            raise ValueError(f"mean and log_scale must have one shape, got {mean.shape}")
        ctx.seed = seed
        ctx.save_for_backward(log_scale)
        return mean + log_scale.exp() * Reparameterised.noise(seed, mean)

    @staticmethod
    def noise(seed, like):
        rng = torch.Generator().manual_seed(seed)
        drawn = torch.randn(like.shape, generator=rng, dtype=torch.float64)
        return drawn.to(device=like.device, dtype=like.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        (log_scale,) = ctx.saved_tensors
        grad_scale = None
        if ctx.needs_input_grad[1]:
            noise = Reparameterised.noise(ctx.seed, log_scale)
            grad_scale = grad_output * log_scale.exp() * noise
        return grad_output if ctx.needs_input_grad[0] else None, grad_scale, None


def _by_seed(x, rate, seed):
    return x * mask_of(seed, x.shape, rate, x.device) / (1 - rate)


def _dropout(x, rate, training):
    mask = torch.rand(x.shape) >= rate
    return x * mask / (1 - rate) if training else x * 1


def _noise():
    return coins(4, 5).double() * 0.2 + 0.1


SOUND = {
    "dropout-by-mask": Sound(
        DropoutByMask, lambda: (real(4, 5), coins(4, 5), 0.33), lambda x, m, r: x * m / (1 - r)
    ),
    "dropout-by-seed": Sound(DropoutBySeed, lambda: (real(4, 5), 0.4, 7), _by_seed),
    "dropout": Sound(Dropout, lambda: (real(4, 5), 0.4, True), _dropout),
    "dropout-in-evaluation": Sound(Dropout, lambda: (real(4, 5), 0.4, False), _dropout),
    "drop-path": Sound(
        DropPath,
        lambda: (real(4, 5), real(4, 5, seed=1), 0.5, 3),
        lambda x, b, rate, seed: x + DropPath.kept(b, rate, seed),
    ),
    "random-leaky-relu": Sound(
        RandomLeaky, lambda: (real(4, 5), _noise()), lambda x, s: torch.where(x > 0, x, s * x)
    ),
    "reparameterised-normal": Sound(
        Reparameterised,
        lambda: (real(4, 5), real(4, 5, seed=1), 11),
        lambda m, s, seed: m + s.exp() * Reparameterised.noise(seed, m),
    ),
}

CASES = cases_of(SOUND)
