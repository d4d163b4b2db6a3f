"""Timed calls get numbers of their own, are timed by the clock that was given, and are kept."""

import itertools
import random

import torch

from pullback.candidates.calling import call_once
from pullback.candidates.sections import BACKWARD, BOTH_WAYS, FORWARD, Caller
from pullback.candidates.trials import TrialMaker, ordinary
from pullback.judge.example import example_of


def caller(gradients=True):
    ticks = itertools.count(step=3.0)
    made = TrialMaker([example_of((torch.randn(4, 5),))])
    found = Caller(made, gradients=gradients, clock=lambda: next(ticks))
    found.remember(call_once(torch.sin, made.examples[0], 0, gradients=False))
    return found


def trials(count=3):
    rng = random.Random(0)
    return [ordinary(rng) for _ in range(count)]


def test_times_are_those_of_the_clock():
    one = caller()
    one.prepare(FORWARD, trials())

    assert one.run(torch.sin, cold=False).times == [3.0, 3.0, 3.0]


def test_each_call_has_numbers_of_its_own():
    seen = []
    one = caller()
    one.prepare(FORWARD, trials())
    one.run(lambda x: seen.append(x.detach().clone()) or x.sin(), cold=True)

    assert len({float(x.sum()) for x in seen}) == 3


def test_forward_has_no_gradients_and_both_have():
    one = caller()
    for mode, count in ((FORWARD, 1), (BACKWARD, 2), (BOTH_WAYS, 2)):
        one.prepare(mode, trials())
        section = one.run(torch.sin, cold=False)

        assert [len(kept) for kept in section.kept] == [count] * 3


def test_backward_alone_is_timed_alone():
    calls = []

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            calls.append("forward")
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            calls.append("backward")
            return g

    one = caller()
    one.prepare(BACKWARD, trials(1))
    one._clock = lambda: calls.append("clock") or 0.0
    one.run(Counted.apply, cold=False)

    assert calls == ["forward", "clock", "backward", "clock"]


def test_results_are_kept_as_they_were():
    out = torch.zeros(4, 5)
    one = caller(gradients=False)
    one.prepare(FORWARD, trials(2))
    section = one.run(lambda x: out.copy_(x), cold=False)

    assert not torch.equal(section.kept[0][0], section.kept[1][0])


def test_calls_in_a_row_are_arranged_first():
    seen = []
    one = caller()
    one.prepare(BOTH_WAYS, trials(4))
    one.arrange(lambda x: seen.append(1) or x.sin())

    assert seen == []
    assert len(one.run_in_a_row()) == 4
    assert len(seen) == 4
