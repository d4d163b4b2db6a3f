"""Differences give derivatives with an error that holds, and tell kinks."""

import math

import pytest

from pullback.judge.differences import central, one_sided

CURVES = {
    "sine": (math.sin, 1.0),
    "exponential": (math.exp, 1.0),
    "cubic": (lambda t: (1 + t) ** 3, 3.0),
    "steep": (lambda t: math.tanh(50 * t), 50.0),
    "flat": (lambda t: 5.0, 0.0),
}


@pytest.mark.parametrize("name", CURVES)
def test_error_covers_the_difference(name):
    curve, slope = CURVES[name]

    estimate = central(curve, 1e-2, 2e-16)

    assert abs(estimate.value - slope) <= 4 * estimate.error
    assert estimate.error <= 1e-6 * max(1.0, abs(slope))


def test_noise_makes_error_larger():
    rough = central(lambda t: float(f"{math.sin(t) + 1:.6f}"), 1e-2, 1e-6)
    fine = central(lambda t: math.sin(t) + 1, 1e-2, 2e-16)

    assert rough.error > 1e3 * fine.error
    assert abs(rough.value - 1) <= 4 * rough.error


def test_kink_has_two_sides():
    left, right = (one_sided(abs, 1e-2, 2e-16, sign) for sign in (-1, 1))

    assert (left.value, right.value) == (-1.0, 1.0)
    assert not left.agrees(right.value)


def test_jump_is_not_known():
    assert not one_sided(lambda t: float(t > 0), 1e-2, 2e-16, 1).is_known


def test_edge_of_domain_is_not_known():
    estimate = central(lambda t: math.sqrt(t) if t >= 0 else math.nan, 1e-2, 2e-16)

    assert not estimate.is_known
