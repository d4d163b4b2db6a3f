"""Several outputs, outputs without a gradient, outputs nobody used, views and in-place writes."""

from typing import ClassVar

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import pullback as pb
from benchmarks.faults.sound.entry import Sound, cases_of, positive, real

# ---- several outputs ----


class SinCos(Function):
    """Sine and cosine at once; each is the other's derivative."""

    @staticmethod
    def forward(ctx, x):
        sine, cosine = x.sin(), x.cos()
        ctx.save_for_backward(sine, cosine)
        return sine, cosine

    @staticmethod
    def backward(ctx, grad_sine, grad_cosine):
        sine, cosine = ctx.saved_tensors
        return grad_sine * cosine - grad_cosine * sine


class Moments(Function):
    """Mean and mean square of each row; a cotangent nobody gave stays None."""

    @staticmethod
    def forward(ctx, x):
        if x.dim() == 0 or x.shape[-1] == 0:
            raise ValueError(f"rows must not be empty, got x of shape {tuple(x.shape)}")
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.mean(-1), x.square().mean(-1)

    @staticmethod
    def backward(ctx, grad_mean, grad_square):
        (x,) = ctx.saved_tensors
        size = x.shape[-1]
        total = None
        if grad_mean is not None:
            total = (grad_mean / size).unsqueeze(-1).expand_as(x)
        if grad_square is not None:
            part = grad_square.unsqueeze(-1) * x * (2 / size)
            total = part if total is None else total + part
        return total


