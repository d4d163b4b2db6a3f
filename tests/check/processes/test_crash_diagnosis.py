"""After a crash, the call that made it is named, and its program ends another process."""

import os
import sys

import pytest
import torch

import pullback as pb
from pullback.check.job import Job
from pullback.check.processes.crash_diagnosis import CrashCause, cause_of
from pullback.check.rules import selected
from pullback.check.target.target import target_of
from pullback.judge.example import example_of
from tests.check import functions as f

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class DeadlyWhenEmpty(f.Square):
    """Ends the process where there is nothing to compute."""

    @staticmethod
    def backward(ctx, g):
        if not g.numel():
            os.kill(os.getpid(), 9)
        return f.Square.backward(ctx, g)


class LeavingWhenEmpty(f.Square):
    """Leaves the program where there is nothing to compute."""

    @staticmethod
    def backward(ctx, g):
        if not g.numel():
            sys.exit(3)
        return f.Square.backward(ctx, g)


def job(target, *names):
    rules = selected(select=names)
    return Job(target_of(target), (example_of((X,)),), rules)


@pytest.mark.parametrize("target", [DeadlyWhenEmpty, LeavingWhenEmpty])
def test_deadly_call_is_told(target):
    (finding,) = pb.check(target, (X,), select=["empty-input"]).findings

    assert finding.rule.name == "crash"
    assert finding.inputs == "x: float64[0, 3]"
    assert "x = torch.zeros((0, 3), dtype=torch.float64).requires_grad_()" in finding.repro
    assert finding.repro.endswith("out.sum().backward()")


def test_repro_of_crash_ends_a_fresh_process(run_python, tmp_path):
    (finding,) = pb.check(DeadlyWhenEmpty, (X,), select=["empty-input"]).findings
    (tmp_path / "repro.py").write_text(finding.repro, encoding="utf-8")

    done = run_python(str(tmp_path / "repro.py"))

    assert done.returncode == -9, done.stderr


def test_rule_that_lives_has_no_cause():
    assert cause_of(job(f.Square, "wrong-factor"), 0) == CrashCause()


def test_death_at_the_example_is_told():
    cause = cause_of(job(f.KilledInForward, "wrong-factor"), -1)

    assert cause.inputs == "x: float32[2, 3]"
    assert "out = KilledInForward.apply(x)" in cause.repro
