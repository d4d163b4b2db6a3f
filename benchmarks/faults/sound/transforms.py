"""Functions for `torch.func`: `setup_context`, with `jvp`, a written or a generated vmap rule."""

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import pullback as pb
from benchmarks.faults.sound.entry import Sound, cases_of, positive, real


class Square(Function):
    """`x * x` with every transform."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x * grad_output

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return 2 * x * tangent


class Product(pb.Function):
    """`a * b` of one shape, with forward mode; a missing tangent is zeros."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a, b):
        if a.shape != b.shape:
            raise ValueError(f"a and b must have one shape, got {a.shape} and {b.shape}")
        return a * b

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        grad_a = grad_output * b if ctx.needs_input_grad[0] else None
        grad_b = grad_output * a if ctx.needs_input_grad[1] else None
        return grad_a, grad_b

    @staticmethod
    def jvp(ctx, tangent_a, tangent_b):
        a, b = ctx.saved_tensors
        return tangent_a * b + a * tangent_b


class RowSoftmax(Function):
    """The softmax of the last dimension with forward mode from the output."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return torch.softmax(x, -1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        weighted = y * grad_output
        return weighted - y * weighted.sum(-1, keepdim=True)

    @staticmethod
    def jvp(ctx, tangent):
        (y,) = ctx.saved_tensors
        weighted = y * tangent
        return weighted - y * weighted.sum(-1, keepdim=True)


class SineWithRule(Function):
    """The sine with a vmap rule written by hand: the batch changes nothing."""

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x.cos()

    @staticmethod
    def vmap(info, in_dims, x):
        return SineWithRule.apply(x), in_dims[0]


class RowScale(Function):
    """Each row times its own number; the vmap rule moves the batch to the front."""

    @staticmethod
    def forward(x, scale):
        if x.dim() < 1 or scale.shape != x.shape[:-1]:
            raise ValueError(f"scale must have one number per row, got {x.shape}, {scale.shape}")
        return x * scale.unsqueeze(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        x, scale = ctx.saved_tensors
        grad_x = grad_output * scale.unsqueeze(-1) if ctx.needs_input_grad[0] else None
        grad_scale = (grad_output * x).sum(-1) if ctx.needs_input_grad[1] else None
        return grad_x, grad_scale

    @staticmethod
    def vmap(info, in_dims, x, scale):
        moved = [
            t.unsqueeze(0).expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
            for t, d in zip((x, scale), in_dims, strict=True)
        ]
        return RowScale.apply(*moved), 0


class Power(Function):
    """`x ** n` for a number `n`, with forward mode that keeps `n` on the context."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, n):
        return x**n

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.n = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * ctx.n * x ** (ctx.n - 1), None

    @staticmethod
    def jvp(ctx, tangent, _):
        (x,) = ctx.saved_tensors
        return tangent * ctx.n * x ** (ctx.n - 1)


class SumAndDifference(Function):
    """`a + b` and `a - b`, linear, with forward mode that saves nothing."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a, b):
        if a.shape != b.shape:
            raise ValueError(f"a and b must have one shape, got {a.shape} and {b.shape}")
        return a + b, a - b

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad_sum, grad_difference):
        grad_a = grad_sum + grad_difference if ctx.needs_input_grad[0] else None
        grad_b = grad_sum - grad_difference if ctx.needs_input_grad[1] else None
        return grad_a, grad_b

    @staticmethod
    def jvp(ctx, tangent_a, tangent_b):
        return tangent_a + tangent_b, tangent_a - tangent_b


class Cube(Function):
    """`x ** 3`, with the derivative as an extra output so that the second order is right."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3, 3 * x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx, grad_cube, grad_slope):
        x, slope = ctx.saved_tensors
        return grad_cube * slope + grad_slope * 6 * x


class NamedVjp(Function):
    """`log(1 + x)`, whose backward carries its other name.

    In the combined style: `torch.func` calls `backward` by that name and would not find it.
    """

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log1p(x)

    @staticmethod
    def vjp(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output / (1 + x)


class ThroughNumpy(Function):
    """`arctan` by NumPy, out of autograd's sight, so once differentiable."""

    @staticmethod
    def forward(x):
        if x.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"takes float32 or float64, got {x.dtype}")
        return torch.as_tensor(np.arctan(x.detach().cpu().numpy()), device=x.device)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        slope = 1 / (1 + np.square(x.detach().cpu().numpy()))
        return grad_output * torch.as_tensor(slope, device=x.device)


class WithIndices(Function):
    """The largest of the last dimension with its place, batched by a generated rule."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        if x.dim() == 0 or x.shape[-1] == 0:
            raise ValueError(f"rows must not be empty, got x of shape {tuple(x.shape)}")
        values, places = x.max(-1, keepdim=True)
        return values, places

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,), (_, places) = inputs, output
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(x, places)

    @staticmethod
    def backward(ctx, grad_values, _):
        x, places = ctx.saved_tensors
        return torch.zeros_like(x).scatter(-1, places, grad_values)


SOUND = {
    "square": Sound(Square, lambda: (real(4, 5),), torch.square),
    "product-with-jvp": Sound(Product, lambda: (real(4, 5), real(4, 5, seed=1)), torch.mul),
    "row-softmax-with-jvp": Sound(RowSoftmax, lambda: (real(4, 5),), lambda x: x.softmax(-1)),
    "sine-with-vmap": Sound(SineWithRule, lambda: (real(4, 5),), torch.sin),
    "row-scale-with-vmap": Sound(
        RowScale, lambda: (real(4, 5), real(4, seed=1)), lambda x, s: x * s.unsqueeze(-1)
    ),
    "power-with-jvp": Sound(Power, lambda: (positive(4, 5), 2.5), torch.pow),
    "sum-and-difference": Sound(
        SumAndDifference, lambda: (real(4, 5), real(4, 5, seed=1)), lambda a, b: (a + b, a - b)
    ),
    "cube-with-slope": Sound(Cube, lambda: (real(4, 5),), lambda x: (x**3, 3 * x**2)),
    "named-vjp": Sound(NamedVjp, lambda: (positive(4, 5),), torch.log1p),
    "through-numpy": Sound(ThroughNumpy, lambda: (real(4, 5),), torch.atan, order=1, low=False),
    "max-with-generated-vmap": Sound(
        WithIndices, lambda: (real(4, 5),), lambda x: x.max(-1, keepdim=True)
    ),
}

CASES = cases_of(SOUND)
