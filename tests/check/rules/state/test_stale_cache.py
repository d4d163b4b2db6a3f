"""Sound functions pass `stale-cache`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from pullback.check.rules.state.stale_cache import check
from tests.check.subjects import findings, made, normal, rule_tests

X = normal(3, 5)
SEEN = {}
FACTORS = {"square": 2.0}


class Softmax(Function):
    known = {}  # noqa: RUF012

    @staticmethod
    def forward(ctx, x):
        key = tuple(x.shape)
        if key not in Softmax.known:
            Softmax.known[key] = x.detach().softmax(-1)
        ctx.save_for_backward(Softmax.known[key])
        return x.softmax(-1)

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True))


class FirstMean(Function):
    mean = None

    @staticmethod
    def forward(ctx, x):
        if FirstMean.mean is None:
            FirstMean.mean = float(x.mean())
        ctx.save_for_backward(x)
        return (x - x.mean()).square().sum()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * (x - FirstMean.mean)


class AroundIt(Function):
    @staticmethod
    def forward(ctx, x):
        SEEN.setdefault("slope", 2 * x.detach())
        return x * x

    @staticmethod
    def backward(ctx, g):
        return g * SEEN["slope"]


class Table(Function):
    """Reads a table that no call changes."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return FACTORS["square"] * x * g


class WrongBelow(Function):
    """Wrong at other values, with no cache."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g * (1 if x.abs().max() > 1.9 else 2)


ORDERS, WINDOWS, SIZES, SCALES = {}, {}, {}, {}


class Sorted(Function):
    """Keeps the order of the first numbers of a shape, also for forward."""

    @staticmethod
    def forward(ctx, x):
        order = ORDERS.setdefault(tuple(x.shape), x.detach().argsort(-1))
        ctx.save_for_backward(order)
        return x.gather(-1, order)

    @staticmethod
    def backward(ctx, g):
        (order,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter(-1, order, g)


class Window(Function):
    """Keeps the window of the first dtype of a length."""

    @staticmethod
    def forward(ctx, x):
        n = x.shape[-1]
        if n not in WINDOWS:
            WINDOWS[n] = torch.hamming_window(n, dtype=x.dtype)
        window = WINDOWS[n].to(x.dtype)
        ctx.save_for_backward(window)
        return x * window

    @staticmethod
    def backward(ctx, g):
        (window,) = ctx.saved_tensors
        return g * window


class OnTensor(Function):
    """Keeps the scale of a tensor on the tensor."""

    @staticmethod
    def forward(ctx, x):
        if not hasattr(x, "scale"):
            x.scale = x.detach().abs().max()
        ctx.save_for_backward(x.scale)
        return x / x.scale

    @staticmethod
    def backward(ctx, g):
        (scale,) = ctx.saved_tensors
        return g / scale


class ByLength(Function):
    """Keeps what the key decides."""

    @staticmethod
    def forward(ctx, x):
        key = x.shape[-1], x.dtype
        if key not in SIZES:
            SIZES[key] = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
        ctx.save_for_backward(SIZES[key])
        return x * SIZES[key]

    @staticmethod
    def backward(ctx, g):
        (sizes,) = ctx.saved_tensors
        return g * sizes


class Watched(Function):
    """Keeps a number on the tensor, with the version that it is of."""

    @staticmethod
    def forward(ctx, x):
        if getattr(x, "known", (-1,))[0] != x._version:
            x.known = x._version, x.detach().abs().max()
        ctx.save_for_backward(x.known[1])
        return x / x.known[1]

    @staticmethod
    def backward(ctx, g):
        (scale,) = ctx.saved_tensors
        return g / scale


def centred(x):
    """A plain function that keeps the first mean of a shape."""
    return x - SCALES.setdefault(tuple(x.shape), x.detach().mean())


SOUND = {
    "by length": (ByLength, (X,)),
    "watched": (Watched, (X,)),
    "square": (made(lambda x: x * x, lambda g, x: 2 * x * g), (X,)),
    "table": (Table, (X,)),
    "wrong at other values": (WrongBelow, (2 * X / X.abs().max(),)),
}

PLANTED = {
    "by shape": (Softmax, (X,), "gradient of `x`"),
    "first call": (FirstMean, (X,), "gradient of `x`"),
    "around it": (AroundIt, (X,), "gradient of `x`"),
    "order": (Sorted, (X,), "output 0"),
    "another dtype": (Window, (X,), "in float32"),
    "on the tensor": (OnTensor, (X,), "changed in place"),
    "plain function": (centred, (X,), "output 0"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_caches_are_left_as_they_were():
    findings(check, Table, X)
    findings(check, Softmax, X)

    assert (FACTORS, list(Softmax.known)) == ({"square": 2.0}, [(3, 5)])


def test_gradcheck_alone_would_miss_the_mean():
    FirstMean.mean = None

    assert torch.autograd.gradgradcheck(FirstMean.apply, (X,))
