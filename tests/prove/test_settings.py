"""A backward is read again for each choice of inputs and outputs, and known if nothing is new."""

import pytest
import torch
from torch.autograd import Function

from pullback.derive.plain import plain_program
from pullback.prove.settings import settings_of, view_in
from pullback.prove.sides import UnreadableError, sides_of


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
    return sides_of(cls.apply, plain_program(cls), [row(), row(1)])


def news_of(cls):
    """The settings in which something is new."""
    both = sides(cls)
    whole, keys = both.views()[0], list(both.names)
    return [s.text for s in settings_of(both) if view_in(s, whole, keys) is not None]


def test_settings_are_all_choices_but_the_whole():
    assert [setting.text for setting in settings_of(sides(Product))] == [
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
    (first, *_) = settings_of(both)

    assert view_in(first, whole, [1]) is None


def test_error_of_the_user_is_told():
    both = sides(ProductWithoutZeros)
    whole, keys = both.views()[0], list(both.names)
    setting = next(s for s in settings_of(both) if s.text == "only output 0 is used")

    with pytest.raises(UnreadableError, match=r"^TypeError: unsupported operand"):
        view_in(setting, whole, keys)
