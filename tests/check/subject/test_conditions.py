"""A rule whose conditions do not hold is skipped, and says why; else it is tried."""

import pytest
import torch
from torch.autograd import Function

from pullback.check.findings.finding import Rule, Skip
from pullback.check.subject.conditions import (
    DETERMINISTIC,
    HAS_JVP,
    KEEPS_INPUTS,
    RUNS,
    STEADY,
    needs,
)
from tests.check.subjects import made, normal, subject

RULE = Rule("X001", "always-there", "tests")
X = normal(4)


class Raising(Function):
    """A function whose backward raises."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        raise ValueError("not today")


class Drawing(Raising):
    """A function whose gradient is another one each time."""

    count = 0

    @staticmethod
    def backward(ctx, g):
        Drawing.count += 1
        return Drawing.count * g


class InPlace(Raising):
    """A function that writes into its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)


SQUARE = made(lambda x: x * x, lambda g, x: 2 * x * g)
LOOSE = made(lambda x: x * x, lambda g, x: 2 * x * g, declares={"nondeterministic": 1e-6})


def tried(target, *conditions):
    """What a check with these conditions gives."""

    @needs(RULE, *conditions)
    def check(subject):
        yield "tried"

    return list(check(subject(target, X)))


@pytest.mark.parametrize(
    ("target", "condition", "reason"),
    [
        (Raising, RUNS, "backward fails at the example: ValueError: not today"),
        (Drawing, STEADY, "the gradients differ from run to run"),
        (LOOSE, DETERMINISTIC, "declared to be nondeterministic"),
        (InPlace, KEEPS_INPUTS, "forward changes its inputs"),
        (SQUARE, HAS_JVP, "it has no jvp of its own"),
    ],
)
def test_rule_is_skipped_with_the_reason(target, condition, reason):
    (skip,) = tried(target, condition)

    assert isinstance(skip, Skip)
    assert (skip.rule, skip.reason) == (RULE, reason)


def test_first_condition_that_fails_is_named():
    (skip,) = tried(Raising, HAS_JVP, RUNS)

    assert skip.reason == HAS_JVP.reason


def test_rule_is_tried_where_all_hold():
    assert tried(SQUARE, RUNS, STEADY, DETERMINISTIC, KEEPS_INPUTS) == ["tried"]


def test_error_is_kept_with_the_skip():
    (skip,) = tried(Raising, RUNS)

    assert skip.is_refusal
    assert (skip.raised.type, skip.raised.text) == ("ValueError", "not today")
    assert torch.equal(SQUARE.apply(X), X * X)
