"""Reading and writing at indices, repeated ones included, and moving elements around."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch.autograd import Function

import pullback as pb
from benchmarks.faults.sound.entry import Sound, cases_of, coins, real, whole


class Gather(Function):
    """`torch.gather` along a dimension; repeated indices add up."""

    @staticmethod
    def forward(ctx, x, dim, index):
        ctx.dim, ctx.shape = dim, x.shape
        ctx.save_for_backward(index)
        return x.gather(dim, index)

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        zeros = grad_output.new_zeros(ctx.shape)
        return zeros.scatter_add(ctx.dim, index, grad_output), None, None


class ScatterAdd(Function):
    """`x.scatter_add(dim, index, source)`, two gradients."""

    @staticmethod
    def forward(ctx, x, dim, index, source):
        if index.shape != source.shape:
            raise ValueError(f"index and source must have one shape, got {index.shape}")
        ctx.dim = dim
        ctx.save_for_backward(index)
        return x.scatter_add(dim, index, source)

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        grad_source = grad_output.gather(ctx.dim, index) if ctx.needs_input_grad[3] else None
        return grad_output, None, None, grad_source


class IndexSelect(Function):
    """Rows of `x` by number, any of them several times."""

    @staticmethod
    def forward(ctx, x, rows):
        ctx.shape = x.shape
        ctx.save_for_backward(rows)
        return x.index_select(0, rows)

    @staticmethod
    def backward(ctx, grad_output):
        (rows,) = ctx.saved_tensors
        return grad_output.new_zeros(ctx.shape).index_add(0, rows, grad_output), None


class IndexAdd(Function):
    """`x` with rows of `source` times `alpha` added at `rows`."""

    @staticmethod
    def forward(ctx, x, rows, source, alpha):
        if x.shape[:1] == (0,) and rows.numel():
            raise ValueError("there is no row to add to")
        ctx.alpha = alpha
        ctx.save_for_backward(rows)
        return x.index_add(0, rows, source, alpha=alpha)

    @staticmethod
    def backward(ctx, grad_output):
        (rows,) = ctx.saved_tensors
        grad_source = None
        if ctx.needs_input_grad[2]:
            grad_source = ctx.alpha * grad_output.index_select(0, rows)
        return grad_output, None, grad_source, None


class Embedding(Function):
    """Rows of a table by number; the row `padding` gets no gradient, on purpose."""

    declares: ClassVar = {"surrogate": "table"}

    @staticmethod
    def forward(ctx, table, numbers, padding):
        if table.dim() != 2:
            raise ValueError(f"table must be a matrix, got shape {tuple(table.shape)}")
        ctx.padding, ctx.shape = padding, table.shape
        ctx.save_for_backward(numbers)
        return table[numbers]

    @staticmethod
    def backward(ctx, grad_output):
        (numbers,) = ctx.saved_tensors
        rows = grad_output.reshape(numbers.numel(), ctx.shape[1])
        if ctx.padding is not None:
            rows = rows.masked_fill((numbers == ctx.padding).reshape(-1, 1), 0)
        zeros = grad_output.new_zeros(ctx.shape)
        return zeros.index_add(0, numbers.reshape(-1), rows), None, None


class SegmentSum(Function):
    """The sum of the rows of each segment; a segment may be empty."""

    @staticmethod
    def forward(ctx, x, segment, count):
        ctx.save_for_backward(segment)
        return x.new_zeros(count, *x.shape[1:]).index_add(0, segment, x)

    @staticmethod
    def backward(ctx, grad_output):
        (segment,) = ctx.saved_tensors
        return grad_output.index_select(0, segment), None, None


class SegmentMean(pb.Function):
    """The mean of the rows of each segment; 0 where a segment is empty."""

    @staticmethod
    def forward(ctx, x, segment, count):
        sizes = torch.bincount(segment, minlength=count).clamp(min=1)
        ctx.save_for_backward(segment, sizes)
        total = x.new_zeros(count, *x.shape[1:]).index_add(0, segment, x)
        return total / SegmentMean.along(sizes, x)

    @staticmethod
    def along(sizes, x):
        return sizes.view(-1, *(1,) * (x.dim() - 1)).to(x.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        segment, sizes = ctx.saved_tensors
        shared = grad_output / SegmentMean.along(sizes, grad_output)
        return shared.index_select(0, segment), None, None


class MaskedSelect(Function):
    """The elements where the mask is true, as one row: the size depends on the data."""

    @staticmethod
    def forward(ctx, x, mask):
        if x.shape != mask.shape:
            raise ValueError(f"x and mask must have one shape, got {x.shape} and {mask.shape}")
        ctx.save_for_backward(mask)
        return x[mask]

    @staticmethod
    def backward(ctx, grad_output):
        (mask,) = ctx.saved_tensors
        zeros = grad_output.new_zeros(mask.shape)
        return zeros.masked_scatter(mask, grad_output), None


class Roll(Function):
    """Moved in a circle along a dimension."""

    @staticmethod
    def forward(ctx, x, shift, dim):
        ctx.shift, ctx.dim = shift, dim
        return x.roll(shift, dim)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.roll(-ctx.shift, ctx.dim), None, None


class ZeroPad(Function):
    """Zeros to the left and to the right of each row."""

    @staticmethod
    def forward(ctx, x, left, right):
        ctx.sizes = left, x.shape[-1]
        return F.pad(x, (left, right))

    @staticmethod
    def backward(ctx, grad_output):
        left, size = ctx.sizes
        return grad_output.narrow(-1, left, size), None, None


class ReflectPad(Function):
    """Mirrored at both ends of each row, without the end elements."""

    @staticmethod
    def forward(ctx, x, pad):
        if x.dim() == 0 or pad >= x.shape[-1]:
            raise ValueError(f"pad must be below the row's length, got {pad} for {x.shape}")
        ctx.pad, ctx.size = pad, x.shape[-1]
        left, right = x[..., 1 : pad + 1].flip(-1), x[..., -pad - 1 : -1].flip(-1)
        return torch.cat((left, x, right), -1) if pad else x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        pad, size = ctx.pad, ctx.size
        left, middle, right = grad_output.split((pad, size, pad), -1)
        folded = F.pad(left.flip(-1), (1, size - pad - 1))
        folded = folded + F.pad(right.flip(-1), (size - pad - 1, 1))
        return middle + folded, None


class Frames(Function):
    """Overlapping windows of each row; elements are in several of them."""

    @staticmethod
    def forward(ctx, x, size, step):
        if x.dim() == 0 or x.shape[-1] < size:
            raise ValueError(f"rows must have at least {size} elements, got {tuple(x.shape)}")
        ctx.shape, ctx.size, ctx.step = x.shape, size, step
        return x.unfold(-1, size, step).clone()

    @staticmethod
    def backward(ctx, grad_output):
        count = grad_output.shape[-2]
        starts = torch.arange(count, device=grad_output.device) * ctx.step
        places = (starts[:, None] + torch.arange(ctx.size, device=grad_output.device)).flatten()
        zeros = grad_output.new_zeros(ctx.shape)
        return zeros.index_add(-1, places, grad_output.flatten(-2)), None, None


class LowerTriangle(Function):
    """The lower triangle of each matrix."""

    @staticmethod
    def forward(ctx, x, diagonal):
        ctx.diagonal = diagonal
        return x.tril(diagonal)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.tril(ctx.diagonal), None


class Diagonal(Function):
    """The diagonal of a square matrix, as a copy."""

    @staticmethod
    def forward(ctx, x):
        if x.dim() != 2 or x.shape[0] != x.shape[1]:
            raise ValueError(f"takes a square matrix, got shape {tuple(x.shape)}")
        return x.diagonal().clone()

    @staticmethod
    def backward(ctx, grad_output):
        return torch.diag(grad_output)


class Repeat(Function):
    """Each row `times` times in a row."""

    @staticmethod
    def forward(ctx, x, times):
        ctx.times = times
        return x.repeat_interleave(times, 0)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.unflatten(0, (-1, ctx.times)).sum(1), None


class LinearInterpolation(Function):
    """`table` read at real places, linearly between whole ones; both get gradients."""

    @staticmethod
    def forward(ctx, table, places):
        if table.dim() != 1 or table.numel() < 2:
            raise ValueError(f"table must be a row of two or more, got {tuple(table.shape)}")
        left = places.floor().clamp(0, table.numel() - 2).long()
        ctx.save_for_backward(table, places, left)
        return torch.lerp(table[left], table[left + 1], places - left)

    @staticmethod
    def backward(ctx, grad_output):
        table, places, left = ctx.saved_tensors
        grad_table = grad_places = None
        if ctx.needs_input_grad[0]:
            share = places - left
            zeros = torch.zeros_like(table)
            flat = left.flatten()
            zeros = zeros.index_add(0, flat, (grad_output * (1 - share)).flatten())
            grad_table = zeros.index_add(0, flat + 1, (grad_output * share).flatten())
        if ctx.needs_input_grad[1]:
            grad_places = grad_output * (table[left + 1] - table[left])
        return grad_table, grad_places


def _segment_sum(x, segment, count):
    return torch.zeros(count, *x.shape[1:], dtype=x.dtype).index_add(0, segment, x)


def _segment_mean(x, segment, count):
    sizes = torch.bincount(segment, minlength=count).clamp(min=1).to(x.dtype)
    return _segment_sum(x, segment, count) / sizes.view(-1, *(1,) * (x.dim() - 1))


def _embedding(table, numbers, padding):
    return F.embedding(numbers, table, padding_idx=padding)


def _interpolation(table, places):
    left = places.detach().floor().clamp(0, table.numel() - 2).long()
    return table[left] + (places - left) * (table[left + 1] - table[left])


def _places():
    return torch.tensor([0.25, 3.5, 0.75, 2.1], dtype=torch.float64, requires_grad=True)


SOUND = {
    "gather": Sound(Gather, lambda: (real(4, 5), 1, whole(4, 7, high=5)), torch.gather),
    "scatter-add": Sound(
        ScatterAdd,
        lambda: (real(4, 5), 1, whole(4, 7, high=5), real(4, 7, seed=1)),
        torch.scatter_add,
    ),
    "index-select": Sound(
        IndexSelect, lambda: (real(4, 5), whole(7, high=4)), lambda x, i: x.index_select(0, i)
    ),
    "index-add": Sound(
        IndexAdd,
        lambda: (real(4, 5), whole(7, high=4), real(7, 5, seed=1), -2.0),
        lambda x, i, s, a: x.index_add(0, i, s, alpha=a),
    ),
    "embedding": Sound(
        Embedding, lambda: (real(6, 3), whole(2, 5, high=6), None), _embedding, surrogate=True
    ),
    "embedding-with-padding": Sound(
        Embedding, lambda: (real(6, 3), whole(2, 5, high=6), 1), _embedding, surrogate=True
    ),
    "segment-sum": Sound(SegmentSum, lambda: (real(7, 3), whole(7, high=4), 5), _segment_sum),
    "segment-mean": Sound(SegmentMean, lambda: (real(7, 3), whole(7, high=4), 5), _segment_mean),
    "masked-select": Sound(MaskedSelect, lambda: (real(4, 5), coins(4, 5)), lambda x, m: x[m]),
    "roll": Sound(Roll, lambda: (real(4, 5), 2, 1), torch.roll),
    "zero-pad": Sound(ZeroPad, lambda: (real(4, 5), 1, 2), lambda x, a, b: F.pad(x, (a, b))),
    "reflect-pad": Sound(
        ReflectPad, lambda: (real(2, 3, 5), 2), lambda x, p: F.pad(x, (p, p), mode="reflect")
    ),
    "frames": Sound(Frames, lambda: (real(3, 9), 4, 2), lambda x, n, s: x.unfold(-1, n, s)),
    "lower-triangle": Sound(LowerTriangle, lambda: (real(4, 4), -1), torch.tril),
    "diagonal": Sound(Diagonal, lambda: (real(4, 4),), torch.diagonal),
    "repeat": Sound(Repeat, lambda: (real(3, 4), 2), lambda x, n: x.repeat_interleave(n, 0)),
    "linear-interpolation": Sound(
        LinearInterpolation, lambda: (real(5), _places()), _interpolation, low=False
    ),
}

CASES = cases_of(SOUND)
