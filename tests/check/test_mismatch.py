"""Numbers as they are shown in findings."""

import pytest

from pullback.check.mismatch import number, numbers


@pytest.mark.parametrize(
    ("value", "text"), [(None, "None"), (1 / 3, "0.333333"), (1 + 2j, "1+2j"), (1e-9, "1e-09")]
)
def test_number_has_six_digits(value, text):
    assert number(value) == text


def test_two_numbers_are_told_apart():
    assert numbers(1.0, 2.0) == ("1", "2")
    assert numbers(4.92034001, 4.92034002) == ("4.92034001", "4.92034002")


def test_equal_numbers_are_shown_in_full():
    assert numbers(0.5, 0.5) == ("0.5", "0.5")
