"""What is emitted as Python in the tests: Functions and programs as people write them."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import pullback as pb
from examples.my_relu import MyReLU

# ---- things that a class of this module may need ----

# The root of a half, as a table would have it.
ROOT = math.sqrt(0.5)
NODES = torch.tensor([0.25, 0.75])


def half(x: Tensor) -> Tensor:
    """Half of it."""
    return x / 2


def quarter(x):
    return half(half(x))


# ---- hand-written ----


class Square(torch.autograd.Function):
    """The square of x."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


class Leaning(pb.Function):
    """A quarter of x, bent by constants of this module."""

    @staticmethod
    def forward(ctx: pb.AutogradContext, x):
        ctx.save_for_backward(x)
        return quarter(x) * ROOT + NODES[0] * x * x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (ROOT / 4 + 2 * NODES[0] * x)


class Scale(torch.autograd.Function):
    """x times a plain number."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor, None


class Cube(pb.Function):
    """x to the third; saves an intermediate, and names its gradient."""

    @staticmethod
    def forward(ctx, x):
        square = x * x
        ctx.save_for_backward(x, square)
        return x * square

    @staticmethod
    def backward(ctx, g):
        x, square = ctx.saved_tensors
        return {"x": g * (2 * x * x + square)}


class Increment(torch.autograd.Function):
    """x plus one, in place."""

    @staticmethod
    def forward(ctx, x):
        x.add_(1)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class Unwritten(pb.Function):
    """The sine of x, times a number; nobody wrote its backward."""

    @staticmethod
    def forward(x, factor):
        return x.sin() * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


class Round(torch.autograd.Function):
    """Rounding with a straight-through gradient."""

    declares = {"surrogate": "x"}  # noqa: RUF012

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


class Wrong(torch.autograd.Function):
    """The sine of x, with a backward that forgets a factor."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sin(2 * x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.cos(2 * x)


# ---- programs ----


def swish(x):
    """x times its own sigmoid."""
    gate = torch.sigmoid(x)
    return x * gate


def logs(x, index):
    """Logarithms of some elements, where a gradient exists only above zero."""
    return torch.log(x)[index]


def square_sin(x, y):
    """The square of x, times the sine of y."""
    square = Square.apply(x)
    return square * torch.sin(y)


def noisy(x):
    """x, a part of it dropped."""
    return torch.dropout(x, 0.5, True) * x


def centred(x):
    """x less its mean, which counts as a constant."""
    with torch.no_grad():
        mean = x.mean()
    return (x - mean) ** 2


def steps(x, y):
    """Several Functions, an op with two results, and one without recording."""
    with torch.no_grad():
        largest = y.abs().max()
    width, middle = torch.var_mean(Scale.apply(x, 3.0) / largest)
    summed = Square.apply(width) + Scale.apply(y, 0.5) + Cube.apply(x)
    return torch.nn.functional.layer_norm(summed, (5,)), middle


def row(*, low=-1.5, high=1.9, count=5):
    """Numbers at equal distances."""
    return torch.linspace(low, high, count)


@dataclass(frozen=True)
class Case:
    """A thing to emit, with examples where it has none of its own.

    `original` is what the emitted module is compared with, called with `tensors`; `tampered` is a
    part of a gradient in the text, and what to put in its place.
    """

    thing: Any
    original: Callable[..., Any]
    tensors: tuple[Tensor, ...]
    examples: tuple[Any, ...] | None
    tampered: tuple[str, str]


def _case(thing, original, *tensors, tampered, plain=(), examples=True):
    given = (*tensors, *plain) if examples else None
    return Case(thing, original, tensors, given, tampered)


@functools.cache
def cases() -> dict[str, Case]:
    """Every kind of thing that can be emitted."""
    x, y = row(), row(low=0.3, high=2.0).flip(0)
    return {
        "square": _case(Square, Square.apply, x, tampered=("2 * x * g", "3 * x * g")),
        "my_relu": _case(MyReLU, MyReLU.apply, x, tampered=("output <= 0, 0", "output <= 0, 1")),
        "leaning": _case(Leaning, Leaning.apply, x, tampered=("ROOT / 4", "ROOT / 3")),
        "scale": _case(
            Scale,
            lambda x: Scale.apply(x, 3.0),
            x,
            plain=(3.0,),
            tampered=("g * ctx.factor", "-g * ctx.factor"),
        ),
        "cube": _case(Cube, Cube.apply, x, tampered=("2 * x * x", "2.001 * x * x")),
        "increment": _case(
            Increment,
            lambda x: Increment.apply(x.clone()),
            x,
            tampered=("return g", "return g + 1e-3"),
        ),
        "unwritten": _case(
            Unwritten,
            lambda x: Unwritten.apply(x, 2.0),
            x,
            plain=(2.0,),
            tampered=("x.cos()", "x.sin()"),
        ),
        "swish": _case(swish, swish, x, tampered=("(1 - gate)", "(1 + gate)")),
        "logs": _case(
            logs, logs, y, torch.tensor([0, 2, 4]), tampered=("return grad_x", "return -grad_x")
        ),
        "noisy": _case(noisy, noisy, x, tampered=("return grad_x", "return 2 * grad_x")),
        "derived": _case(
            pb.derive(square_sin, x, y, save="inputs"),
            square_sin,
            x,
            y,
            examples=False,
            tampered=("y.cos()", "y.cosh()"),
        ),
        "combined": _case(
            pb.combine(square_sin, x, y),
            square_sin,
            x,
            y,
            examples=False,
            tampered=("2 * x", "2 + x"),
        ),
        "hybrid": _case(
            pb.hybrid(square_sin, x, y, groups=[(0, 2)]),
            square_sin,
            x,
            y,
            examples=False,
            tampered=("2 * x", "x"),
        ),
        "nested": _case(pb.nest(square_sin), square_sin, x, y, tampered=("2 * x * g", "x * g")),
        "steps": _case(
            pb.hybrid(steps, x, y, groups=[(3, 4, 5, 6, 7)]),
            steps,
            x,
            y,
            examples=False,
            tampered=("grad_div / largest", "grad_div * largest"),
        ),
    }
