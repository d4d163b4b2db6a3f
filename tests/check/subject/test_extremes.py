"""Where forward has a slope, and where it jumps: its sides at smaller and smaller steps say."""

import pytest

from pullback.check.subject.extremes import STEPS, jumps
from pullback.judge.differences import UNKNOWN, Estimate


def has_jump(sides, *, truth, curve=lambda step: 0.0):
    """Whether a forward with these sides, by the step, jumps."""
    return jumps(lambda step: sides.get(step, (UNKNOWN, UNKNOWN)), curve, truth)


def both(slope):
    return Estimate(slope, 1e-9), Estimate(slope, 1e-9)


@pytest.mark.parametrize(
    ("sides", "truth", "is_jump"),
    [
        ({}, 1.0, True),
        ({STEPS[0]: both(7.0)}, 1.0, False),  # smooth, whatever is said to be its slope
        ({STEPS[1]: both(1.0)}, 1.0, False),
        ({STEPS[1]: both(0.5)}, 1.0, True),
        ({STEPS[1]: (both(1.0)[0], both(0.5)[0])}, 1.0, True),
        ({STEPS[2]: both(1e9)}, 1e9, False),
    ],
)
def test_guard_is_smooth_with_its_slope_alone(sides, truth, is_jump):
    assert has_jump(sides, truth=truth) is is_jump


def test_pole_to_one_side_is_no_jump():
    assert not has_jump({}, truth=1.0, curve=lambda step: float("inf") if step > 0 else 0.0)
    assert has_jump({}, truth=1.0, curve=lambda step: float("inf"))
