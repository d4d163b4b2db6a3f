"""A target that dies, leaves, hangs or eats memory becomes a finding, and the run goes on."""

import multiprocessing
import re

import pytest
import torch

import pullback as pb
from pullback.check import driving, work
from pullback.check.findings.finding import Rule
from pullback.check.findings.registered import Registered
from pullback.check.processes import forked, fresh, watch
from pullback.check.subject.subject import Subject
from pullback.check.target.target import target_of
from pullback.errors import InternalError
from pullback.judge.example import example_of
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


@pytest.fixture
def impatient(monkeypatch):
    """A hang is ended after half a second of work, which may be long in coming."""
    monkeypatch.setitem(work.SECONDS, "quick", 0.1)
    monkeypatch.setattr(forked, "GRACE", 0.4)
    monkeypatch.setattr(watch, "GLANCE", 0.1)


@pytest.mark.parametrize(
    ("target", "how", "idle"),
    [
        (f.Waiting, r"it did not end, and did nothing for \d+ s", 0.5),
        (f.Spinning, r"it did not end within \d+ s of work", 60.0),
    ],
)
def test_hang_is_a_finding(target, how, idle, impatient, monkeypatch):
    monkeypatch.setitem(forked.IDLE, "quick", idle)
    report = pb.check(target, (X,), select=["wrong-gradient"], profile="quick")

    (finding,) = report.findings
    assert finding.rule.name == "crash"
    assert re.fullmatch(how, finding.got)


def test_second_hang_ends_the_run(impatient):
    select = ["wrong-gradient", "wrong-factor", "flipped-sign", "cut-gradient"]

    report = pb.check(f.Spinning, (X,), select=select, profile="quick")

    assert len(report.findings) == 1
    assert "as well: it did not end" in report.skips[0].reason
    assert report.notes == ("2 rules were not tried: too many workers were lost",)


@pytest.mark.parametrize(
    ("target", "how"),
    [
        (f.KilledInForward, "it was ended by SIGKILL"),
        (f.SpinningInForward, r"it did not end within \d+ s of work"),
    ],
)
def test_death_at_the_example_is_a_finding(target, how, impatient):
    report = pb.check(target, (X,), profile="quick")

    (finding,) = report.findings
    assert (finding.rule.name, finding.at) == ("crash", "at the example itself")
    assert re.fullmatch(how, finding.got)
    assert report.notes == (
        f"{len(report.rules)} rules were not tried: too many workers were lost",
    )


@pytest.mark.quick(1)
@pytest.mark.parametrize(("element", "found"), [(forked.ELEMENT, []), (0.0, ["crash"])])
def test_large_example_gets_more_time(impatient, monkeypatch, element, found):
    """Before a call was timed, its size says how long it may take."""
    monkeypatch.setattr(forked, "GRACE", 0.0)
    monkeypatch.setattr(forked, "ELEMENT", element)
    report = pb.check(torch.sin, (torch.ones(8_000_000),), select=["wrong-factor"], profile="quick")

    assert [finding.rule.name for finding in report.findings] == found


@pytest.mark.slow
def test_slow_function_gets_more_time(impatient):
    report = pb.check(f.Slow, (X,), select=["wrong-factor"], profile="quick")

    assert report.ok
    assert report.notes == ()


def test_crash_on_our_wrapper_is_no_finding():
    report = pb.check(f.ReadsMemory, (X,), select=["subclass-input", "wrong-factor"])

    (skip,) = report.skips
    assert report.ok
    assert skip.rule.name == "subclass-input"
    assert skip.reason.startswith("tensors without memory of their own cannot be read")


def test_error_of_the_function_is_not_ours():
    report = pb.check(f.FailingWithoutGrad, (X,))

    assert [skip for skip in report.skips if "itself failed" in skip.reason] == []


def test_error_of_a_check_is_told_as_such():
    def check(subject):
        raise LookupError("lost")
        yield

    rule = Registered(Rule("Z001", "own-fault", "own"), check, "", "")
    subject = Subject(target_of(f.Square), (example_of((X,)),))

    (skip,) = work.try_rule(rule, subject)
    how = "the check itself failed: LookupError: lost"
    assert re.fullmatch(how, skip.reason)


