"""Speed-ups have intervals, clocks are believed or not, and cached results show in times."""

import random

import pytest

from pullback.candidates.timing import Ratio, Reading, is_believed, is_looked_up, is_steady, speedup


def noisy(value, count=20, seed=0):
    rng = random.Random(seed)
    return [value * (1 + 0.1 * rng.random()) for _ in range(count)]


def test_speedup_is_the_ratio_of_medians():
    found = speedup([1.0, 2.0, 3.0, 2.0, 2.0], [6.0, 4.0, 4.0, 2.0, 4.0])

    assert found.value == 2.0
    assert found.low <= 2.0 <= found.high


def test_interval_holds_the_true_ratio():
    held = 0
    for seed in range(40):
        found = speedup(noisy(1.0, seed=seed), noisy(3.0, seed=1000 + seed))
        held += found.low <= 3.0 <= found.high

    assert held >= 34


def test_interval_is_narrow_where_times_are_steady():
    found = speedup([1.0] * 9, [2.0] * 9)

    assert (found.low, found.value, found.high) == (2.0, 2.0, 2.0)


def test_few_rounds_say_nothing():
    assert speedup([1.0] * 4, [2.0] * 4) is None


def test_equal_seeds_give_equal_intervals():
    assert speedup(noisy(1), noisy(2), 7) == speedup(noisy(1), noisy(2), 7)


def test_ratio_reads_well():
    assert str(Ratio(1.234, 1.2, 1.3)) == "1.23 (1.20 to 1.30)"


def test_true_clock_is_believed():
    assert is_believed([1e-3] * 5, [(40, 0.041), (40, 0.06)])


def test_slow_clock_is_not_believed():
    assert not is_believed([1e-5] * 5, [(40, 0.041), (40, 0.06)])


def test_one_undisturbed_section_is_enough_to_believe():
    assert is_believed([1e-3] * 5, [(40, 0.4), (40, 0.041)])


def test_messages_alone_are_no_reason_to_doubt():
    assert is_believed([1e-6] * 5, [(40, 0.0015)])


@pytest.mark.parametrize("old", [0.4, 1.0])
def test_results_that_are_looked_up_show(old):
    assert is_looked_up(noisy(1.0, 12), noisy(old, 11)) is (old == 0.4)


def test_a_disturbed_row_is_not_looked_up():
    new = [1.0] * 6 + [9.0] * 6
    old = [1.0] * 11

    assert not is_looked_up(new, old)


def test_a_clock_is_steady_as_far_as_could_be_seen():
    first, last = Reading(7.0, 0.0, 0.5), Reading(9.5, 2.0, 3.0)

    assert is_steady(first, last)
    assert not is_steady(first, Reading(8.0, 2.0, 3.0))
    assert not is_steady(first, Reading(11.0, 2.0, 3.0))
