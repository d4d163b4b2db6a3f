"""Arithmetic of several inputs: broadcasting, skipped gradients, numbers and missing tensors."""

import torch
import torch.nn.functional as F
from torch.autograd import Function

import pullback as pb
from benchmarks.faults.sound.entry import Sound, cases_of, coins, positive, real


class Multiply(Function):
    """`a * b`, broadcast; keeps only what the asked gradients need."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.shapes = a.shape, b.shape
        ctx.save_for_backward(
            a if ctx.needs_input_grad[1] else None, b if ctx.needs_input_grad[0] else None
        )
        return a * b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_a = (grad_output * b).sum_to_size(ctx.shapes[0])
        if ctx.needs_input_grad[1]:
            grad_b = (grad_output * a).sum_to_size(ctx.shapes[1])
        return grad_a, grad_b


class Divide(Function):
    """`a / b`, broadcast, from `b` and the quotient."""

    @staticmethod
    def forward(ctx, a, b):
        y = a / b
        ctx.shape = a.shape
        ctx.save_for_backward(b, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        b, y = ctx.saved_tensors
        scaled = grad_output / b
        grad_a = scaled.sum_to_size(ctx.shape) if ctx.needs_input_grad[0] else None
        grad_b = (-scaled * y).sum_to_size(b.shape) if ctx.needs_input_grad[1] else None
        return grad_a, grad_b


class SafeDivide(Function):
    """`a / b` where `b` is not 0, and 0 elsewhere, with a gradient of 0 there."""

    @staticmethod
    def forward(ctx, a, b):
        if a.shape != b.shape:
            raise ValueError(f"a and b must have one shape, got {a.shape} and {b.shape}")
        hole = b == 0
        safe = b.masked_fill(hole, 1)
        y = (a / safe).masked_fill(hole, 0)
        ctx.save_for_backward(b, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        b, y = ctx.saved_tensors
        hole = b == 0
        scaled = (grad_output / b.masked_fill(hole, 1)).masked_fill(hole, 0)
        grad_a = scaled if ctx.needs_input_grad[0] else None
        grad_b = -scaled * y if ctx.needs_input_grad[1] else None
        return grad_a, grad_b


class AddBias(Function):
    """`x + bias` over the last dimension; nothing is saved but a shape."""

    @staticmethod
    def forward(ctx, x, bias):
        ctx.shapes = x.shape, bias.shape
        return x + bias

    @staticmethod
    def backward(ctx, grad_output):
        return tuple(
            grad_output.sum_to_size(shape) if need else None
            for shape, need in zip(ctx.shapes, ctx.needs_input_grad, strict=True)
        )


class Scale(pb.Function):
    """`x * factor` with a number `factor`."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.factor, None


class LearnedScale(Function):
    """`x * scale` with a 0-d tensor `scale`, whose gradient is 0-d too."""

    @staticmethod
    def forward(ctx, x, scale):
        if scale.dim() != 0:
            raise ValueError(f"scale must be a 0-d tensor, got shape {tuple(scale.shape)}")
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, grad_output):
        x, scale = ctx.saved_tensors
        grad_x = grad_output * scale if ctx.needs_input_grad[0] else None
        grad_scale = (grad_output * x).sum() if ctx.needs_input_grad[1] else None
        return grad_x, grad_scale


class Lerp(Function):
    """`start + weight * (end - start)`, three inputs, broadcast."""

    @staticmethod
    def forward(ctx, start, end, weight):
        ctx.save_for_backward(start, end, weight)
        return torch.lerp(start, end, weight)

    @staticmethod
    def backward(ctx, grad_output):
        start, end, weight = ctx.saved_tensors
        grads = [None, None, None]
        if ctx.needs_input_grad[0]:
            grads[0] = (grad_output * (1 - weight)).sum_to_size(start.shape)
        if ctx.needs_input_grad[1]:
            grads[1] = (grad_output * weight).sum_to_size(end.shape)
        if ctx.needs_input_grad[2]:
            grads[2] = (grad_output * (end - start)).sum_to_size(weight.shape)
        return tuple(grads)


class Polynomial(Function):
    """A polynomial in `x` with a list of numbers as coefficients, lowest first."""

    @staticmethod
    def forward(ctx, x, coefficients):
        ctx.coefficients = list(coefficients)
        ctx.save_for_backward(x)
        return Polynomial.value(x, ctx.coefficients)

    @staticmethod
    def value(x, coefficients):
        y = torch.zeros_like(x)
        for c in reversed(coefficients):
            y = y * x + c
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        slopes = [n * c for n, c in enumerate(ctx.coefficients)][1:]
        return grad_output * Polynomial.value(x, slopes), None


class GatedLinearUnit(Function):
    """SwiGLU: `silu(gate) * up`; backward computes the sigmoid again."""

    @staticmethod
    def forward(ctx, gate, up):
        if gate.shape != up.shape:
            raise ValueError(f"gate and up must have one shape, got {gate.shape}, {up.shape}")
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx, grad_output):
        gate, up = ctx.saved_tensors
        s = torch.sigmoid(gate)
        grad_gate = grad_up = None
        if ctx.needs_input_grad[0]:
            grad_gate = grad_output * up * s * (1 + gate * (1 - s))
        if ctx.needs_input_grad[1]:
            grad_up = grad_output * gate * s
        return grad_gate, grad_up


