"""Functions with a small domain that refuse the rest with a clear `ValueError`: no fault."""

import math

import torch
from torch.autograd import Function

import pullback as pb
from benchmarks.faults.sound.entry import Sound, cases_of, positive, real


class Hadamard(Function):
    """The Walsh-Hadamard transform of rows whose length is a power of two; its own adjoint."""

    @staticmethod
    def forward(ctx, x):
        if x.dim() == 0 or x.shape[-1] < 1 or x.shape[-1] & (x.shape[-1] - 1):
            raise ValueError(f"rows must have 1, 2, 4, 8, ... elements, got {tuple(x.shape)}")
        return Hadamard.transformed(x)

    @staticmethod
    def transformed(x):
        size, y, step = x.shape[-1], x.reshape(x.shape), 1
        while step < size:
            pairs = y.reshape(*x.shape[:-1], size // (2 * step), 2, step)
            a, b = pairs[..., 0, :], pairs[..., 1, :]
            y = torch.stack((a + b, a - b), -2).reshape(x.shape)
            step *= 2
        return y / math.sqrt(size)

    @staticmethod
    def backward(ctx, grad_output):
        return Hadamard.transformed(grad_output)


class CrossProduct(Function):
    """The cross product of rows of three."""

    @staticmethod
    def forward(ctx, a, b):
        if a.shape != b.shape or a.dim() == 0 or a.shape[-1] != 3:
            raise ValueError(f"rows must have 3 elements each, got {a.shape} and {b.shape}")
        ctx.save_for_backward(a, b)
        return torch.linalg.cross(a, b)

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        grad_a = torch.linalg.cross(b, grad_output) if ctx.needs_input_grad[0] else None
        grad_b = torch.linalg.cross(grad_output, a) if ctx.needs_input_grad[1] else None
        return grad_a, grad_b


class Logit(pb.Function):
    """`log(x / (1 - x))` strictly between 0 and 1."""

    @staticmethod
    def forward(ctx, x):
        if not bool(((x > 0) & (x < 1)).all()):
            raise ValueError("Logit takes numbers strictly between 0 and 1")
        ctx.save_for_backward(x)
        return torch.log(x) - torch.log1p(-x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output / (x * (1 - x))


class PixelShuffle(Function):
    """Channels to space by 2: four channels make one, and nothing else is taken."""

    @staticmethod
    def forward(ctx, x):
        if x.dim() != 4 or x.shape[1] % 4 or not x.numel():
            raise ValueError(f"x must be (n, 4 c, h, w) and not empty, got {tuple(x.shape)}")
        return torch.nn.functional.pixel_shuffle(x, 2)

    @staticmethod
    def backward(ctx, grad_output):
        return torch.nn.functional.pixel_unshuffle(grad_output, 2)


class DoubleOnly(Function):
    """`expm1` for float64 alone: other dtypes are refused."""

    @staticmethod
    def forward(ctx, x):
        if x.dtype != torch.float64:
            raise ValueError(f"takes float64 alone, got {x.dtype}")
        y = torch.expm1(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * (y + 1)


class TrapezoidRule(Function):
    """The integral of samples at sorted places; fewer than two are refused."""

    @staticmethod
    def forward(ctx, y, x):
        if y.dim() != 1 or y.shape != x.shape or y.numel() < 2:
            raise ValueError(f"takes two rows of two or more samples, got {y.shape}, {x.shape}")
        if not bool((x[1:] > x[:-1]).all()):
            raise ValueError("the places must rise")
        ctx.save_for_backward(y, x)
        return torch.trapezoid(y, x)

    @staticmethod
    def backward(ctx, grad_output):
        y, x = ctx.saved_tensors
        pad = torch.nn.functional.pad
        grad_y = grad_x = None
        if ctx.needs_input_grad[0]:
            width = x.diff() / 2
            grad_y = grad_output * (pad(width, (0, 1)) + pad(width, (1, 0)))
        if ctx.needs_input_grad[1]:
            height = (y[1:] + y[:-1]) / 2
            grad_x = grad_output * (pad(height, (1, 0)) - pad(height, (0, 1)))
        return grad_y, grad_x


def _hadamard(x):
    matrix = torch.ones(1, 1, dtype=x.dtype)
    while len(matrix) < x.shape[-1]:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return x @ matrix / math.sqrt(x.shape[-1])


def _places():
    return torch.tensor([0.0, 0.4, 1.1, 1.5, 2.7], dtype=torch.float64, requires_grad=True)


SOUND = {
    "hadamard": Sound(Hadamard, lambda: (real(3, 8),), _hadamard),
    "cross-product": Sound(
        CrossProduct, lambda: (real(4, 3), real(4, 3, seed=1)), torch.linalg.cross
    ),
    "logit": Sound(Logit, lambda: ((positive(4, 5).detach() / 2).requires_grad_(),), torch.logit),
    "pixel-shuffle": Sound(
        PixelShuffle, lambda: (real(2, 4, 3, 2),), lambda x: torch.pixel_shuffle(x, 2)
    ),
    "double-only": Sound(DoubleOnly, lambda: (real(4, 5),), torch.expm1, low=False),
    "trapezoid": Sound(TrapezoidRule, lambda: (real(5), _places()), torch.trapezoid),
}

CASES = cases_of(SOUND)