def test_target_that_always_dies_is_given_up():
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
    def interrupted(job, first, seconds):
        yield work.Message("begin", 0)
        yield work.Message(
            "found", 0, tuple(work.try_rule(job.rules[0], Subject(job.target, job.examples)))
        )
        raise KeyboardInterrupt

    monkeypatch.setattr(driving, "messages", interrupted)

    report = pb.check(f.HalfSquare, (X,), select=["wrong-factor", "nonlinear-backward"])

    assert report.interrupted
    assert [finding.rule.name for finding in report.findings] == ["wrong-factor"]


def test_fork_without_autograd_is_replaced_by_a_fresh_worker(monkeypatch):
    monkeypatch.setattr(forked, "why_no_autograd", lambda: "its threads stayed behind")

    report = pb.check(f.HalfSquare, (X,), select=["wrong-factor"])

    assert [finding.rule.name for finding in report.findings] == ["wrong-factor"]
    assert report.notes == ()


class Oddly(torch.autograd.Function):
    """Right, but for what it raises in backward."""

    raises = None

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        raise Oddly.raises


class Own(BaseException):
    pass


@pytest.mark.parametrize("is_isolated", [True, False])
@pytest.mark.parametrize(
    "error", [GeneratorExit("over"), Own("of my own"), KeyboardInterrupt("no")]
)
def test_odd_exception_keeps_type_and_text(error, is_isolated, monkeypatch):
    if not is_isolated and isinstance(error, KeyboardInterrupt):
        pytest.skip("in this process it is Ctrl-C")
    monkeypatch.setattr(Oddly, "raises", error)
    report = pb.check(Oddly, (X,), select=["wrong-gradient"], isolate=is_isolated)

    (finding,) = report.findings
    assert finding.rule.name == "crash"
    assert finding.got == f"it raised {type(error).__name__}: {error}"


def test_failure_of_the_checker_at_the_example_is_ours(monkeypatch):
    monkeypatch.setattr(work, "Subject", None)
    with pytest.raises(InternalError, match="TypeError: 'NoneType' object is not callable"):
        pb.check(f.Square, (X,), select=["wrong-gradient"])


def test_failure_of_the_checker_between_rules_is_a_skip(monkeypatch):
    monkeypatch.setattr(work, "surrogates_of", None)
    report = pb.check(f.Square, (X,), select=["wrong-gradient"])

    assert report.ok
    assert report.skips[0].reason == (
        "the check itself failed: TypeError: 'NoneType' object is not callable"
    )


def test_memory_is_told_of_a_worker_that_does_not_end(monkeypatch):
    sizes = iter([1 << 30, 4 << 30])
    monkeypatch.setattr(watch, "memory_of", lambda pid: next(sizes, 3 << 30))
    looking = watch.Watch(0, -1.0, 60.0)
    with pytest.raises(watch.Died) as raised:
        looking._look()

    assert raised.value.how.endswith("s of work, and took 3.0 GiB of memory")


# ---- where there can be no fork ----


def test_no_file_descriptors_are_no_error(monkeypatch):
    def pipe():
        raise OSError(24, "Too many open files")

    fresh._stop_idle()
    monkeypatch.setattr("os.pipe", pipe)
    report = pb.check(f.HalfSquare, (X,), select=["wrong-factor"])

    assert [finding.rule.name for finding in report.findings] == ["wrong-factor"]
    assert driving.HERE in report.notes[0]
    assert "no process could be started: Too many open files" in report.notes[0]


def test_daemon_of_a_pool_can_check(monkeypatch):
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    report = pb.check(f.HalfSquare, (X,), select=["wrong-factor"])

    assert [finding.rule.name for finding in report.findings] == ["wrong-factor"]
    assert report.notes == ()


def test_process_without_stdout_can_check(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.stderr", None)
    report = pb.check(f.HalfSquare, (X,), select=["wrong-factor"])

    assert [finding.rule.name for finding in report.findings] == ["wrong-factor"]