class ThreeWays(Function):
    """Square, cube and double of `x`, with the undefined cotangents left out of the work."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x * x, x * x * x, 2 * x

    @staticmethod
    def backward(ctx, grad_square, grad_cube, grad_double):
        (x,) = ctx.saved_tensors
        parts = []
        if grad_square is not None:
            parts.append(2 * x * grad_square)
        if grad_cube is not None:
            parts.append(3 * x * x * grad_cube)
        if grad_double is not None:
            parts.append(2 * grad_double)
        return sum(parts[1:], parts[0]) if parts else None


class MinMax(Function):
    """The smallest and the largest of each row, as a list of two."""

    @staticmethod
    def forward(ctx, x):
        if x.dim() == 0 or x.shape[-1] == 0:
            raise ValueError(f"rows must not be empty, got x of shape {tuple(x.shape)}")
        low, at_low = x.min(-1, keepdim=True)
        high, at_high = x.max(-1, keepdim=True)
        ctx.shape = x.shape
        ctx.save_for_backward(at_low, at_high)
        return low, high

    @staticmethod
    def backward(ctx, grad_low, grad_high):
        at_low, at_high = ctx.saved_tensors
        zeros = grad_low.new_zeros(ctx.shape)
        return zeros.scatter_add(-1, at_low, grad_low).scatter_add(-1, at_high, grad_high)


class Polar(Function):
    """Length and angle of the points (x, y)."""

    @staticmethod
    def forward(ctx, x, y):
        if x.shape != y.shape:
            raise ValueError(f"x and y must have one shape, got {x.shape} and {y.shape}")
        length, angle = torch.hypot(x, y), torch.atan2(y, x)
        ctx.save_for_backward(length, angle)
        return length, angle

    @staticmethod
    def backward(ctx, grad_length, grad_angle):
        length, angle = ctx.saved_tensors
        cosine, sine = angle.cos(), angle.sin()
        turned = grad_angle / length
        grad_x = grad_length * cosine - turned * sine if ctx.needs_input_grad[0] else None
        grad_y = grad_length * sine + turned * cosine if ctx.needs_input_grad[1] else None
        return grad_x, grad_y


class Chunks(Function):
    """The halves of each row, as copies."""

    @staticmethod
    def forward(ctx, x):
        if x.dim() == 0 or x.shape[-1] % 2:
            raise ValueError(f"rows must have an even length, got {tuple(x.shape)}")
        left, right = x.chunk(2, -1)
        return left.clone(), right.clone()

    @staticmethod
    def backward(ctx, grad_left, grad_right):
        return torch.cat((grad_left, grad_right), -1)


class StackAll(Function):
    """Any number of tensors, stacked: `forward` takes `*args`."""

    @staticmethod
    def forward(ctx, dim, *parts):
        ctx.dim = dim
        return torch.stack(parts, dim)

    @staticmethod
    def backward(ctx, grad_output):
        return None, *grad_output.unbind(ctx.dim)


# ---- outputs without a gradient ----


class Quantise(Function):
    """`x` as a multiple of `step` that is an integer tensor, and the rest."""

    @staticmethod
    def forward(ctx, x, step):
        steps = (x / step).round()
        return steps.to(torch.int64), x - steps * step

    @staticmethod
    def backward(ctx, _, grad_rest):
        return grad_rest, None


class NormaliseWithScale(Function):
    """Each row over its largest size, which is given too and counts as a constant, on purpose."""

    declares: ClassVar = {"surrogate": "x"}

    @staticmethod
    def forward(ctx, x):
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6)
        ctx.save_for_backward(scale)
        ctx.mark_non_differentiable(scale)
        return x / scale, scale

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output, _):
        (scale,) = ctx.saved_tensors
        return grad_output / scale


class CountAndSum(Function):
    """How many elements are positive, as a Python number, and their sum."""

    @staticmethod
    def forward(ctx, x):
        positive = x > 0
        ctx.save_for_backward(positive)
        return int(positive.sum()), torch.where(positive, x, 0.0).sum()

    @staticmethod
    def backward(ctx, _, grad_sum):
        (positive,) = ctx.saved_tensors
        return torch.where(positive, grad_sum, 0.0)


class NearestCentre(Function):
    """The squared distance to the nearest centre, and which one it was."""

    @staticmethod
    def forward(ctx, x, centres):
        if x.dim() != 2 or centres.dim() != 2 or x.shape[1] != centres.shape[1]:
            raise ValueError(f"takes matrices of one width, got {x.shape} and {centres.shape}")
        if not centres.shape[0]:
            raise ValueError("there must be at least one centre")
        squares = (x[:, None] - centres[None]).square().sum(-1)
        distance, which = squares.min(1)
        ctx.save_for_backward(x, centres, which)
        ctx.mark_non_differentiable(which)
        return distance, which

    @staticmethod
    def backward(ctx, grad_distance, _):
        x, centres, which = ctx.saved_tensors
        pulled = 2 * grad_distance.unsqueeze(-1) * (x - centres[which])
        grad_x = pulled if ctx.needs_input_grad[0] else None
        grad_centres = None
        if ctx.needs_input_grad[1]:
            grad_centres = torch.zeros_like(centres).index_add(0, which, -pulled)
        return grad_x, grad_centres


# ---- views and in-place writes ----


class TransposedView(Function):
    """The transpose of a matrix, returned as a view of the input."""

    @staticmethod
    def forward(ctx, x):
        if x.dim() != 2:
            raise ValueError(f"takes a matrix, got shape {tuple(x.shape)}")
        return x.t()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.t()


class Identity(Function):
    """The input as it is, by `view_as` so that it gets a history of its own."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class Reshape(pb.Function):
    """`x` in another shape; copies when it must."""

    @staticmethod
    def forward(ctx, x, shape):
        ctx.shape = x.shape
        return x.reshape(shape)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.reshape(ctx.shape), None


