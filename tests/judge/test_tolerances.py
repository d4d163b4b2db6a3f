"""Numbers are the same up to rounding; what is not finite in the truth is not judged."""

import math

import pytest
import torch

from pullback.judge.tolerances import Tolerance, are_near, is_close, largest_entry, tolerance_for

WANT = torch.tensor([1.0, 0.0, math.inf, -4.0], dtype=torch.float64)


def test_allowed_grows_with_entry_and_largest():
    allowed = Tolerance(0.1, 0.01, 0.5).allowed(torch.tensor([0.0, -10.0]))

    assert allowed.tolist() == pytest.approx([0.6, 1.6])


def test_entry_that_is_not_finite_says_nothing():
    got = torch.tensor([1.0, 0.0, 7.0, -4.0], dtype=torch.float64)

    assert Tolerance(1e-6, 1e-9).measure(WANT).fits(got)


def test_gradient_that_is_not_finite_is_beyond_everything():
    got = torch.tensor([math.nan, 0.0, 0.0, -4.0], dtype=torch.float64)

    measure = Tolerance(1e-6, 1e-9).measure(WANT)

    assert measure.differs(got).tolist() == [True, False, False, False]
    assert measure.excess(got)[0] == math.inf


def test_no_gradient_is_one_of_zeros():
    measure = Tolerance(1e-6, 1e-9).measure(WANT)

    assert (measure.excess(None) > 0).tolist() == [True, False, False, True]


def test_other_shape_is_beyond_everything():
    measure = Tolerance(1e-6, 1e-9).measure(WANT)

    assert not measure.fits(torch.zeros(3))
    assert bool((measure.excess(torch.zeros(3)) == math.inf).all())


def test_tolerance_of_coarse_dtype_has_an_end():
    fine, coarse = (tolerance_for(torch.finfo(d).eps, 1.0) for d in (torch.float64, torch.bfloat16))

    assert fine.relative == 1e-5
    assert 0.05 < coarse.relative < 0.2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex128])
def test_rounding_is_close_and_a_factor_is_not(dtype):
    one = torch.arange(1, 9).to(dtype)

    assert is_close(one, one * (1 + 10 * torch.finfo(dtype).eps))
    assert not is_close(one, one * 1.01)


def test_none_is_close_to_zeros_alone():
    assert is_close(None, torch.zeros(3))
    assert is_close(None, None)
    assert not is_close(torch.ones(3), None)


def test_nan_is_near_nan():
    one = torch.tensor([1.0, math.nan])

    assert are_near(one, one.clone(), Tolerance(1e-9, 0.0))
    assert not are_near(one, torch.tensor([1.0, 2.0]), Tolerance(1e-9, 0.0))


def test_no_number_is_close_to_infinity():
    assert is_close(torch.tensor([math.inf]), torch.tensor([math.inf]))
    assert not is_close(torch.tensor([1.0]), torch.tensor([math.inf]))
    assert not Tolerance(0.1, 0.1).admits(torch.tensor([1.0]), torch.tensor([math.inf]))


def test_largest_is_of_finite_entries():
    assert largest_entry(WANT) == 4.0
    assert largest_entry(torch.empty(0)) == 0.0
