"""Arguments that change a gradient, and nothing that forward gives."""

import pytest
import torch

from pullback.check.subject.own import own_argument
from tests.check.subjects import normal, subject, variadic

X = normal(3, 4)


def scaled(weight):
    """The identity, with a gradient that the second argument decides."""
    return variadic(lambda x, a: x * 1, lambda x, a, g: (g * (weight + a), None))


@pytest.mark.parametrize("argument", [0.5, torch.full((3, 4), 0.5)], ids=["number", "tensor"])
def test_argument_for_backward_alone_is_named(argument):
    it = subject(scaled(0.0), X, argument)

    assert own_argument(it, it.small, it.names[0]) == it.names[1]


def test_argument_that_forward_reads_is_none():
    it = subject(variadic(lambda x, a: x * a, lambda x, a, g: (g * a, None)), X, 0.5)

    assert own_argument(it, it.small, it.names[0]) == ""


def test_what_is_added_for_zero_cotangents_is_seen():
    it = subject(variadic(lambda x, a: x * 1, lambda x, a, g: (g + a * x, None)), X, 0.5)

    assert own_argument(it, it.small, it.names[0], times=0.0) == it.names[1]