class ScaleInPlace(Function):
    """`x *= factor`, marked."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        ctx.mark_dirty(x)
        return x.mul_(factor)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.factor, None


class ReLUInPlace(Function):
    """`relu_`, marked, and differentiated from the output that it left."""

    @staticmethod
    def forward(ctx, x):
        x.clamp_(min=0)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output.masked_fill(y <= 0, 0)


class AccumulateInPlace(Function):
    """`total += x * weight`, with three gradients."""

    @staticmethod
    def forward(ctx, total, x, weight):
        if not total.shape == x.shape == weight.shape:
            raise ValueError("total, x and weight must have one shape")
        ctx.save_for_backward(x, weight)
        ctx.mark_dirty(total)
        return total.addcmul_(x, weight)

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        grad_x = grad_output * weight if ctx.needs_input_grad[1] else None
        grad_weight = grad_output * x if ctx.needs_input_grad[2] else None
        return grad_output, grad_x, grad_weight


def exp_in_place(x):
    """`exp` through an in-place Function on a copy: what an author writes to keep `x`."""
    return ExpInPlace.apply(x.clone())


class ExpInPlace(Function):
    """`exp_`, from its output."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        y = x.exp_()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * y


def _quantise(x, step):
    steps = (x.detach() / step).round()
    return steps.to(torch.int64), x - steps * step


def _normalise(x):
    scale = x.detach().abs().amax(-1, keepdim=True).clamp(min=1e-6)
    return x / scale, scale


def _nearest(x, centres):
    return (x[:, None] - centres[None]).square().sum(-1).min(1)


SOUND = {
    "sin-cos": Sound(SinCos, lambda: (real(4, 5),), lambda x: (x.sin(), x.cos())),
    "moments": Sound(Moments, lambda: (real(4, 5),), lambda x: (x.mean(-1), x.square().mean(-1))),
    "three-ways": Sound(ThreeWays, lambda: (real(4, 5),), lambda x: (x * x, x * x * x, 2 * x)),
    "min-max": Sound(
        MinMax,
        lambda: (real(4, 5),),
        lambda x: (x.min(-1, keepdim=True).values, x.max(-1, keepdim=True).values),
    ),
    "polar": Sound(
        Polar,
        lambda: (positive(4, 5), real(4, 5, seed=1)),
        lambda x, y: (torch.hypot(x, y), torch.atan2(y, x)),
        convention=False,
    ),
    "chunks-of-even-rows": Sound(Chunks, lambda: (real(3, 6),), lambda x: x.chunk(2, -1)),
    "stack-any-number": Sound(
        StackAll,
        lambda: (1, real(2, 3), real(2, 3, seed=1), real(2, 3, seed=2)),
        lambda dim, *parts: torch.stack(parts, dim),
    ),
    "quantise-with-rest": Sound(Quantise, lambda: (real(4, 5), 0.5), _quantise),
    "normalise-with-scale": Sound(
        NormaliseWithScale, lambda: (real(4, 5),), _normalise, order=1, surrogate=True
    ),
    "count-and-sum": Sound(
        CountAndSum, lambda: (real(4, 5),), lambda x: (0, torch.where(x > 0, x, 0.0).sum())
    ),
    "nearest-centre": Sound(NearestCentre, lambda: (real(5, 3), real(4, 3, seed=1)), _nearest),
    "transposed-view": Sound(TransposedView, lambda: (real(4, 5),), torch.t),
    "identity": Sound(Identity, lambda: (real(4, 5),), lambda x: x * 1),
    "reshape": Sound(Reshape, lambda: (real(4, 6), (2, 3, -1)), torch.reshape),
    "scale-in-place": Sound(ScaleInPlace, lambda: (real(4, 5), 0.5), torch.mul, dirty=True),
    "relu-in-place": Sound(ReLUInPlace, lambda: (real(4, 5),), torch.relu, dirty=True),
    "accumulate-in-place": Sound(
        AccumulateInPlace,
        lambda: (real(4, 5), real(4, 5, seed=1), real(4, 5, seed=2)),
        lambda t, x, w: t + x * w,
        dirty=True,
    ),
    "exp-in-place-on-copy": Sound(exp_in_place, lambda: (real(4, 5),), torch.exp),
}

CASES = cases_of(SOUND)
