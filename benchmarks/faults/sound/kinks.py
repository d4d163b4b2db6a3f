"""Functions with corners, ties and flat parts; at the corner each takes a valid subgradient."""

import torch
import torch.nn.functional as F
from torch.autograd import Function

import pullback as pb
from benchmarks.faults.sound.entry import Sound, cases_of, real

# ---- element by element ----


class ReLU(Function):
    """`max(x, 0)` from the saved output."""

    @staticmethod
    def forward(ctx, x):
        y = x.clamp(min=0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output.masked_fill(y <= 0, 0)


class MiddleReLU(Function):
    """`max(x, 0)` with the slope 1/2 at the corner, which is a subgradient as good as 0."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        slope = torch.heaviside(x.detach(), x.new_full((), 0.5))
        return grad_output * slope


class LeakyReLU(Function):
    """`x` above zero and `slope * x` below."""

    @staticmethod
    def forward(ctx, x, slope):
        ctx.slope = slope
        ctx.save_for_backward(x)
        return torch.where(x > 0, x, slope * x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, grad_output, ctx.slope * grad_output), None


class PReLU(Function):
    """`x` above zero and `weight * x` below, one weight per channel (dimension 1)."""

    @staticmethod
    def forward(ctx, x, weight):
        if x.dim() < 2 or weight.shape != x.shape[1:2]:
            raise ValueError(f"PReLU takes x (N, C, ...) and weight (C), got {x.shape}")
        ctx.save_for_backward(x, weight)
        return torch.where(x > 0, x, PReLU.along(weight, x) * x)

    @staticmethod
    def along(weight, x):
        return weight.view(1, -1, *(1,) * (x.dim() - 2))

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.where(x > 0, grad_output, PReLU.along(weight, x) * grad_output)
        if ctx.needs_input_grad[1]:
            others = [d for d in range(x.dim()) if d != 1]
            grad_weight = (grad_output * x.clamp(max=0)).sum(others)
        return grad_x, grad_weight


class Abs(Function):
    """`|x|`; the slope at 0 is 0."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x.sign()


class Clamp(Function):
    """`x` limited to [low, high]; both may be None."""

    @staticmethod
    def forward(ctx, x, low, high):
        ctx.low, ctx.high = low, high
        ctx.save_for_backward(x)
        if low is None and high is None:
            return x.clone()
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        outside = torch.zeros_like(x, dtype=torch.bool)
        if ctx.low is not None:
            outside = outside | (x < ctx.low)
        if ctx.high is not None:
            outside = outside | (x > ctx.high)
        return grad_output.masked_fill(outside, 0), None, None


class ReLU6(pb.Function):
    """`x` limited to [0, 6]; flat ends are closed as in torch."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(0, 6)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output.masked_fill((x <= 0) | (x >= 6), 0)


class HardSwish(Function):
    """`x * relu6(x + 3) / 6`."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * (x + 3).clamp(0, 6) / 6

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        middle = grad_output * (x / 3 + 0.5)
        return torch.where(x <= -3, 0.0, torch.where(x < 3, middle, grad_output))


class HardSigmoid(Function):
    """`relu6(x + 3) / 6`."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x / 6 + 0.5).clamp(0, 1)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return torch.where((x > -3) & (x < 3), grad_output / 6, 0.0)


class SoftShrink(Function):
    """`x` moved towards 0 by `lambd`, and 0 when it would cross it."""

    @staticmethod
    def forward(ctx, x, lambd):
        ctx.lambd = lambd
        ctx.save_for_backward(x)
        return x - x.clamp(-lambd, lambd)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output.masked_fill((x >= -ctx.lambd) & (x <= ctx.lambd), 0), None


class HardShrink(Function):
    """`x` where its size is above `lambd`, and 0 elsewhere: it jumps."""

    @staticmethod
    def forward(ctx, x, lambd):
        flat = (x >= -lambd) & (x <= lambd)
        ctx.save_for_backward(flat)
        return x.masked_fill(flat, 0)

    @staticmethod
    def backward(ctx, grad_output):
        (flat,) = ctx.saved_tensors
        return grad_output.masked_fill(flat, 0), None


class Floor(Function):
    """The floor: piecewise constant, so its true gradient is 0."""

    @staticmethod
    def forward(ctx, x):
        return x.floor()

    @staticmethod
    def backward(ctx, grad_output):
        return torch.zeros_like(grad_output)


class Fraction(Function):
    """`x - trunc(x)`: a saw with slope 1."""

    @staticmethod
    def forward(ctx, x):
        return x - x.trunc()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class Remainder(Function):
    """`x % n` with a number `n`."""

    @staticmethod
    def forward(ctx, x, n):
        return x % n

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None


class TriangleWave(Function):
    """A wave of straight lines with period 4; a kink at every odd number."""

    @staticmethod
    def forward(ctx, x):
        phase = (x + 1) % 4
        ctx.save_for_backward(phase >= 2)
        return 1 - (phase - 2).abs()

    @staticmethod
    def backward(ctx, grad_output):
        (falling,) = ctx.saved_tensors
        return torch.where(falling, -grad_output, grad_output)


# ---- two inputs, ties ----


class Maximum(Function):
    """The larger of two, broadcast; at ties each gets half."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return torch.maximum(a, b)

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        halved = torch.where(a == b, grad_output / 2, grad_output)
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_a = halved.masked_fill(a < b, 0).sum_to_size(a.shape)
        if ctx.needs_input_grad[1]:
            grad_b = halved.masked_fill(b < a, 0).sum_to_size(b.shape)
        return grad_a, grad_b


class FirstMaximum(Function):
    """The larger of two of one shape; at ties the first gets everything."""

    @staticmethod
    def forward(ctx, a, b):
        if a.shape != b.shape:
            raise ValueError(f"a and b must have one shape, got {a.shape} and {b.shape}")
        first = a >= b
        ctx.save_for_backward(first)
        return torch.where(first, a, b)

    @staticmethod
    def backward(ctx, grad_output):
        (first,) = ctx.saved_tensors
        return torch.where(first, grad_output, 0.0), torch.where(first, 0.0, grad_output)


class Median3(Function):
    """The middle one of three tensors of one shape."""

    @staticmethod
    def forward(ctx, a, b, c):
        y, which = torch.stack((a, b, c)).median(0)
        ctx.save_for_backward(which)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (which,) = ctx.saved_tensors
        return tuple(
            grad_output.masked_fill(which != i, 0) if need else None
            for i, need in enumerate(ctx.needs_input_grad)
        )


# ---- along a dimension ----


class AMax(Function):
    """The largest along `dim`; ties share evenly."""

    @staticmethod
    def forward(ctx, x, dim):
        y = x.amax(dim, keepdim=True)
        ctx.dim = dim
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        winners = x == y
        return grad_output / winners.sum(ctx.dim, keepdim=True) * winners, None


class MaxWithIndices(Function):
    """The largest along `dim` and where it was; the place is not differentiable."""

    @staticmethod
    def forward(ctx, x, dim):
        values, indices = x.max(dim)
        ctx.dim, ctx.shape = dim, x.shape
        ctx.save_for_backward(indices)
        ctx.mark_non_differentiable(indices)
        return values, indices

    @staticmethod
    def backward(ctx, grad_values, _):
        (indices,) = ctx.saved_tensors
        zeros = grad_values.new_zeros(ctx.shape)
        if not ctx.shape:
            return grad_values.clone(), None
        picked = indices.unsqueeze(ctx.dim), grad_values.unsqueeze(ctx.dim)
        return zeros.scatter(ctx.dim, *picked), None


class Sort(Function):
    """Sorted along the last dimension, with the permutation."""

    @staticmethod
    def forward(ctx, x, descending):
        values, order = x.sort(dim=-1, descending=descending, stable=True)
        ctx.save_for_backward(order)
        ctx.mark_non_differentiable(order)
        return values, order

    @staticmethod
    def backward(ctx, grad_values, _):
        (order,) = ctx.saved_tensors
        if not order.shape:
            return grad_values.clone(), None
        return torch.zeros_like(grad_values).scatter(-1, order, grad_values), None


class TopK(Function):
    """The `k` largest of each row, and their places."""

    @staticmethod
    def forward(ctx, x, k):
        if x.dim() == 0 or k > x.shape[-1]:
            raise ValueError(f"k must be at most the row's length, got k={k} for {tuple(x.shape)}")
        values, places = x.topk(k)
        ctx.shape = x.shape
        ctx.save_for_backward(places)
        ctx.mark_non_differentiable(places)
        return values, places

    @staticmethod
    def backward(ctx, grad_values, _):
        (places,) = ctx.saved_tensors
        return grad_values.new_zeros(ctx.shape).scatter(-1, places, grad_values), None


class Median(pb.Function):
    """The lower median of each row."""

    @staticmethod
    def forward(ctx, x):
        if x.dim() == 0 or x.shape[-1] == 0:
            raise ValueError(f"rows must not be empty, got x of shape {tuple(x.shape)}")
        values, places = x.median(-1, keepdim=True)
        ctx.shape = x.shape
        ctx.save_for_backward(places)
        return values

    @staticmethod
    def backward(ctx, grad_output):
        (places,) = ctx.saved_tensors
        return grad_output.new_zeros(ctx.shape).scatter(-1, places, grad_output)


class CumulativeMax(Function):
    """The running maximum of each row: one element may win many times."""

    @staticmethod
    def forward(ctx, x):
        values, places = x.cummax(-1)
        ctx.save_for_backward(places)
        return values

    @staticmethod
    def backward(ctx, grad_output):
        (places,) = ctx.saved_tensors
        if not places.shape:
            return grad_output.clone()
        return torch.zeros_like(grad_output).scatter_add(-1, places, grad_output)


class MaxPool(Function):
    """1-d max pooling with window and stride `size`; a rest that fills no window is dropped."""

    @staticmethod
    def forward(ctx, x, size):
        if x.dim() == 0 or x.shape[-1] < size:
            raise ValueError(f"rows must have at least {size} elements, got {tuple(x.shape)}")
        values, which = x.unfold(-1, size, size).max(-1)
        ctx.shape = x.shape
        ctx.save_for_backward(which + size * torch.arange(which.shape[-1], device=x.device))
        return values

    @staticmethod
    def backward(ctx, grad_output):
        (places,) = ctx.saved_tensors
        return grad_output.new_zeros(ctx.shape).scatter(-1, places, grad_output), None


class Norm(Function):
    """The Euclidean norm of each row; the gradient at the zero row is 0."""

    @staticmethod
    def forward(ctx, x):
        y = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return (x / y).masked_fill(y == 0, 0) * grad_output


class LargestNorm(Function):
    """The largest size in each row; ties share evenly."""

    @staticmethod
    def forward(ctx, x):
        y = x.abs().amax(-1, keepdim=True)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        winners = x.abs() == y
        return grad_output / winners.sum(-1, keepdim=True) * (x.sign() * winners)


def _pool(x, size):
    return x.unfold(-1, size, size).max(-1).values


SOUND = {
    "relu": Sound(ReLU, lambda: (real(4, 5),), torch.relu),
    "relu-half-at-corner": Sound(MiddleReLU, lambda: (real(4, 5),), torch.relu, convention=False),
    "leaky-relu": Sound(LeakyReLU, lambda: (real(3, 7), 0.1), F.leaky_relu),
    "prelu": Sound(PReLU, lambda: (real(2, 3, 4), real(3, seed=1)), F.prelu),
    "abs": Sound(Abs, lambda: (real(4, 5),), torch.abs),
    "clamp": Sound(Clamp, lambda: (real(4, 5), -0.5, 0.7), torch.clamp),
    "clamp-below-only": Sound(Clamp, lambda: (real(4, 5), -0.5, None), torch.clamp),
    "relu6": Sound(ReLU6, lambda: (real(4, 5),), F.relu6),
    "hard-swish": Sound(HardSwish, lambda: (real(4, 5),), F.hardswish),
    "hard-sigmoid": Sound(
        HardSigmoid,
        lambda: (real(4, 5),),
        # `F.hardsigmoid` rounds 1/6 to float32 in its backward, whatever the dtype.
        lambda x: (x / 6 + 0.5).clamp(0, 1),
    ),
    "soft-shrink": Sound(SoftShrink, lambda: (real(4, 5), 0.4), F.softshrink),
    "hard-shrink": Sound(HardShrink, lambda: (real(4, 5), 0.4), F.hardshrink),
    "floor": Sound(Floor, lambda: (real(4, 5),), torch.floor),
    "fraction": Sound(Fraction, lambda: (real(4, 5),), torch.frac),
    "remainder": Sound(Remainder, lambda: (real(4, 5), 3), torch.remainder),
    "triangle-wave": Sound(
        TriangleWave,
        lambda: (real(4, 5),),
        lambda x: 1 - ((x + 1) % 4 - 2).abs(),
        convention=False,
    ),
    "maximum": Sound(Maximum, lambda: (real(4, 5), real(5, seed=1)), torch.maximum),
    "maximum-first-wins": Sound(
        FirstMaximum, lambda: (real(4, 5), real(4, 5, seed=1)), torch.maximum, convention=False
    ),
    "median-of-three": Sound(
        Median3,
        lambda: (real(4, 5), real(4, 5, seed=1), real(4, 5, seed=2)),
        lambda a, b, c: torch.stack((a, b, c)).median(0).values,
    ),
    "amax": Sound(AMax, lambda: (real(4, 5), -1), lambda x, d: x.amax(d, keepdim=True)),
    "max-with-indices": Sound(MaxWithIndices, lambda: (real(4, 5), 0), torch.max),
    "sort": Sound(
        Sort, lambda: (real(3, 6), True), lambda x, d: x.sort(dim=-1, descending=d, stable=True)
    ),
    "top-k": Sound(TopK, lambda: (real(3, 6), 2), torch.topk),
    "median": Sound(Median, lambda: (real(3, 5),), lambda x: x.median(-1, keepdim=True).values),
    "cumulative-max": Sound(CumulativeMax, lambda: (real(3, 6),), lambda x: x.cummax(-1).values),
    "max-pool": Sound(MaxPool, lambda: (real(2, 3, 7), 2), _pool),
    "norm": Sound(Norm, lambda: (real(4, 5),), lambda x: x.norm(dim=-1, keepdim=True)),
    "largest-norm": Sound(
        LargestNorm, lambda: (real(4, 5),), lambda x: x.abs().amax(-1, keepdim=True)
    ),
}

CASES = cases_of(SOUND)
