"""Candidates are in order of cost, touch backward only, and reach every kind of change."""

from torch import fx

from pullback.diagnose import candidate_edits as edits
from pullback.diagnose.candidate_edits import argument_leaves, candidate_edits, give, swap
from pullback.graph.parts import BACKWARD, phase_of
from tests.diagnose import faulty
from tests.diagnose.test_edit_search import compared_of


def scope_of(function):
    return compared_of(function)[0].scope


def test_candidates_are_in_order_of_cost():
    costs = [candidate.cost for candidate in candidate_edits(scope_of(faulty.SineWithSavedSine), 0)]

    assert costs == sorted(costs)
    assert len(costs) > 100


def test_candidates_change_backward_only():
    users = {
        user
        for candidate in candidate_edits(scope_of(faulty.SineWithSavedSine), 0)
        for user in candidate.users
    }

    assert all(user.op == "output" or phase_of(user) == BACKWARD for user in users)


def test_every_kind_of_change_is_tried():
    kinds = {candidate.kind for candidate in candidate_edits(scope_of(faulty.SoftmaxOverRows), 0)}

    assert kinds >= {
        *("op", "constant", "value", "drop", "sign", "factor", "summand"),
        *("sum", "mean", "transpose", "flip", "square", "invert", "root"),
    }


def test_gradient_that_is_none_has_no_small_edit():
    assert candidate_edits(scope_of(faulty.ProductWithNone), 1) == []


def test_places_and_values_are_bounded(monkeypatch):
    scope = scope_of(faulty.SoftmaxOverRows)
    every = len(candidate_edits(scope, 0))
    monkeypatch.setattr(edits, "SITES", 4)
    few = len(candidate_edits(scope, 0))
    monkeypatch.setattr(edits, "VALUES", 10)

    assert every > 2 * few > 4 * len(candidate_edits(scope, 0))


def test_candidates_end_when_time_is_up():
    ticks = iter([True] * 7)

    assert len(candidate_edits(scope_of(faulty.CubeWithTwo), 0, lambda: next(ticks, False))) == 7


def test_values_with_made_up_names_are_not_used():
    scope = scope_of(faulty.ManySteps)
    unclear = {known.text.text for known in scope.known if not known.is_clear}

    assert unclear
    assert unclear.isdisjoint(known.text.text for known in edits._Maker(scope, 0).within_reach())


def test_swap_exchanges_what_is_returned():
    scope = scope_of(faulty.ProductSwapped)
    (one, two) = swap(scope, 0, 1).changes
    output = scope.hand.joint.graph.output_node()

    assert [one[0], two[0]] == [(output, 1), (output, 2)]
    assert [one[1], two[1]] == [*scope.hand.joint.gradients[::-1]]


def test_given_gradient_replaces_none():
    scope = scope_of(faulty.ProductWithNone)
    known = scope.named[scope.hand.joint.inputs[0]]

    assert give(scope, 1, known).say()[0] == "return `a` instead of `None`"
    assert give(scope, 0, None).say()[0] == "return `None`"


def test_leaves_of_nested_arguments_are_found():
    graph = fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    node = graph.call_function(max, ([a, b], 3), {"key": a})

    assert argument_leaves(node)[0] == [a, b, 3, a]
