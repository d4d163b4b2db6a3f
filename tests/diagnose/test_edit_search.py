"""The smallest edit is taken, it spoils nothing, and the changed graph keeps its form."""

import functools

import pytest
import torch
from torch import fx

from pullback.diagnose.candidate_edits import candidate_edits
from pullback.diagnose.comparison import captured_on_examples, compare_backwards
from pullback.diagnose.edit_search import EditSearch, make_edited
from pullback.diagnose.error_patterns import WrongGradient
from pullback.diagnose.trials import Trials
from pullback.graph.parts import BACKWARD, calls
from tests.diagnose import faulty
from tests.diagnose.faulty import EXAMPLES


@functools.cache
def compared_of(function):
    trials = Trials(function, EXAMPLES[function])
    derived = captured_on_examples(trials, trials.program)
    trials.add_fresh(derived)
    evidence = [WrongGradient(trials, place, ("g",)) for place in range(len(trials.names))]
    wrong = [one for one in evidence if one.first is not None]
    return compare_backwards(trials, derived, wrong, function.backward), {
        one.place for one in wrong
    }


class Trusting:
    """Takes every edit for right."""

    def right(self, graph):
        return frozenset(range(len(graph.gradients)))


class Doubting:
    """Takes no edit for right."""

    def right(self, graph):
        return frozenset()


TRUSTING, DOUBTING = Trusting(), Doubting()


def search_of(function, *, verifier=TRUSTING, deadline=float("inf"), clock=lambda: 0.0):
    compared, wrong = compared_of(function)
    return EditSearch(compared.scope, compared.trials, frozenset(wrong), verifier, deadline, clock)


def test_smallest_edit_is_taken():
    search = search_of(faulty.CubeWithTwo)

    best = search.find(0)
    right = [c for c in candidate_edits(search.scope, 0) if search.fixes(c, 0)]

    assert len(right) > 1
    assert best.cost == min(candidate.cost for candidate in right)


def test_edit_that_spoils_another_gradient_is_refused():
    search = search_of(faulty.DifferenceWithMinusTwice)
    spoiling = [c for c in candidate_edits(search.scope, 0) if len({u for u, _ in c.changes}) > 1]

    assert all(search.fixes(candidate, 0) <= {0} for candidate in spoiling)
    assert search.fixes(search.find(0), 0) == {0}


def test_search_stops_when_time_is_up():
    ticks = iter(range(1000))
    search = search_of(faulty.CubeWithTwo, deadline=-1.0, clock=lambda: next(ticks))

    assert search.find(0) is None
    assert next(ticks) == 1


def test_edit_that_is_not_verified_is_refused():
    search = search_of(faulty.CubeWithTwo, verifier=DOUBTING)

    assert search.find(0) is None


def test_edit_that_cannot_run_is_refused():
    search = search_of(faulty.SquareLinearTransposed)

    assert any(search.gradients(c, 0) is None for c in candidate_edits(search.scope, 0))
    assert search.find(0) is not None


@pytest.mark.parametrize(
    "function",
    [faulty.SineWithSavedSine, faulty.CentredWithoutMean, faulty.MeanOfFour, faulty.CubeWithTwo],
)
def test_edited_graph_keeps_its_form(function):
    search = search_of(function)
    before = str(search.scope.hand.joint.graph)

    edited = make_edited(search.scope, search.find(0))

    edited.graph.lint()
    assert len(edited.inputs) == len(search.scope.hand.joint.inputs)
    assert all("val" in node.meta for node in calls(edited.graph))
    assert all("phase" in node.meta and "place" in node.meta for node in calls(edited.graph))
    assert str(search.scope.hand.joint.graph) == before


def test_edited_graph_computes_what_was_tried():
    search = search_of(faulty.NormedWithoutMean)
    candidate = search.find(0)
    graph = make_edited(search.scope, candidate)
    trial = search.trials[-1]

    returned = fx.GraphModule({}, graph.graph)(*trial.tensors, *trial.cotangents)

    tried = search.gradients(candidate, len(search.trials) - 1)[0]
    assert torch.allclose(returned[graph.output_count], tried, rtol=1e-12)


def test_new_nodes_belong_to_backward():
    search = search_of(faulty.CentredWithoutMean)
    known = {node.name for node in search.scope.hand.joint.graph.nodes}

    edited = make_edited(search.scope, search.find(0))

    new = [node for node in calls(edited.graph) if node.name not in known]
    assert new
    assert {node.meta["phase"] for node in new} == {BACKWARD}
