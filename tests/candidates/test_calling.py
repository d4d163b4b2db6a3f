"""A call is the same for a candidate and for its reference."""

import random

import torch

from pullback.candidates.calling import call_once, cotangents_for, reactions
from pullback.candidates.trials import TrialMaker, ordinary
from pullback.judge.example import example_of

EXAMPLE = example_of((torch.randn(3, 4), 2.0))


def test_gradients_come_where_they_are_asked_for():
    with_them = call_once(torch.mul, EXAMPLE, 1, gradients=True)
    without = call_once(torch.mul, EXAMPLE, 1, gradients=False)

    assert len(with_them.tensors) == 2
    assert len(without.tensors) == 1
    assert not without.outputs[0].requires_grad


def test_cotangents_depend_on_the_draw_alone():
    one, two, other = (cotangents_for([torch.zeros(5)], draw)[0] for draw in (1, 1, 2))

    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_wide_cotangents_are_those_that_were_asked_for():
    asked = torch.zeros(5, dtype=torch.bfloat16)
    (wide,) = cotangents_for([torch.zeros(5, dtype=torch.float64)], 1, [asked])

    assert wide.dtype == torch.float64
    assert torch.equal(wide, wide.bfloat16().double())


def test_integers_have_no_cotangent():
    assert cotangents_for([torch.arange(3)], 1) == [None]


def test_halves_that_are_not_read_are_seen():
    maker = TrialMaker([example_of((torch.randn(3, 6), torch.randn(2)))])
    trial = ordinary(random.Random(0))

    def first_half(x, y):
        return x[:, :3].sum() + y.sum()

    assert reactions(first_half, maker, trial, 0) == [True, True]
    assert reactions(first_half, maker, trial, 1) == [False, True]
