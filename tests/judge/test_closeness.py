"""Two values of one thing: what is rounding is the same, what is more is found and described."""

import pytest
import torch

from pullback.judge.closeness import HalfTheDigits, Measured, all_close, value_difference

# ---- measured ----


def measures(exact=None, near=(), terms=1, steps=1, largest=0.0):
    return Measured(lambda: exact, lambda: near, terms, steps, lambda: largest)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_units_in_the_last_place_are_equal(dtype):
    x = torch.randn(100).to(dtype)
    eps = torch.finfo(dtype).eps

    assert value_difference("x", x * (1 + eps), x, measures()) is None
    assert value_difference("x", x * (1 + 8 * eps), x, measures()) is not None


def test_error_of_the_expected_numbers_is_allowed():
    exact = torch.randn(1000, dtype=torch.float64)
    expected = (exact + 1e-3 * torch.randn(1000)).float()
    got = (exact + 1e-3 * torch.randn(1000)).float()

    assert value_difference("x", got, expected, measures(exact)) is None
    got[5] += 0.02
    found = value_difference("x", got, expected, measures(exact))
    assert found is not None
    assert found.at == "[5]"


def test_steps_are_allowed_where_they_are():
    expected = torch.zeros(10)
    near = expected.clone()
    near[3] = 1
    got = near.clone()

    assert value_difference("x", got, expected, measures(near=[near, expected])) is None
    got[4] = 1
    assert value_difference("x", got, expected, measures(near=[near, expected])).at == "[4]"


def test_what_cancels_is_as_far_off_as_its_terms_may_be():
    """The gradient of a bias before a batch norm: zero, but for what single roundings leave."""
    eps = torch.finfo(torch.float64).eps
    expected = torch.tensor([0, 0, 0, -eps], dtype=torch.float64)
    got = torch.tensor([0, 0, 0, 2 * eps], dtype=torch.float64)
    near = torch.tensor([eps, 0, 0, -eps], dtype=torch.float64)

    assert value_difference("x", got, expected, measures(near=[near], largest=1.0)) is None
    assert value_difference("x", got, expected, measures(near=[near], largest=1e-9)) is not None
    assert (
        value_difference("x", got + 1e-9, expected, measures(near=[near], largest=1.0)).count == 4
    )
    step = torch.tensor([1.0, 0, 0, -eps], dtype=torch.float64)
    assert value_difference("x", expected + 0.1, expected, measures(near=[step], largest=1.0))


def test_nan_and_infinity_must_be_where_they_are_expected():
    x = torch.tensor([1.0, torch.nan, torch.inf])

    assert value_difference("x", x.clone(), x, measures()) is None
    for wrong in ([1.0, 2.0, torch.inf], [torch.nan, torch.nan, torch.inf], [1.0, torch.nan, 3.0]):
        assert value_difference("x", torch.tensor(wrong), x, measures()) is not None


def test_values_of_other_kinds_differ():
    x = torch.zeros(3)

    assert value_difference("x", None, x, measures()) is None  # a gradient of zeros may be absent
    assert value_difference("x", None, x + 1, measures()) is not None
    assert value_difference("x", x.double(), x, measures()) is not None
    assert value_difference("x", x[:2], x, measures()) is not None
    assert value_difference("x", 2, 3, measures()) is not None


# ---- half the digits ----

STRICT = HalfTheDigits(is_strict=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex64], ids=str)
def test_half_of_the_digits_are_compared(dtype):
    x = torch.randn(100).to(dtype)
    scale = float(x.abs().max()) * torch.finfo(dtype).eps ** 0.5

    assert value_difference("x", x + 0.9 * scale, x, STRICT) is None
    assert value_difference("x", x + 1.1 * scale, x, STRICT).count == 100


def test_what_is_not_finite_is_as_loose_as_asked():
    x = torch.tensor([1.0, torch.nan, torch.inf])
    other, finite = torch.tensor([1.0, torch.inf, torch.nan]), torch.tensor([1.0, 2.0, 3.0])

    assert value_difference("x", x.clone(), x, STRICT) is None
    assert value_difference("x", other, x, STRICT).count == 2
    assert value_difference("x", other, x, HalfTheDigits()) is None
    assert value_difference("x", finite, x, HalfTheDigits()).count == 2
    assert value_difference("x", finite, x, HalfTheDigits(is_ignored=True)) is None
    assert value_difference("x", x, finite, HalfTheDigits(is_ignored=True)).count == 2


def test_what_cancels_is_compared_with_the_floor():
    left, right = torch.tensor([1e-9]), torch.tensor([3e-9])

    assert all_close([left], [right])
    assert not all_close([left], [right], HalfTheDigits(floor=0.0))


def test_large_integers_are_compared_exactly():
    x = torch.tensor([2**60 + 1, True])

    assert value_difference("x", x - torch.tensor([1, 0]), x, STRICT).got == str(2**60)
