"""Where a forward hides what it does from autograd, the slopes of the forward decide."""

import numpy as np
import torch
from torch.autograd import Function

from pullback.diagnose.trials import Trials
from tests.diagnose import faulty
from tests.diagnose.faulty import row
from tests.diagnose.sound import ThroughNumpy


class OneElementWrong(Function):
    """A sine that autograd does not see, with one element of its gradient wrong."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        gradient = g * x.cos()
        gradient[3] = 0
        return gradient


def judged(function, *examples):
    """The first trial of a Function, and what the judge says of the first gradient in it."""
    trials = Trials(function, examples)
    return trials.all[0], trials.judged(trials.all[0], 0)


def test_slopes_side_with_hidden_sound_gradient():
    trial, found = judged(ThroughNumpy, row(4))

    assert (trial.expected, found) == ((None,), None)


def test_slopes_of_single_precision_are_coarse():
    assert judged(ThroughNumpy, row(4).float())[1] is None


def test_one_wrong_element_is_seen_by_slopes():
    trial, found = judged(OneElementWrong, row(6))

    assert (found.index, found.wrong, found.total) == ((3,), 1, 6)
    assert not trial.sees(0, found)


def test_slopes_agree_with_autograd_mostly():
    trial, found = judged(faulty.SquareWithoutTwo, row(4))

    assert trial.sees(0, found)
    assert abs(found.expected - 2 * found.got) < 1e-6


def test_gradient_of_complex_input_is_judged():
    trial, found = judged(faulty.ComplexNotConjugated, *faulty.COMPLEX)

    assert trial.sees(0, found)


def test_slope_between_the_sides_of_a_kink_is_right():
    class Absolute(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.abs()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return torch.where(x >= 0, g, -g)

    trial, found = judged(Absolute, torch.tensor([0.0, 1.0]))

    assert trial.is_wrong(0)
    assert found is None
