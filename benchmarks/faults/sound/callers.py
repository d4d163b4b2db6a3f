"""What callers may do and authors have thought of: options, broadcasting, masks, parameters."""

import torch
from torch.autograd import Function

from benchmarks.faults.sound.entry import Sound, cases_of, coins, real

# ---- Functions ----


class GatedSum(Function):
    """A gate that may be broadcast; what it was broadcast over is summed."""

    @staticmethod
    def forward(ctx, x, gate):
        ctx.save_for_backward(x, gate)
        return x + x * gate

    @staticmethod
    def backward(ctx, grad_output):
        x, gate = ctx.saved_tensors
        grad_x = grad_gate = None
        if ctx.needs_input_grad[0]:
            grad_x = (grad_output * (1 + gate)).sum_to_size(x.shape)
        if ctx.needs_input_grad[1]:
            grad_gate = (grad_output * x).sum_to_size(gate.shape)
        return grad_x, grad_gate


class OptionalGain(Function):
    """A gain that is trained where it is given."""

    @staticmethod
    def forward(ctx, x, gain=None):
        ctx.save_for_backward(x, gain)
        return torch.sin(x) if gain is None else torch.sin(x) * gain

    @staticmethod
    def backward(ctx, grad_output):
        x, gain = ctx.saved_tensors
        grad_x = grad_gain = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_output * torch.cos(x)
            grad_x = grad_x if gain is None else (grad_x * gain).sum_to_size(x.shape)
        if ctx.needs_input_grad[1]:
            grad_gain = (grad_output * torch.sin(x)).sum_to_size(gain.shape)
        return grad_x, grad_gain


class ShareOfChosen(Function):
    """The mean over what a mask has chosen, zero where that is nothing."""

    @staticmethod
    def forward(ctx, x, chosen):
        if x.shape != chosen.shape or chosen.dtype != torch.bool:
            raise ValueError(f"takes a mask of shape {tuple(x.shape)}, got {tuple(chosen.shape)}")
        count = max(int(chosen.sum()), 1)
        ctx.save_for_backward(chosen)
        ctx.count = count
        return torch.where(chosen, x, 0).sum() / count

    @staticmethod
    def backward(ctx, grad_output):
        (chosen,) = ctx.saved_tensors
        return torch.where(chosen, grad_output / ctx.count, 0), None


class WeightedPair(Function):
    """A pair with a `jvp` that takes a tangent which is None for zero."""

    @staticmethod
    def forward(a, b):
        return 3 * a - b

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)
        ctx.shapes = tuple(value.shape for value in inputs)

    @staticmethod
    def backward(ctx, grad_output):
        if grad_output is None:
            return None, None
        one, two = ctx.shapes
        grad_a = (3 * grad_output).sum_to_size(one) if ctx.needs_input_grad[0] else None
        grad_b = (-grad_output).sum_to_size(two) if ctx.needs_input_grad[1] else None
        return grad_a, grad_b

    @staticmethod
    def jvp(ctx, a, b):
        if a is None:
            return -b
        return 3 * a if b is None else 3 * a - b


class TwoParts(Function):
    """Two outputs, each in memory of its own."""

    @staticmethod
    def forward(ctx, x):
        half = x.shape[-1] // 2
        ctx.save_for_backward(x)
        return torch.sin(x[..., :half]), torch.sin(x[..., half:])

    @staticmethod
    def backward(ctx, one, two):
        (x,) = ctx.saved_tensors
        return torch.cat([one, two], -1) * torch.cos(x)


# ---- the table ----

SOUND = {
    "gated-sum": Sound(
        GatedSum, lambda: (real(4, 5), real(4, 5, seed=1)), lambda x, gate: x + x * gate
    ),
    "optional-gain": Sound(
        OptionalGain, lambda: (real(4, 5), real(5, seed=1)), lambda x, gain: torch.sin(x) * gain
    ),
    "optional-gain-left-out": Sound(
        OptionalGain, lambda: (real(4, 5), None), lambda x, gain: torch.sin(x)
    ),
    "share-of-chosen": Sound(
        ShareOfChosen,
        lambda: (real(4, 5), coins(4, 5)),
        lambda x, m: torch.where(m, x, 0).sum() / max(int(m.sum()), 1),
    ),
    "weighted-pair": Sound(
        WeightedPair, lambda: (real(4, 5), real(4, 5, seed=1)), lambda a, b: 3 * a - b
    ),
    "two-parts": Sound(
        TwoParts,
        lambda: (real(3, 8),),
        lambda x: (
            torch.sin(x[..., : x.shape[-1] // 2]),
            torch.sin(x[..., x.shape[-1] // 2 :]),
        ),
    ),
}

CASES = cases_of(SOUND)
