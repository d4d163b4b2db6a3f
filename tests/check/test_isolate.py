"""A patient that dies, leaves, hangs or eats memory becomes a finding, and the run goes on."""

import pytest
import torch

import pullback as pb
from pullback.check import isolate, runner, work
from pullback.check.subject import Subject
from tests.check import functions as f

X = torch.linspace(-1, 1, 5, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize(
    ("target", "how"),
    [(f.Killed, "it was ended by SIGKILL"), (f.Leaving, "it called sys.exit")],
)
def test_death_is_a_finding(target, how):
    report = pb.check(target, (X,), select=["nonlinear-backward", "wrong-gradient"])

    (finding,) = report.findings
    assert (finding.rule.name, finding.got) == ("crash", how)
    assert "wrong-gradient" in finding.at
    assert [skip.rule.name for skip in report.skips] == ["nonlinear-backward"]


def test_exit_is_a_finding_in_this_process_too():
    select = ["nonlinear-backward", "wrong-gradient"]

    report = pb.check(f.Leaving, (X,), select=select, isolate=False)

    (finding,) = report.findings
    assert (finding.rule.name, finding.got) == ("crash", "it called sys.exit")


def test_hang_is_a_finding(monkeypatch):
    monkeypatch.setitem(work.SECONDS, "quick", 0.1)
    monkeypatch.setattr(isolate, "GRACE", 0.5)

    report = pb.check(f.Hanging, (X,), select=["wrong-gradient"], profile="quick")

    (finding,) = report.findings
    assert finding.rule.name == "crash"
    assert "did not end within" in finding.got


def test_patient_that_always_dies_is_given_up():
    report = pb.check(f.Killed, (X,))

    assert len(report.findings) == 1
    assert "rules were not tried: too many workers were lost" in report.notes[0]


def test_greed_is_an_error_of_backward():
    report = pb.check(f.Greedy, (X,), select=["backward-fails"])

    (finding,) = report.findings
    assert finding.rule.name == "backward-fails"
    assert "memory" in finding.got


def test_process_of_caller_is_untouched():
    before = torch.get_rng_state()
    x = X.detach().clone().requires_grad_()

    pb.check(f.Square, (x,), select=["wrong-gradient"])

    assert torch.equal(before, torch.get_rng_state())
    assert x.grad is None
    assert torch.equal(x, X)


def test_interruption_keeps_what_was_found(monkeypatch):
    def interrupted(job, first):
        yield work.Message("begin", 0)
        yield work.Message(
            "found", 0, tuple(work.try_rule(job.rules[0], Subject(job.target, job.examples)))
        )
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "messages", interrupted)

    report = pb.check(f.HalfSquare, (X,), select=["wrong-factor", "nonlinear-backward"])

    assert report.interrupted
    assert [finding.rule.name for finding in report.findings] == ["wrong-factor"]


def test_fork_without_autograd_runs_the_rules_here(monkeypatch):
    monkeypatch.setattr(isolate, "refusal_here", lambda: "its threads stayed behind")

    report = pb.check(f.HalfSquare, (X,), select=["wrong-factor"])

    assert [finding.rule.name for finding in report.findings] == ["wrong-factor"]
    assert report.notes == ("the rules ran in this process: its threads stayed behind",)
