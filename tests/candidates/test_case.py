"""What is found of one candidate: one finding for each rule, and what it leaves of "right"."""

import torch

from pullback.candidates import rules
from pullback.candidates.case import Case
from pullback.candidates.judging import Bench, JudgeSettings
from pullback.candidates.rules import JudgeFinding
from pullback.candidates.sources import sendable


def case():
    bench = Bench(sendable(torch.sin, "reference"), None, JudgeSettings())
    bench.known = {"has_gradient": False, "device": "cpu"}
    one = Case(bench, sendable(torch.sin, "candidate"))
    one.peer.stop()
    return one


def test_one_finding_for_each_rule_is_kept():
    one = case()
    for where in ("first", "second"):
        one.found(JudgeFinding(rules.LAZY, where))

    assert [finding.at for finding in one.findings] == ["first"]


def test_notes_leave_a_candidate_right():
    one = case()
    one.found(JudgeFinding(rules.FEWER))
    assert one._is_right()

    one.found(JudgeFinding(rules.FAILS))
    assert not one._is_right()
