"""Rules say the same of a function each time, whatever random numbers the caller has drawn."""

import random
from importlib import import_module

import numpy as np
import pytest
import torch
from torch.autograd import Function

import pullback as pb
from pullback.check.findings.finding import Rule, Skip
from pullback.check.findings.registered import Registered
from pullback.check.subject.subject import Subject
from pullback.check.target.target import target_of
from pullback.check.work import try_rule
from pullback.judge.example import example_of
from pullback.judge.run import run
from tests.check import functions as f
from tests.check.subjects import normal

X = normal(3, 4)
RULE = Rule("Z001", "drawn", "own")


def drawn():
    return torch.rand(1).item(), random.random(), np.random.rand()


def seed(number):
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def subject_of(target):
    return Subject(target_of(target), (example_of((X,)),))


work_module = import_module("pullback.check.work")


def test_rule_draws_the_same_each_time():
    rule = Registered(RULE, lambda subject: [Skip(RULE, str(drawn()))], "", "")
    found = []
    for number in (1, 2):
        seed(number)
        found += [skip.reason for skip in try_rule(rule, subject_of(f.Square))]

    assert found[0] == found[1]


def test_rule_does_not_begin_with_the_numbers_of_forward():
    def check(subject):
        forward = run(lambda x: x * torch.rand_like(x), subject.given, subject.names)
        again = X.detach() * torch.rand_like(X)
        yield Skip(RULE, str(torch.equal(forward.result.detach(), again)))

    (skip,) = try_rule(Registered(RULE, check, "", ""), subject_of(f.Square))

    assert skip.reason == "False"


class LosesOneInEight(Function):
    """As in a race: an update is lost now and then, and an empty gradient has none."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sum(-1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        out = g[:, None].expand_as(x).clone()
        if random.randrange(8) == 0:
            out[0, 0] = 0
        return out


@pytest.mark.parametrize("isolate", [True, False])
def test_random_backward_gets_the_same_findings(isolate):
    rules = ["empty-input", "wrong-gradient", "nonlinear-backward", "random-in-backward"]
    found = set()
    for number in range(4):
        seed(number)
        report = pb.check(LosesOneInEight, (X,), select=rules, isolate=isolate, profile="quick")
        found.add(str(report.findings))

    assert len(found) == 1


def test_generators_of_caller_go_on_as_before():
    seed(5)
    expected = drawn()
    seed(5)
    pb.check(LosesOneInEight, (X,), select=["wrong-gradient"], isolate=False)

    assert drawn() == expected


def test_rules_share_the_time_that_is_left():
    spent = (0.0, 2.0, 4.0, 50.0)
    limits = [work_module.seconds_of_rule("standard", one, call=0.0) for one in spent]

    assert limits == sorted(limits, reverse=True)
    assert limits[-1] == work_module.LEAST
    assert sum(limits[:3]) < work_module.TOGETHER["standard"]


def test_slow_function_is_still_called_some_times():
    seconds = work_module.seconds_of_rule("standard", 50.0, call=0.2)

    assert seconds == pytest.approx(work_module.CALLS * 0.2)
    most = work_module.SECONDS["standard"]
    assert work_module.seconds_of_rule("standard", 50.0, call=9.0) == most


def test_deep_profile_has_no_limit_together():
    assert work_module.seconds_of_rule("deep", 1e6, call=0.0) == work_module.SECONDS["deep"]
