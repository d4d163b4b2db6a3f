"""Finite differences tell what a forward does, and whom they side with."""

import numpy as np
import pytest
import torch
from torch.autograd import Function

from pullback.diagnose.hidden import hidden
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


def slope_of(trials, element):
    return trials.slopes(trials.all[0], 0).entry(*element, certain=1e-4)


def test_finite_differences_tell_what_forward_does():
    trials = Trials(ThroughNumpy, (row(4),))

    (trial,) = trials.all
    assert trial.expected == (None,)
    slope = slope_of(trials, (2,))
    assert slope == pytest.approx(complex(trial.got[0][2]), rel=1e-6)


def test_finite_differences_say_nothing_at_a_kink():
    trials = Trials(faulty.LeakyWithoutSlope, (torch.tensor([0.0, 1.0]),))

    assert slope_of(trials, (0,)) is None


def test_finite_differences_of_complex_inputs():
    trials = Trials(faulty.ComplexNotConjugated, faulty.COMPLEX)

    slope = slope_of(trials, (1,))
    assert slope == pytest.approx(complex(trials.all[0].expected[0][1]), rel=1e-6)


def test_slope_that_is_not_finite_says_nothing():
    trials = Trials(faulty.LogWithFactorTooMany, (torch.tensor([-1.0, 2.0]), torch.ones(2)))

    assert slope_of(trials, (1,)) is None


def test_slopes_side_with_hidden_sound_gradient():
    trials = Trials(ThroughNumpy, (row(4),))

    assert hidden(trials, trials.all[0], 0).element is None


def test_slopes_of_single_precision_are_coarse():
    trials = Trials(ThroughNumpy, (row(4).float(),))
    trials.is_rough = True

    assert hidden(trials, trials.all[0], 0).element is None


def test_one_wrong_element_is_seen_by_slopes():
    trials = Trials(OneElementWrong, (row(6),))

    said = hidden(trials, trials.all[0], 0)

    assert (said.element, said.wrong, said.total) == ((3,), 1, 6)


def test_slopes_agree_with_autograd_mostly():
    trials = Trials(faulty.SquareWithoutTwo, (row(4),))

    assert hidden(trials, trials.all[0], 0) is None