class BiasGELU(Function):
    """`gelu(x + bias)`, the sum taken again in backward; `bias` may be None."""

    @staticmethod
    def forward(ctx, x, bias):
        ctx.save_for_backward(x, bias)
        return F.gelu(x if bias is None else x + bias)

    @staticmethod
    def backward(ctx, grad_output):
        x, bias = ctx.saved_tensors
        total = x if bias is None else x + bias
        grad = torch.ops.aten.gelu_backward(grad_output, total)
        grad_x = grad.sum_to_size(x.shape) if ctx.needs_input_grad[0] else None
        grad_bias = grad.sum_to_size(bias.shape) if ctx.needs_input_grad[1] else None
        return grad_x, grad_bias


class Select(Function):
    """`a` where the mask is true and `b` elsewhere, broadcast."""

    @staticmethod
    def forward(ctx, mask, a, b):
        ctx.shapes = a.shape, b.shape
        ctx.save_for_backward(mask)
        return torch.where(mask, a, b)

    @staticmethod
    def backward(ctx, grad_output):
        (mask,) = ctx.saved_tensors
        grad_a = grad_b = None
        if ctx.needs_input_grad[1]:
            grad_a = torch.where(mask, grad_output, 0.0).sum_to_size(ctx.shapes[0])
        if ctx.needs_input_grad[2]:
            grad_b = torch.where(mask, 0.0, grad_output).sum_to_size(ctx.shapes[1])
        return None, grad_a, grad_b


class Hypot(Function):
    """`sqrt(a^2 + b^2)` without overflow; the slope at the origin is 0."""

    @staticmethod
    def forward(ctx, a, b):
        y = torch.hypot(a, b)
        ctx.save_for_backward(a, b, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        a, b, y = ctx.saved_tensors
        return tuple(
            (grad_output * (side / y).masked_fill(y == 0, 0)).sum_to_size(side.shape)
            if need
            else None
            for side, need in zip((a, b), ctx.needs_input_grad, strict=True)
        )


class Atan2(Function):
    """The angle of the point (x, y), in the order of `torch.atan2`; 0 slope at the origin."""

    @staticmethod
    def forward(ctx, y, x):
        ctx.save_for_backward(y, x)
        return torch.atan2(y, x)

    @staticmethod
    def backward(ctx, grad_output):
        y, x = ctx.saved_tensors
        square = x * x + y * y
        scaled = (grad_output / square).masked_fill(square == 0, 0)
        grad_y = (scaled * x).sum_to_size(y.shape) if ctx.needs_input_grad[0] else None
        grad_x = (-scaled * y).sum_to_size(x.shape) if ctx.needs_input_grad[1] else None
        return grad_y, grad_x


class MaskedByBool(Function):
    """`x` where a bool tensor is true, else a number."""

    @staticmethod
    def forward(ctx, x, mask, value):
        ctx.shape = x.shape
        ctx.save_for_backward(mask)
        return torch.where(mask, x, value)

    @staticmethod
    def backward(ctx, grad_output):
        (mask,) = ctx.saved_tensors
        return grad_output.masked_fill(~mask, 0).sum_to_size(ctx.shape), None, None


def _polynomial(x, coefficients):
    return sum(c * x**n for n, c in enumerate(coefficients))


def _safe_divide(a, b):
    return torch.where(b == 0, 0.0, a / torch.where(b == 0, 1.0, b))


SOUND = {
    "multiply": Sound(Multiply, lambda: (real(4, 5), real(4, 1, seed=1)), torch.mul),
    "divide": Sound(Divide, lambda: (real(4, 5), positive(5)), torch.div),
    "divide-or-zero": Sound(
        SafeDivide, lambda: (real(4, 5), real(4, 5, seed=1)), _safe_divide, convention=False
    ),
    "add-bias": Sound(AddBias, lambda: (real(2, 4, 5), real(5, seed=1)), torch.add),
    "scale": Sound(Scale, lambda: (real(4, 5), 2.5), torch.mul),
    "learned-scale": Sound(LearnedScale, lambda: (real(4, 5), real(seed=1)), torch.mul),
    "lerp": Sound(Lerp, lambda: (real(4, 5), real(4, 5, seed=1), positive(4, 1)), torch.lerp),
    "polynomial": Sound(Polynomial, lambda: (real(4, 5), [0.5, -1.0, 0.0, 2.0]), _polynomial),
    "swiglu": Sound(
        GatedLinearUnit, lambda: (real(3, 6), real(3, 6, seed=1)), lambda g, u: F.silu(g) * u
    ),
    "bias-gelu": Sound(BiasGELU, lambda: (real(3, 6), real(6, seed=1)), lambda x, b: F.gelu(x + b)),
    "bias-gelu-without-bias": Sound(BiasGELU, lambda: (real(3, 6), None), lambda x, b: F.gelu(x)),
    "select": Sound(Select, lambda: (coins(4, 5), real(4, 5), real(5, seed=1)), torch.where),
    "hypot": Sound(Hypot, lambda: (real(4, 5), real(4, 5, seed=1)), torch.hypot, convention=False),
    "atan2": Sound(Atan2, lambda: (real(4, 5), real(4, 5, seed=1)), torch.atan2),
    "masked-by-bool": Sound(
        MaskedByBool,
        lambda: (real(4, 5), coins(4, 5), -1.5),
        lambda x, m, v: torch.where(m, x, v),
    ),
}

CASES = cases_of(SOUND)
