"""The choice is the best within noise, the simplest of equals, and exact where that is near."""

import math

import pytest
import torch

from pullback.errors import PlanError
from pullback.plan.choice import (
    choose_measurement,
    crossover,
    follow,
    size_of,
    size_place,
    weight_of,
)
from pullback.plan.measurements import AS_WRITTEN, COMBINED, HYBRID, Measurement, PlanCandidate


def row(how, relative, saved=100, error=1e-7, inexact=False, seconds=None):
    candidate = {
        "nested": AS_WRITTEN,
        "combined": PlanCandidate(COMBINED, (), "eager", "auto"),
        "hybrid": PlanCandidate(HYBRID, ((0, 1),), "eager", "auto"),
    }[how]
    return Measurement(
        candidate,
        how,
        1,
        seconds or relative,
        relative,
        relative,
        relative,
        saved,
        0,
        error,
        inexact,
    )


# ---- which one ----


def test_fastest_is_taken():
    rows = [row("nested", 1.0), row("combined", 0.8), row("hybrid", 0.7)]

    assert choose_measurement(rows, 0.0).candidate.how == "hybrid"


def test_equal_within_noise_takes_the_simplest():
    rows = [row("hybrid", 0.79), row("combined", 0.8), row("nested", 1.0)]

    assert choose_measurement(rows, 0.0).candidate.how == "combined"


def test_equal_within_noise_takes_fewer_bytes():
    rows = [row("hybrid", 0.81, saved=10), row("combined", 0.8), row("nested", 1.0)]

    assert choose_measurement(rows, 0.0).candidate.how == "hybrid"


def test_higher_median_is_not_equal():
    rows = [row("combined", 0.81, saved=10, seconds=0.9), row("hybrid", 0.8), row("nested", 1.0)]

    assert choose_measurement(rows, 0.0).candidate.how == "hybrid"


def test_equal_bytes_take_the_faster():
    rows = [row("nested", 1.0, 100), row("hybrid", 0.5, 100)]

    assert choose_measurement(rows, 1.0).candidate.how == "hybrid"


def test_nothing_gained_leaves_the_program_alone():
    rows = [row("combined", 0.99), row("nested", 1.0)]

    assert choose_measurement(rows, 0.0).candidate == AS_WRITTEN


def test_memory_takes_the_fewest_bytes():
    rows = [row("nested", 1.0, 100), row("combined", 2.0, 10), row("hybrid", 0.5, 90)]

    assert choose_measurement(rows, 1.0).candidate.how == "combined"


def test_weight_trades_bytes_for_time():
    rows = [row("nested", 1.0, 100), row("combined", 2.0, 10), row("hybrid", 0.5, 90)]

    chosen = [choose_measurement(rows, weight).candidate.how for weight in (0.1, 0.9)]

    assert chosen == ["hybrid", "combined"]


def test_inexact_loses_to_exact_nearby():
    rows = [row("nested", 1.0), row("combined", 0.7, error=1e-2, inexact=True)]

    assert choose_measurement(rows, 0.0).candidate == AS_WRITTEN


def test_inexact_never_wins_however_fast():
    rows = [row("nested", 1.0), row("combined", 0.01, error=1e-2, inexact=True)]

    assert choose_measurement(rows, 0.0).candidate.how == "nested"


def test_infinite_error_never_wins():
    rows = [row("nested", 1.0), row("combined", 0.01, error=math.inf, inexact=True)]

    assert choose_measurement(rows, 0.0).candidate == AS_WRITTEN


@pytest.mark.parametrize("objective", ["speed", -0.1, 1.5, None, True, math.nan])
def test_unknown_objective_is_refused(objective):
    with pytest.raises(PlanError) as caught:
        weight_of(objective)

    assert str(caught.value) == (
        "E510 plan: `objective` must say what a plan is for\n"
        '  expected: "time", "memory", or a number from 0 (time alone) to 1 (memory alone)\n'
        f"  got:      {objective!r}"
    )


# ---- where it changes ----


def test_crossover_is_on_a_line_of_logarithms():
    assert crossover((100, 10_000), (0.5, 2.0)) == 1000
    assert crossover((100, 10_000), (0.9, 10.0)) < 1000


def test_crossover_from_nothing_is_a_size():
    assert crossover((0, 100), (1.0, 1.0)) == 10


def test_unknown_crossover_is_the_middle():
    assert crossover((100, 10_000), (1.0, 1.0)) == 1000
    assert crossover((100, 10_000), (2.0, 0.5)) == 1000


def test_tensor_that_grows_most_tells_the_size():
    weight = torch.ones(50, 50)
    examples = [(weight, torch.ones(2), 3), (weight, torch.ones(200), 3)]

    assert size_place(examples) == 1
    assert size_place([(3, torch.ones(2), torch.ones(9))]) == 2
    assert size_place([([torch.ones(2)],)]) is None


# ---- the call ----


@pytest.fixture
def best():
    calls = [lambda *args, **kwargs: "small", lambda *args, **kwargs: "large"]
    return follow(lambda factor, x: "program", calls, [10], 1, "x")


@pytest.mark.parametrize(("size", "expected"), [(9, "small"), (10, "large"), (11, "large")])
def test_call_goes_by_the_size(best, size, expected):
    assert best(2.0, torch.ones(size)) == expected
    assert best(2.0, x=torch.ones(size)) == expected
    assert best(factor=2.0, x=torch.ones(size)) == expected


def test_call_without_that_tensor_goes_by_the_largest(best):
    assert best(torch.ones(3), [torch.ones(30)]) == "large"
    assert size_of((), {}, "x") == 0


def test_compiler_sees_the_program_itself(best):
    assert torch.compile(lambda x: best(2.0, x), backend="eager")(torch.ones(3)) == "program"
