"""What beats the machine is impossible, with times that were made up."""

from types import SimpleNamespace

import torch

from pullback.candidates import rules
from pullback.candidates.case import Case
from pullback.candidates.judging import Bench, JudgeSettings
from pullback.candidates.race import Race, Times
from pullback.candidates.sections import FORWARD
from pullback.candidates.sources import sendable


class Referee:
    """Answers what a test says."""

    pid = 0  # the system says nothing of it

    def __init__(self, **answers):
        self.answers = answers

    def ask(self, verb, *args, seconds=0.0):
        return self.answers[verb]


def limited(taken, **needs):
    machine = {"bytes_per_second": 1e9, "flops_per_second": 1e9, "cache_bytes": 0}
    bench = Bench(sendable(torch.sin, "reference"), None, JudgeSettings())
    bench.known = {"has_gradient": False, "device": "cpu"}
    bench.referee = Referee(limits={"machine": machine, "needs": needs})
    one = Case(bench, sendable(torch.sin, "candidate"))
    one.peer.stop()
    one.race.times = {FORWARD: Times(calls=[taken])}
    one.race._limit([FORWARD])
    return [finding.rule for finding in one.findings]


def test_what_beats_the_machine_is_impossible():
    assert limited(1e-4, forward_bytes=1e6) == [rules.IMPOSSIBLE]
    assert limited(1e-3, forward_bytes=1e6) == []


def test_fewer_operations_are_a_note():
    assert limited(1e-4, forward_flops=1e6) == [rules.FEWER]
    assert rules.FEWER.breaks == ()


def test_a_clock_that_goes_slower_is_found_whatever_calls_take():
    times = iter([0.0, 0.01, 3.0, 3.01])

    def found(*said):
        answers = iter(said)
        peer = SimpleNamespace(ask=lambda verb: {"now": [next(answers)]})
        findings = []
        bench = SimpleNamespace(clock=lambda: next(times))
        race = Race(SimpleNamespace(bench=bench, peer=peer, found=findings.append))
        race._clocks(race._readings(), race._readings())
        return [finding.rule for finding in findings]

    assert found(100.0, 103.0) == []
    times = iter([0.0, 0.01, 3.0, 3.01])
    assert found(100.0, 101.5) == [rules.CLOCK]
