"""Gradients are the same up to rounding; what is not finite is not judged."""

import torch

from pullback.diagnose.gradient_trial import GradientTrial
from pullback.diagnose.trials import Trials
from tests.diagnose import faulty
from tests.diagnose.faulty import row


def trial_of(expected, got, *, is_rough=False):
    cotangents = (torch.ones(3, dtype=torch.float64),)
    return GradientTrial(0, (row(3),), cotangents, (expected,), (got,), is_rough)


def test_infinite_derivative_is_not_judged():
    trial = Trials(faulty.SquareWithoutTwo, (row(3),)).all[0]
    expected = torch.tensor([1.0, torch.inf, torch.nan], dtype=torch.float64)
    got = torch.tensor([1.0, 0.0, 5.0], dtype=torch.float64)

    assert not bool(trial.differs(expected, got).any())
    assert trial.differs(got, expected).tolist() == [False, True, True]


def test_none_is_as_good_as_zeros():
    trial = Trials(faulty.SquareWithoutTwo, (row(3),)).all[0]

    assert trial.agrees(None, torch.zeros(3))
    assert trial.agrees(None, None)
    assert not trial.agrees(torch.ones(3), None)


def test_rounding_is_no_fault():
    expected = row(3)

    assert not trial_of(expected, expected * (1 + 1e-9)).is_wrong(0)
    assert trial_of(expected, expected * (1 + 1e-5)).is_wrong(0)


def test_single_precision_inside_is_measured_roughly():
    expected = row(3)

    assert not trial_of(expected, expected * (1 + 1e-5), is_rough=True).is_wrong(0)
    assert trial_of(expected, expected * 1.1, is_rough=True).is_wrong(0)


def test_worst_element_is_off_by_most():
    expected = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    got = torch.tensor([1.5, 0.0, 3.0], dtype=torch.float64)

    assert trial_of(expected, got).worst(0) == (1,)


def test_element_that_is_not_finite_is_worst():
    expected = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    got = torch.tensor([1.0, 900.0, torch.nan], dtype=torch.float64)

    assert trial_of(expected, got).worst(0) == (2,)
