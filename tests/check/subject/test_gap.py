"""Where a result is not what it must be: the worst entry, the shapes, or that nothing is there."""

import torch

from pullback.check.findings.facts import Gradient
from pullback.check.subject.gap import copied, gap_of, gaps

X = Gradient("x")


def words(gap):
    return str(gap.at), str(gap.expected), str(gap.got)


def test_worst_entry_is_named():
    gap = gap_of(X, torch.tensor([1.0, 5.0, 3.5]), torch.tensor([1.0, 2.0, 3.0]))

    assert words(gap) == ("gradient of `x` at [1]", "2", "5")
    assert gap.name == "x"


def test_entry_that_is_not_finite_is_the_worst():
    gap = gap_of(X, torch.tensor([9.0, torch.nan]), torch.tensor([1.0, 2.0]))

    assert words(gap) == ("gradient of `x` at [1]", "2", "nan")


def test_shapes_are_named_where_they_differ():
    gap = gap_of(X, torch.ones(2), torch.ones(2, 1))

    assert words(gap) == ("gradient of `x`", "shape [2, 1]", "shape [2]")


def test_missing_gradient_is_none():
    assert words(gap_of(X, None, torch.ones(2))) == ("gradient of `x`", "shape [2]", "None")


def test_facts_say_more_of_each():
    gap = gap_of(X, torch.zeros(1), torch.ones(1))
    facts = gap.facts(", here", expected=", there", got=", now")

    assert {key: str(fact) for key, fact in facts.items()} == {
        "at": "gradient of `x` at [0], here",
        "expected": "1, there",
        "got": "0, now",
    }


def test_gaps_are_those_of_gradients_that_came_otherwise():
    now = {"x": torch.ones(2), "y": torch.zeros(2), "z": None, "s": torch.ones(3)}
    before = {"x": torch.ones(2), "y": torch.ones(2), "z": torch.ones(2), "s": torch.ones(2)}

    assert [gap.name for gap in gaps(now, before)] == ["y"]


def test_copies_stay_as_they_are():
    grads = {"x": torch.ones(2), "y": None}
    kept = copied(grads)
    grads["x"].zero_()

    assert kept["x"].tolist() == [1, 1]
    assert kept["y"] is None
