"""A wrong gradient comes with its reason, the edit that mends it and the backward that is right."""

import time
from dataclasses import replace

import pytest
import torch

import pullback as pb
from examples import my_complex_op
from pullback.check.subject import reasons
from tests.check.subjects import normal, subject

INPUTS = (my_complex_op.inputs()["x"],)
WRONG = my_complex_op.MyComplexOpAsPublished


class Clamped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, low):
        ctx.save_for_backward(x)
        ctx.low = low
        return x.clamp(min=low) ** 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x, None


def test_finding_has_reason_edit_and_place():
    report = pb.check(WRONG, INPUTS, select=["gradient"], profile="deep")

    (finding,) = report.findings
    assert finding.why == "the saved `sine` is used where the input `x` is needed"
    assert finding.fix == "use `x` instead of `sine` in `sine.cos()`, and save `x`"
    assert finding.place.endswith("my_complex_op.py:47")
    assert finding.facts["backward"].splitlines()[0] == "def backward(ctx, grad_out):"
    assert "grad_x = grad_sine * x.cos()" in finding.facts["backward"]


def test_quick_profile_takes_no_time(monkeypatch):
    monkeypatch.setattr(reasons, "faults_of", None)
    monkeypatch.setattr(reasons, "derived_from", None)
    (finding,) = pb.check(WRONG, INPUTS, select=["gradient"], profile="quick", isolate=False)

    assert finding.why == ""
    assert finding.facts == {}


def test_failure_of_the_search_is_not_told(monkeypatch):
    def fails(*args, **options):
        raise RuntimeError("broken")

    monkeypatch.setattr(reasons, "faults_of", fails)
    monkeypatch.setattr(reasons, "derived_from", fails)
    report = pb.check(WRONG, INPUTS, select=["gradient"], isolate=False)

    (finding,) = report.findings
    assert finding.why == ""
    assert finding.facts == {}
    assert report.skips == ()


@pytest.mark.parametrize("target", [lambda x: WRONG.apply(x)], ids=["callable"])
def test_callable_gets_no_reason(target, monkeypatch):
    monkeypatch.setattr(reasons, "faults_of", None)
    (finding,) = pb.check(target, INPUTS, select=["gradient"], isolate=False)

    assert finding.why == ""


def test_plain_arguments_are_told():
    text = reasons.right_backward(subject(Clamped, normal(4), -0.5, profile="deep"))

    assert text.splitlines()[0] == "# for low=-0.5; return None in its place too"


def test_search_is_made_once(monkeypatch):
    calls = []
    real = reasons.faults_of
    monkeypatch.setattr(
        reasons, "faults_of", lambda *a, **o: calls.append(1) or real(*a, **o | {"seconds": 0})
    )
    monkeypatch.setattr(reasons, "why_no_fork", lambda: "in this process, to be counted")
    one = subject(WRONG, *INPUTS, profile="deep")
    for _ in range(2):
        reasons.reason_of(one, "x")

    assert calls == [1]


def test_fork_without_autograd_searches_here(monkeypatch):
    expected = reasons.reason_of(subject(WRONG, *INPUTS), "x")
    monkeypatch.setattr(reasons, "why_no_autograd", lambda: "its threads stayed behind")

    assert expected.why
    assert reasons.reason_of(subject(WRONG, *INPUTS), "x") == expected


def test_search_without_end_is_ended(monkeypatch):
    monkeypatch.setattr(reasons, "derived_from", lambda *args: time.sleep(60))
    monkeypatch.setitem(reasons.REASON_SECONDS, "standard", 0.1)
    begun = time.monotonic()

    assert reasons.reason_of(subject(WRONG, *INPUTS), "x") == reasons.Reason()
    assert time.monotonic() - begun < 30


def test_unknown_pattern_is_no_reason(monkeypatch):
    real = reasons.faults_of
    monkeypatch.setattr(
        reasons, "faults_of", lambda *a, **o: [replace(f, is_known=False) for f in real(*a, **o)]
    )

    assert reasons.reason_of(subject(WRONG, *INPUTS), "x").why == ""
