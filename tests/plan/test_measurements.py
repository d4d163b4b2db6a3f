"""Labels say what shares a node, inexact rows are marked, and the front is the front."""

from dataclasses import replace

import pytest

from pullback.plan.measurements import (
    AS_WRITTEN,
    COMBINED,
    HYBRID,
    Measurement,
    PlanCandidate,
    front,
    label_of,
    marked,
    node_count,
)

NAMES = ["Sin", "Exp", "Tanh", "Mul"]


def row(relative, saved=0, error=None, how=HYBRID, **facts):
    candidate = AS_WRITTEN if how == "nested" else PlanCandidate(how, ((0, 1),), "eager", "auto")
    return Measurement(
        candidate, how, 1, relative, relative, relative, relative, saved, 9, error, **facts
    )


@pytest.mark.parametrize(
    ("candidate", "label", "nodes"),
    [
        (AS_WRITTEN, "Sin Exp Tanh Mul", 4),
        (PlanCandidate(COMBINED), "[Sin Exp Tanh Mul]", 1),
        (PlanCandidate(HYBRID, ((0, 1), (2, 3))), "[Sin Exp] [Tanh Mul]", 2),
        (PlanCandidate(HYBRID, ((0, 3), (1,))), "[Sin Mul] [Exp] Tanh", 3),
    ],
)
def test_label_brackets_what_shares_a_node(candidate, label, nodes):
    assert label_of(candidate, NAMES) == label
    assert node_count(candidate, 4) == nodes


def test_repeated_steps_are_counted():
    steps = PlanCandidate(HYBRID, tuple((n, n + 1) for n in range(0, 20, 2)))

    assert label_of(steps, ["Force", "Axpy"] * 10) == "[Force Axpy] x10"
    assert label_of(AS_WRITTEN, ["Force", "Axpy"] * 10) == "(Force Axpy) x10"
    assert label_of(AS_WRITTEN, ["Sin", "Exp", "Exp", "Sin"]) == "Sin Exp x2 Sin"


def test_long_node_is_shortened():
    assert label_of(PlanCandidate(COMBINED), NAMES * 3) == "[Sin Exp Tanh ... Mul: 12 units]"


def test_error_far_above_the_least_is_marked():
    rows = [row(1.0, error=1e-7), row(0.5, error=9e-7), row(0.4, error=2e-6), row(0.3)]

    assert [r.is_inexact for r in marked(rows, 0.0)] == [False, False, True, False]


def test_error_of_rounding_is_not_marked():
    rows = [row(1.0, error=0.0), row(0.5, error=1e-6)]

    assert [r.is_inexact for r in marked(rows, 1.2e-7)] == [False, False]
    assert [r.is_inexact for r in marked(rows, 2e-16)] == [False, True]


def test_front_has_no_row_that_another_beats():
    fast, small, both = row(0.5, 100), row(2.0, 10), row(1.0, 50)
    rows = [small, row(1.5, 60), both, fast, row(0.5, 200), replace(fast, relative=0.6)]

    assert list(front(rows)) == [fast, both, small]


def test_row_says_its_spread():
    told = Measurement(AS_WRITTEN, "Sin", 1, 1.0, 0.5, 0.4, 0.8, is_inexact=True)

    assert str(told) == "Sin: 2.00 times (1.25 to 2.50), loses accuracy"
