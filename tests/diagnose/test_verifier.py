"""An edit that is right by chance is refused on inputs that it was not found with."""

import torch

from pullback.capture.joint import capture
from pullback.diagnose.candidate_edits import give
from pullback.diagnose.edit_search import make_edited
from pullback.diagnose.trials import Trials
from pullback.diagnose.verifier import Verifier
from pullback.function.plain import plain_program
from pullback.graph.copies import copied_graph, with_graph
from tests.diagnose import faulty
from tests.diagnose.faulty import EXAMPLES
from tests.diagnose.test_edit_search import compared_of, search_of


def verifier_of(function):
    trials = Trials(function, EXAMPLES[function])
    captured = capture(plain_program(function), trials.examples, needs=trials.needs)
    trials.add_fresh(captured)
    hand = compared_of(function)[0].scope.hand.captured
    return Verifier(hand, trials.held_out(captured))


def test_right_edit_is_verified():
    search = search_of(faulty.SineWithSavedSine)
    edited = make_edited(search.scope, search.find(0))

    assert verifier_of(faulty.SineWithSavedSine).right(edited) == {0}


def test_wrong_gradient_is_not_verified():
    verifier = verifier_of(faulty.SineWithSavedSine)

    assert verifier.right(compared_of(faulty.SineWithSavedSine)[0].hand) == frozenset()


def test_edit_that_spoils_is_not_verified():
    compared, _ = compared_of(faulty.QuotientWithNumerator)
    right = compared.scope.named[compared.readable.gradients[0]]
    edited = make_edited(compared.scope, give(compared.scope, 0, right))
    spoilt = make_edited(compared.scope, give(compared.scope, 1, None))
    verifier = verifier_of(faulty.QuotientWithNumerator)

    assert verifier.right(edited) == {0, 1}
    assert verifier.right(spoilt) == frozenset()


def test_nothing_is_verified_without_trials():
    search = search_of(faulty.SineWithSavedSine)
    edited = make_edited(search.scope, search.find(0))

    assert Verifier(search.scope.hand.captured, []).right(edited) == frozenset()


def test_graph_that_cannot_run_is_not_verified():
    hand = compared_of(faulty.SineWithSavedSine)[0].hand
    hand = with_graph(hand, copied_graph(hand.graph)[0])
    for node in hand.graph.find_nodes(op="call_function", target=torch.ops.aten.cos.default):
        node.args = (None,)

    assert verifier_of(faulty.SineWithSavedSine).right(hand) == frozenset()
