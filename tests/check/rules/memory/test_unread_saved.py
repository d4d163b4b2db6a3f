"""Sound functions pass `unread-saved`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from pullback.check.rules.memory.unread_saved import check
from tests.check.subjects import made, normal, rule_tests

X, Y = normal(4, 3), normal(4, 3, seed=1)


class Tanh(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * (1 - y * y)


class Both(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        _, y = ctx.saved_tensors
        return g * (1 - y * y)


class ShapeOnly(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sum(0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g.expand(x.shape)


class Bounded(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-100, 100)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x.abs() <= 100)


class ByNumpy(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.from_numpy(g.numpy() * x.exp().numpy())


class ForSecond(Function):
    """Reads its input for the second derivative only."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(x, y.detach())
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * (x.exp() if torch.is_grad_enabled() else y)


class _ExpBackward(Function):
    @staticmethod
    def forward(ctx, g, x, y):
        ctx.save_for_backward(g, x, y)
        return g * y

    @staticmethod
    def backward(ctx, h):
        g, x, y = ctx.saved_tensors
        return h * y, h * g * x.exp(), None


class InAnotherFunction(ForSecond):
    """Hands its input on to a Function whose own backward reads it."""

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return _ExpBackward.apply(g, x, y)


class OptionalBias(Function):
    """As in PyTorch's documentation: the bias is saved to see whether there is one."""

    @staticmethod
    def forward(ctx, x, bias=None):
        ctx.save_for_backward(x, bias)
        return x * x if bias is None else x * x + bias

    @staticmethod
    def backward(ctx, g):
        x, bias = ctx.saved_tensors
        return 2 * g * x, g if bias is not None else None


class WrongWithout(Function):
    """Asks for a shape where it should ask for numbers."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g.expand(x.shape)


class BatchedShape(Function):
    """An in-place write under vmap needs a batched tensor to write into."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x[..., :1].clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        gradient = torch.zeros_like(x)
        gradient[..., :1] = g
        return gradient


SOUND = {
    "for a generated rule of vmap": (BatchedShape, (X,)),
    "wrong without its numbers": (WrongWithout, (X,)),
    "optional": (OptionalBias, (X, Y)),
    "tanh": (Tanh, (X,)),
    "a bound that no number of the example meets": (Bounded, (X,)),
    "by numpy": (ByNumpy, (X,)),
    "for the second derivative": (ForSecond, (X,)),
    "by a Function of the second order": (InAnotherFunction, (X,)),
    "single number": (
        made(lambda x, s: x * 2, lambda g, x, s: (2 * g * x / x, None)),
        (X, Y[0, 0]),
    ),
}

PLANTED = {
    "for its shape alone": (ShapeOnly, (X,), "saved tensor 0, of shape [4, 3]"),
    "both": (Both, (X,), "saved tensor 0, of shape [4, 3]"),
    "never unpacked": (
        made(lambda x, y: x * y + x, lambda g, x, y: (g * (y + 1), g * y / y)),
        (X, Y),
        "saved tensor 0",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
