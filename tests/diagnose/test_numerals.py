"""Numbers are written in their simplest form, and cleaned of rounding."""

import math

import pytest

from pullback.diagnose.numerals import refined, simplest

SIMPLEST = {
    2.0: "2",
    -1.0: "-1",
    0.5: "1/2",
    -2 / 3: "-2/3",
    7 / 48: "7/48",
    math.sqrt(2): "sqrt(2)",
    -1 / math.sqrt(3): "-1/sqrt(3)",
    math.pi: "pi",
    -3 * math.pi / 2: "-3/2*pi",
    math.log(2): "log(2)",
    1.2345678: "1.23457",
    0.0: "0",
}


@pytest.mark.parametrize("number", SIMPLEST)
def test_number_is_written_in_simplest_form(number):
    assert simplest(number) == SIMPLEST[number]


@pytest.mark.parametrize("number", [2.0, -0.5, 1 / 3, math.sqrt(2), -math.sqrt(0.5)])
def test_rounding_is_taken_off(number):
    assert refined(number * (1 + 3e-10)) == pytest.approx(number, rel=1e-15)


def test_number_of_no_simple_form_stays():
    assert refined(1.2345678) == 1.2345678
