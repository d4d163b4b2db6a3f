"""A backward is read again for each choice of inputs and outputs, and known if nothing is new."""

import pytest
import torch
from torch.autograd import Function

from pullback.function.plain import plain_program
from pullback.prove.programs import UnreadableError, pair_of_programs
from pullback.prove.requests import partial_requests, view_for


def row(seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(3, dtype=torch.float64, generator=rng)


class Product(Function):
    """Two outputs of two inputs; zeros for outputs that are not used."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y, x.exp()

    @staticmethod
    def backward(ctx, g, h):
        x, y = ctx.saved_tensors
        return g * y + h * x.exp(), g * x


class ProductThatLooks(Product):
    """The same, but it looks at what is needed."""

    @staticmethod
    def backward(ctx, g, h):
        x, y = ctx.saved_tensors
        if all(ctx.needs_input_grad):
            return g * y + h * x.exp(), g * x
        return h * x.exp() + y * g, g * x


class ProductWithoutZeros(Product):
    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        return Product.forward(ctx, x, y)

    @staticmethod
    def backward(ctx, g, h):
        return Product.backward(ctx, 1 * g, 1 * h)


def sides(cls):
    return pair_of_programs(cls.apply, plain_program(cls), [row(), row(1)])


def news_of(cls):
    """The settings in which something is new."""
    both = sides(cls)
    whole, keys = both.views()[0], list(both.names)
    return [s.text for s in partial_requests(both) if view_for(s, whole, keys) is not None]


def test_settings_are_all_choices_but_the_whole():
    assert [setting.text for setting in partial_requests(sides(Product))] == [
        "only `x` needs a gradient",
        "only `y` needs a gradient",
        "only output 0 is used",
        "only output 1 is used",
    ]


def test_nothing_is_new_in_plain_backward():
    assert news_of(Product) == []


def test_other_expression_is_new():
    assert news_of(ProductThatLooks) == ["only `x` needs a gradient"]


def test_only_what_is_asked_for_is_read():
    both = sides(ProductThatLooks)
    whole = both.views()[0]
    (first, *_) = partial_requests(both)

    assert view_for(first, whole, [1]) is None


def test_error_of_the_user_is_told():
    both = sides(ProductWithoutZeros)
    whole, keys = both.views()[0], list(both.names)
    setting = next(s for s in partial_requests(both) if s.text == "only output 0 is used")

    with pytest.raises(UnreadableError, match=r"^TypeError: unsupported operand"):
        view_for(setting, whole, keys)
