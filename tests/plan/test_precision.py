"""Errors are distances from the program as written in double precision."""

import math

import pytest
import torch

from pullback.compose.flow import recorded_units
from pullback.plan.precision import error_of, exact_gradients
from tests.plan.fakes import Square, doubles_in_place, leaf


def test_exact_gradients_are_those_in_doubles():
    x = leaf()
    program = recorded_units(lambda x: Square.apply(x).sin(), (x,))
    cotangent = torch.ones(8)

    (exact,) = exact_gradients(program, (x,), [cotangent])

    wide = x.detach().double()
    assert exact.dtype is torch.float64
    torch.testing.assert_close(exact, 2 * wide * (wide * wide).cos(), rtol=1e-14, atol=0)


def test_tensors_from_around_are_doubled():
    weight = leaf(8)
    program = recorded_units(lambda x: x @ weight, (leaf(8),))

    of_x, of_weight = exact_gradients(program, (leaf(8),), [torch.ones(())])

    torch.testing.assert_close(of_x, weight.detach().double())
    torch.testing.assert_close(of_weight, leaf(8).detach().double())


def test_program_that_changes_in_place_is_exact():
    x = leaf()
    (exact,) = exact_gradients(recorded_units(doubles_in_place, (x,)), (x,), [torch.ones(8)])

    wide = x.detach().double()
    torch.testing.assert_close(exact, 4 * wide * (2 * wide * wide).cos())


def test_unit_without_doubles_has_no_reference():
    class Narrow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            if x.dtype is torch.float64:
                raise TypeError("float32 only")
            return x * 2

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * 2

    x = leaf()

    assert exact_gradients(recorded_units(Narrow.apply, (x,)), (x,), [torch.ones(8)]) is None


ONE = torch.tensor([3.0, 4.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("got", "exact", "expected"),
    [
        (ONE, ONE, 0.0),
        (ONE + torch.tensor([0.0, 0.5]), ONE, 0.1),
        (torch.tensor([math.nan, 4.0]), ONE, math.inf),
        (torch.tensor([3.0, math.inf]), ONE, math.inf),
        (torch.tensor([3.0, math.nan]), torch.tensor([3.0, math.nan]), 0.0),
        (None, ONE, math.inf),
        (None, ONE * 0, 0.0),
        (ONE * 0, None, 0.0),
        (ONE, None, math.inf),
        (ONE, ONE * 0, math.inf),
        (ONE * 0, ONE * 0, 0.0),
    ],
)
def test_error_is_relative_to_the_length(got, exact, expected):
    assert error_of((got,), (exact,)) == pytest.approx(expected)


def test_largest_error_counts():
    assert error_of((ONE, ONE * 2), (ONE, ONE)) == pytest.approx(1.0)
