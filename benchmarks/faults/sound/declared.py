"""Gradients that are not forward's, on purpose, and other intents declared on the class.

`declares` says what is meant, so that nothing of it is a finding. The plain twins have the same
surrogate, spelled with `detach` or a hook.
"""

from typing import ClassVar

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import pullback as pb
from benchmarks.faults.sound.entry import Sound, cases_of, real, whole


class StraightThroughRound(Function):
    """Rounded, with the gradient of the identity."""

    declares: ClassVar = {"surrogate": "x"}

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class Binarise(Function):
    """The sign, with the gradient of the identity within [-1, 1]."""

    declares: ClassVar = {"surrogate": "x"}

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output.masked_fill(x.abs() > 1, 0)


class Spike(pb.Function):
    """A step with the gradient of a fast sigmoid, as spiking networks use."""

    declares: ClassVar = {"surrogate": "x"}

    @staticmethod
    def forward(ctx, x, slope):
        ctx.slope = slope
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output / (1 + ctx.slope * x.abs()) ** 2, None


class ReverseGradient(Function):
    """The identity, with the gradient times `-strength`."""

    declares: ClassVar = {"surrogate": True}

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return -ctx.strength * grad_output, None


class ClipGradient(Function):
    """The identity, with each entry of the gradient limited to [-limit, limit]."""

    declares: ClassVar = {"surrogate": "x"}

    @staticmethod
    def forward(ctx, x, limit):
        ctx.limit = limit
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.clamp(-ctx.limit, ctx.limit), None


class ScaleGradient(Function):
    """The identity, with the gradient times a number."""

    declares: ClassVar = {"surrogate": "x"}

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.factor, None


class StopGradient(Function):
    """The product of two, where only the first gets a gradient: the second is a teacher."""

    declares: ClassVar = {"surrogate": "b"}

    @staticmethod
    def forward(ctx, a, b):
        if a.shape != b.shape:
            raise ValueError(f"a and b must have one shape, got {a.shape} and {b.shape}")
        ctx.save_for_backward(b)
        return a * b

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (b,) = ctx.saved_tensors
        return grad_output * b, torch.zeros_like(b)


class FakeQuantise(Function):
    """Rounded to steps and limited to a range; the gradient passes within the range."""

    declares: ClassVar = {"surrogate": "x"}

    @staticmethod
    def forward(ctx, x, step, low, high):
        level = (x / step).round()
        ctx.save_for_backward((level < low) | (level > high))
        return level.clamp(low, high) * step

    @staticmethod
    def backward(ctx, grad_output):
        (outside,) = ctx.saved_tensors
        return grad_output.masked_fill(outside, 0), None, None, None


class DonatedLogits(Function):
    """Cross entropy that writes its gradient over the logits it was given, and says so."""

    declares: ClassVar = {"donates": ("logits",), "once_differentiable": True}

    @staticmethod
    def forward(ctx, logits, labels):
        if logits.dim() != 2 or labels.shape != logits.shape[:1] or not logits.shape[1]:
            raise ValueError(f"takes (n, classes) and (n), got {logits.shape}, {labels.shape}")
        logs = torch.log_softmax(logits, 1)
        losses = -logs.gather(1, labels.unsqueeze(1)).squeeze(1)
        gradient = logits.detach().copy_(logs.exp())
        gradient.scatter_add_(1, labels.unsqueeze(1), -torch.ones_like(gradient[:, :1]))
        ctx.save_for_backward(gradient)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (gradient,) = ctx.saved_tensors
        return gradient * grad_output.unsqueeze(1), None


def _round(x):
    return x + (x.round() - x).detach()


def _binarise(x):
    inside = x.clamp(-1, 1)
    return inside + (torch.where(x >= 0, 1.0, -1.0) - inside).detach()


def _spike(x, slope):
    soft = x / (1 + slope * x.abs())
    return soft + ((x > 0).to(x.dtype) - soft).detach()


def _scaled(x, factor):
    return x * factor + (x - x * factor).detach()


def _clipped(x, limit):
    y = x * 1
    if y.requires_grad:
        y.register_hook(lambda g: g.clamp(-limit, limit))
    return y


def _fake_quantise(x, step, low, high):
    level = (x / step).round()
    inside = torch.where((level < low) | (level > high), x.detach(), x)
    return inside + (level.clamp(low, high) * step - inside).detach()


SOUND = {
    "straight-through-round": Sound(
        StraightThroughRound, lambda: (real(4, 5),), _round, surrogate=True
    ),
    "binarise": Sound(Binarise, lambda: (real(4, 5),), _binarise, surrogate=True),
    "spike": Sound(Spike, lambda: (real(4, 5), 10.0), _spike, surrogate=True),
    "reverse-gradient": Sound(
        ReverseGradient, lambda: (real(4, 5), 0.5), lambda x, s: _scaled(x, -s), surrogate=True
    ),
    "clip-gradient": Sound(ClipGradient, lambda: (real(4, 5), 0.5), _clipped, surrogate=True),
    "scale-gradient": Sound(ScaleGradient, lambda: (real(4, 5), 0.1), _scaled, surrogate=True),
    "stop-gradient-of-teacher": Sound(
        StopGradient,
        lambda: (real(4, 5), real(4, 5, seed=1)),
        lambda a, b: a * b.detach() + b * 0,
        order=1,
        surrogate=True,
    ),
    "fake-quantise": Sound(
        FakeQuantise, lambda: (real(4, 5), 0.25, -4, 3), _fake_quantise, surrogate=True
    ),
    "donated-logits": Sound(
        DonatedLogits,
        lambda: (real(6, 5), whole(6, high=5)),
        lambda x, t: torch.nn.functional.cross_entropy(x, t, reduction="none"),
        order=1,
        dirty=True,
    ),
}

CASES = cases_of(SOUND)
