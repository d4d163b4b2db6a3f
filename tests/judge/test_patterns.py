"""The pattern of an error is named where it explains the whole of it, and only there."""

import pytest
import torch

from pullback.judge.patterns import CUT, FACTOR, REDUCTION, SIGN, SWAPPED, VALUES
from tests.check.subjects import made, normal, subject

X, ROW = normal(6, 4), normal(4, seed=1)


def square(x):
    """Of each entry."""
    return x * x


def add(x, row):
    """A bias."""
    return x + row


KINDS = {
    "absent": (made(square, lambda g, x: None), (X,), "x", CUT),
    "zero": (made(square, lambda g, x: 0 * g), (X,), "x", CUT),
    "negative": (made(square, lambda g, x: -2 * x * g), (X,), "x", SIGN),
    "half": (made(square, lambda g, x: x * g), (normal(2, 3),), "x", FACTOR),
    "one over a size, of one shape": (made(square, lambda g, x: x * g / 3), (X,), "x", FACTOR),
    "mean": (made(add, lambda g, x, row: (g, g.mean(0))), (X, ROW), "row", REDUCTION),
    "mean over two dimensions": (
        made(lambda x, row: x + row, lambda g, x, row: (g, g.mean((0, 1)))),
        (normal(2, 3, 4), ROW),
        "row",
        REDUCTION,
    ),
    "factor that is a size by chance": (
        made(lambda x: (x * x).sum(-1), lambda g, x: g[:, None] * x),
        (normal(3, 2),),
        "x",
        FACTOR,
    ),
    "factor of nearly one": (
        made(square, lambda g, x: 2 * x * g * 0.99995),
        (X,),
        "x",
        VALUES,
    ),
    "swapped": (
        made(lambda a, b: a * b, lambda g, a, b: (g * a, g * b)),
        (X, normal(6, 4, seed=1)),
        "a",
        SWAPPED,
    ),
    "bent": (made(square, lambda g, x: 2 * x.abs() * g), (X,), "x", VALUES),
    "odd factor of one number": (
        made(lambda x: x.sin(), lambda g, x: g * x),
        (torch.tensor([0.7], dtype=torch.float64),),
        "x",
        VALUES,
    ),
    "half of one number": (
        made(square, lambda g, x: x * g),
        (torch.tensor([0.7], dtype=torch.float64),),
        "x",
        FACTOR,
    ),
}


def test_small_factor_is_told_as_its_inverse():
    target, args, at, _ = KINDS["half"]

    assert subject(target, *args).patterns[at].fix == "multiply the gradient of `x` by 2"


def test_digits_of_half_are_named():
    rounded = made(lambda x: x.sin(), lambda g, x: (g * x.cos()).half().to(g.dtype))

    assert subject(rounded, X).patterns["x"].why == (
        "its numbers have the digits of float16 and no more"
    )


@pytest.mark.parametrize("name", KINDS)
def test_pattern_is_named(name):
    target, args, at, kind = KINDS[name]

    assert subject(target, *args).patterns[at].kind == kind
