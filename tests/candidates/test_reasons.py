"""Wrong results get the name that fits where they are right, and what they look like."""

import pytest

from pullback.candidates.comparing import EntryPattern
from pullback.candidates.reasons import Result, reasons_of
from pullback.candidates.trials import GIVEN, LARGE, LIKE, ZEROS, Trial

LIKES = (Trial(1, LIKE), Trial(2, GIVEN), Trial(3, LIKE), Trial(4, ZEROS))
OTHER = Trial(5, LIKE, {8: 9})


def result(trial, status="right", digest="", **more):
    said = {"status": status, "what": "output", "error": 1.0, "pattern": "", **more}
    return Result(trial, {**said, "digest": digest or f"d{trial.draw}"}, f"t{trial.draw}")


def named(*results, **options):
    return [finding.rule.name for finding in reasons_of(results, **options)]


def test_right_results_need_no_name():
    assert named(*map(result, LIKES)) == []


def test_result_of_another_trial_is_stale():
    first, given, second, zeros = LIKES
    wrong = [result(trial, "wrong", "d1") for trial in (given, second, zeros)]

    assert named(result(first), *wrong) == ["stale-result"]


def test_right_for_the_example_only():
    first, given, second, zeros = LIKES
    wrong = [result(trial, "wrong", "d2") for trial in (first, second, zeros)]

    assert named(result(given), *wrong) == ["right-for-example-only"]


def test_right_at_zeros_only():
    *others, zeros = LIKES
    wrong = [result(trial, "wrong", "d4") for trial in others]

    assert named(*wrong, result(zeros)) == ["right-at-zeros-only"]


def test_a_wrong_factor_is_not_called_right_at_zeros():
    *others, zeros = LIKES

    assert named(*(result(t, "wrong") for t in others), result(zeros)) == ["wrong-result"]


def test_wrong_at_other_sizes():
    assert named(*map(result, LIKES), result(OTHER, "wrong")) == ["wrong-at-other-sizes"]


def test_right_as_given_is_not_called_low_precision():
    rounded = result(OTHER, "wrong", pattern=EntryPattern.ROUNDED.value, rounded_to="bfloat16")

    assert named(*map(result, LIKES), rounded) == ["wrong-at-other-sizes"]


def test_wrong_in_another_layout_is_wrong():
    laid_out = Trial(6, LIKE, layout=3)

    assert named(*map(result, LIKES), result(laid_out, "wrong")) == ["wrong-result"]


@pytest.mark.parametrize("pattern", [EntryPattern.ROUNDED_INPUTS, EntryPattern.ROUNDED])
def test_rounding_is_low_precision(pattern):
    wrong = [result(trial, "wrong", pattern=pattern, rounded_to="bfloat16") for trial in LIKES[:3]]

    assert named(*wrong, result(Trial(7, LARGE), "wrong")) == ["low-precision"]


def test_entries_without_numbers_are_work_left_out():
    wrong = [result(trial, "wrong", pattern="zeros", share=0.2) for trial in LIKES[:3]]

    assert named(*wrong) == ["work-left-out"]


def test_inputs_that_are_not_read_are_work_left_out():
    wrong = [result(trial, "wrong") for trial in LIKES[:3]]

    assert named(*wrong, ignored="the last half of `x`") == ["work-left-out"]


def test_wrong_gradients_have_a_name():
    wrong = [result(trial, "wrong", what="gradient of w", is_gradient=True) for trial in LIKES[:3]]

    assert named(*wrong) == ["wrong-kernel-gradient"]
