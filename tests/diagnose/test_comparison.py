"""The user's graph and the derived one are run in the same trials, or not compared at all."""

import torch

from pullback.diagnose.comparison import captured_on_examples, compare_backwards
from pullback.diagnose.error_patterns import WrongGradient
from pullback.diagnose.trials import Trials
from tests.diagnose import faulty, sound
from tests.diagnose.faulty import EXAMPLES, row
from tests.diagnose.test_edit_search import compared_of


def test_user_graph_gives_what_backward_gave():
    compared, _ = compared_of(faulty.GateWithoutSecond)

    for trial, values in zip(compared.trials, compared.scope.hand.values, strict=True):
        assert torch.allclose(values[compared.hand.gradients[0]], trial.got[0], rtol=1e-12)


def test_gradient_of_wrong_shape_is_corrected():
    compared, _ = compared_of(faulty.LinearTransposed)
    gradient = compared.hand.gradients[1]

    for trial, values in zip(compared.trials, compared.scope.hand.values, strict=True):
        assert trial.agrees(trial.expected[1], values[gradient])


def test_swapped_gradients_of_unlike_shapes_are_put_right():
    compared, wrong = compared_of(faulty.LinearSwapped)

    assert wrong == {0, 1}
    for trial, values in zip(compared.trials, compared.scope.hand.values, strict=True):
        for place, gradient in enumerate(compared.hand.gradients):
            assert trial.agrees(trial.expected[place], values[gradient])


def test_what_cannot_be_captured_is_not_compared():
    compared, wrong = compared_of(faulty.BranchOfPython)

    assert (compared, wrong) == (None, {0})


def test_fault_must_show_in_trials():
    compared, _ = compared_of(faulty.MeanOfFour)

    assert compared.shows(0)
    assert [trial.is_wrong(0) for trial in compared.trials] == [False, False, False, True]


def test_cotangent_without_derivative_is_left_out():
    class HalfRounded(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 3 * x, x.detach().round()

        @staticmethod
        def backward(ctx, g, g_rounded):
            return 2 * g

    trials = Trials(HalfRounded, (row(4),))
    derived = captured_on_examples(trials, trials.program)
    trials.add_fresh(derived)
    compared = compare_backwards(
        trials, derived, [WrongGradient(trials, 0, ("g",))], HalfRounded.backward
    )

    assert len(compared.trials[0].cotangents) == 2
    assert len(compared.aligned[0].cotangents) == 1


def test_listing_is_in_users_variables():
    compared, _ = compared_of(faulty.NormedWithConstantScale)
    listing = compared.listing(0)

    assert "rms = " in listing
    assert listing.splitlines()[-1].startswith("return ")


def test_large_trials_are_left_out_if_small_tell():
    function = faulty.SquareWithoutTwo
    trials = Trials(function, (row(100, 64),))
    derived = captured_on_examples(trials, trials.program)
    trials.add_fresh(derived)

    compared = compare_backwards(
        trials, derived, [WrongGradient(trials, 0, ("g",))], function.backward
    )

    assert len(compared.trials) == 3
    assert not any(trial.is_large for trial in compared.trials)


def test_examples_of_sound_functions_are_captured():
    examples = EXAMPLES[faulty.TanhWithInput]
    trials = Trials(sound.Softmax, examples)

    assert captured_on_examples(trials, trials.program) is not None
