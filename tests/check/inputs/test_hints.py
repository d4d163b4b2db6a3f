"""Inputs are guessed from hints by a rule that the page states, and only if forward takes them."""

from typing import Optional

import pytest
import torch
from torch import Tensor

from pullback.check.inputs.hints import guessed, refusal_of
from pullback.check.target.target import target_of
from pullback.judge.example import describe_value


def no_gradient(ctx, g):
    return (None,) * len(ctx.needs_input_grad)


def function(forward, backward=no_gradient):
    return type(
        "F",
        (torch.autograd.Function,),
        {"forward": staticmethod(forward), "backward": staticmethod(backward)},
    )


def hinted(ctx, x: Tensor, n: int, rate: float, flag: bool, name: str):
    return x * n * rate


def defaults(ctx, x: Tensor, n: int = 7, mask=None):
    return x * n


def optional(ctx, x: Tensor, bias: Optional[Tensor]):  # noqa: UP045
    return x if bias is None else x + bias


def needs_bias(ctx, x: Tensor, bias: "Tensor | None"):
    return x + bias


def unhinted(ctx, x, w):
    return x @ w


def vector(ctx, x):
    assert x.dim() == 1
    return 2 * x


def image(ctx, x: Tensor, w: Tensor, b: Tensor):
    return torch.conv2d(x, w, b)


def scaled(ctx, x, by):
    assert isinstance(by, float)
    return x * by


CASES = {
    "plain values": (hinted, "float32[3, 4], 2, 0.5, True, ''"),
    "defaults": (defaults, "float32[3, 4], 7, None"),
    "optional": (optional, "float32[3, 4], None"),
    "optional that is needed": (needs_bias, "float32[3, 4], float32[3, 4]"),
    "product": (unhinted, "float32[3, 4], float32[4, 5]"),
    "vector": (vector, "float32[4]"),
    "image": (image, "float32[2, 3, 8, 8], float32[4, 3, 3, 3], float32[4]"),
    "number without hint": (scaled, "float32[3, 4], 0.5"),
}


@pytest.mark.parametrize("case", CASES)
def test_guess_follows_the_hints(case):
    forward, expected = CASES[case]
    args = guessed(target_of(function(forward)))

    assert args is not None
    assert ", ".join(describe_value(arg) for arg in args) == expected


def test_shape_with_working_backward_is_preferred():
    def forward(ctx, x):
        return 2 * x

    def backward(ctx, g):
        assert g.dim() == 3
        return 2 * g

    (x,) = guessed(target_of(function(forward, backward)))

    assert x.shape == (2, 3, 4)


def test_forward_that_refuses_all_gives_none():
    def forward(ctx, x):
        raise ValueError("no")

    assert guessed(target_of(function(forward))) is None


def test_function_without_parameters_gives_none():
    assert guessed(target_of(lambda: torch.ones(1))) is None


def test_schema_of_op_is_read():
    args = guessed(target_of(torch.ops.aten.mm.default))

    assert [tuple(arg.shape) for arg in args] == [(3, 4), (4, 5)]


def test_plain_arguments_of_op_are_guessed():
    @torch.library.custom_op("hints::shrink", mutates_args=())
    def shrink(x: Tensor, by: float, sizes: list[int], y: Tensor | None, n: int = 3) -> Tensor:
        return x * by * n * len(sizes)

    shrink.register_autograd(lambda ctx, g: (g, None, None, None, None))
    x, *plain = guessed(target_of(shrink))

    assert tuple(x.shape) == (3, 4)
    assert plain == [0.5, [2, 2], None, 3]


def test_guess_is_the_same_each_time():
    first, second = (guessed(target_of(function(vector)))[0] for _ in range(2))

    assert torch.equal(first, second)


def test_module_is_guessed_by_its_forward():
    args = guessed(target_of(torch.nn.Linear(4, 2)))
    assert args is not None
    assert [arg.shape[-1] for arg in args] == [4]


def test_no_argument_to_guess_is_told():
    assert refusal_of(target_of(lambda *args: args[0])) == "its signature names no argument"


# ---- plain values, by the look of forward and backward ----


class Steep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x * k

    @staticmethod
    def backward(ctx, g):
        return g * ctx.k, None


class Along(Steep):
    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        return x.cumsum(dim)

    @staticmethod
    def backward(ctx, g):
        return g.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim), None


class Weighted(Steep):
    @staticmethod
    def forward(ctx, x, w):
        ctx.w = w
        return x @ w

    @staticmethod
    def backward(ctx, g):
        return g @ ctx.w.T, None


class Both(Steep):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.k, g * x


@pytest.mark.parametrize(
    ("cls", "kinds"),
    [
        (Steep, [Tensor, float]),
        (Along, [Tensor, int]),
        (Weighted, [Tensor, Tensor]),  # neither number is accepted
        (Both, [Tensor, Tensor]),  # it has a gradient
    ],
)
def test_what_is_kept_on_the_context_without_a_gradient_is_plain(cls, kinds):
    assert [type(arg) for arg in guessed(target_of(cls))] == kinds


class Called(Steep):
    @staticmethod
    def forward(ctx, x, gradient):
        ctx.k = gradient
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return ctx.k(g), None


def test_no_plain_value_is_made_up_that_backward_cannot_use():
    assert guessed(target_of(Called)) is None
    assert "'float' object is not callable" in refusal_of(target_of(Called))


def test_a_backward_that_fails_at_tensors_has_inputs():
    broken = function(unhinted, lambda ctx, g: g.shape[7])

    assert [type(arg) for arg in guessed(target_of(broken))] == [Tensor, Tensor]
