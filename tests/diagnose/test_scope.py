"""Values within reach are known once, by the user's names, with what they were in each trial."""

import torch

from pullback.diagnose.scope import cotangent_names, written_number
from tests.diagnose import faulty
from tests.diagnose.test_edit_search import compared_of


def scope_of(function):
    return compared_of(function)[0].scope


def texts(scope, origin):
    return [known.text.text for known in scope.known if known.origin == origin]


def test_values_have_users_names():
    scope = scope_of(faulty.NormedWithoutMean)

    assert texts(scope, "input") == ["x"]
    assert texts(scope, "cotangent") == ["g"]
    assert texts(scope, "output") == ["normed"]
    assert {"centred", "rstd"} <= set(texts(scope, "saved"))
    assert "projected" in texts(scope, "backward")


def test_unnamed_values_are_written_out():
    scope = scope_of(faulty.NormedWithoutMean)

    assert "x.mean(-1, keepdim=True)" in texts(scope, "saved")


def test_equal_values_are_known_once():
    scope = scope_of(faulty.GateWithoutSecond)

    for known in scope.known:
        equal = [
            other
            for other in scope.known
            if other.values[0].shape == known.values[0].shape
            and other.values[0].dtype == known.values[0].dtype
            and all(map(torch.equal, other.values, known.values))
        ]
        assert equal == [known]


def test_derived_values_are_in_users_variables():
    scope = scope_of(faulty.GateWithoutSecond)

    assert "g * gate" in texts(scope, "derived")


def test_each_value_has_every_trial():
    compared, _ = compared_of(faulty.CentredWithoutMean)

    assert len(compared.trials) == 4
    assert {len(known.values) for known in compared.scope.known} == {4}


def test_reductions_are_within_reach():
    reduced = texts(scope_of(faulty.NormedWithoutMean), "reduced")

    assert "g.mean(1, keepdim=True)" in reduced
    assert "g.sum()" in reduced


def test_cotangents_are_called_as_in_backward():
    def backward(ctx, first, *rest):
        return None

    assert cotangent_names(backward, (0, 1, 3)) == ["first", "rest[0]", "rest[2]"]


def test_numbers_are_written_short():
    numbers = (2.0, -3, 0.5, 1 / 3, 2**0.5)

    assert [written_number(n).text for n in numbers] == ["2", "-3", "0.5", "1/3", "sqrt(2)"]
