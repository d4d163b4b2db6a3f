"""One defect is reported once: by its cause, with what else it was seen as."""

import math

import pytest
import torch

import pullback as pb
from pullback.check.findings.causes import all_causes, by_cause
from pullback.check.findings.explaining import Sign
from pullback.check.findings.facts import At, Cotangent, Gradient, Input, Number
from pullback.check.findings.finding import Finding, Rule, Severity
from pullback.check.rules import all_rules, explained
from pullback.check.rules.memory.tensor_on_ctx import OnCtx
from pullback.check.rules.mutation.written_by_backward import Damage
from pullback.judge.run import Raised
from tests.check.subjects import normal

X = normal(6)
Function = torch.autograd.Function


AT = At(Gradient("x"), (0,))


def finding(name, group="gradient", at=AT, code="", **facts):
    rule = Rule(code or name[:3].upper(), name, group)
    return Finding.made(rule, at=at, **{"expected": Number(1), "got": Number(2), **facts})


CHANGED = finding("mutated-cotangent", "mutation", At(Cotangent(0), (0,), ", after backward"))
POISONED = finding("uninitialised-memory", "poison", got=Number(math.nan, " where it holds NaN"))
WRONG = finding("wrong-gradient")
RAISES = finding("cotangent-layout", "layout", got=Raised("RuntimeError", "no such view"))
SAVED = finding("unread-saved", "memory", "saved tensor 0", severity=Severity.WASTEFUL)


def names(findings):
    return [found.rule.name for found in findings]


def test_causes_are_rules_that_there_are():
    known = {registered.rule.name for registered in explained()}
    words = known | {registered.rule.group for registered in all_rules()} | set(Sign)

    assert len(all_causes()) > 20
    assert {name for name, _ in all_causes()} <= known
    assert {word for _, cause in all_causes() for word in cause.explains | cause.even} <= words


def test_no_two_causes_have_one_rank():
    ranks = [cause.rank for _, cause in all_causes()]

    assert len({*ranks}) == len(ranks)


@pytest.mark.parametrize("cause", [CHANGED, POISONED], ids=["cotangent", "memory"])
def test_echo_becomes_line_of_its_cause(cause):
    (found,) = by_cause([WRONG, cause, finding("wrong-at-size", "shape")])

    assert found.rule.name == cause.rule.name
    assert found.facts["also"].startswith(
        "seen as wrong-gradient (WRO), wrong-at-size (WRO), since"
    )


def test_every_finding_of_a_cause_stays():
    other = finding("mutated-cotangent", "mutation", At(Input("x"), (0,), ", after backward"))
    found = by_cause([WRONG, CHANGED, other])

    assert names(found) == ["mutated-cotangent", "mutated-cotangent"]
    assert ["also" in one.facts for one in found] == [True, False]


def test_gradient_with_its_own_reason_stays():
    other = finding("wrong-gradient", why="the saved `y` is used where `x` is needed")

    assert names(by_cause([other, CHANGED])) == ["mutated-cotangent", "wrong-gradient"]


def test_what_raises_is_no_echo():
    assert names(by_cause([RAISES, CHANGED, WRONG])) == ["mutated-cotangent", "cotangent-layout"]


def test_other_kinds_of_finding_stay():
    assert names(by_cause([SAVED, POISONED, WRONG])) == ["uninitialised-memory", "unread-saved"]


def test_finding_without_cause_is_untouched():
    assert by_cause([WRONG]) == [WRONG]


def test_memory_that_only_differs_is_an_echo():
    history = finding("result-depends-on-history", "state")
    memory = finding("uninitialised-memory", "poison", got=Number(3, " where it holds NaN"))

    assert names(by_cause([memory, history])) == ["result-depends-on-history"]


def test_cause_is_as_bad_as_it_shows():
    kept = finding(
        "tensor-on-ctx",
        "memory",
        "`ctx.y`",
        severity=Severity.FRAGILE,
        detail=OnCtx("y", None, has_slope=True),
    )
    (found,) = by_cause([finding("stale-after-edit", "memory"), kept])

    assert (found.rule.name, found.weight) == ("tensor-on-ctx", Severity.WRONG)


def test_cause_that_cannot_say_is_none():
    kept = finding("tensor-on-ctx", "memory", "`ctx.y`", code="B855")  # it has no detail

    assert names(by_cause([finding("detached-double-backward", "second"), kept])) == [
        "tensor-on-ctx",
        "detached-double-backward",
    ]


def test_one_remedy_for_two_inputs_is_one():
    one = finding("flipped-sign", fix="negate the gradient of `x`")
    at = At(Gradient("res"), (1,))
    two = finding("flipped-sign", at=at, fix="negate the gradient of `res`")
    (found,) = by_cause([one, two])

    assert found.at == one.at
    assert found.facts["also"] == "for `res` at [1]: expected 1, got 2"


def test_two_remedies_for_two_inputs_are_two():
    one = finding("wrong-gradient", fix="use `x`", why="the sine is used")
    two = finding("wrong-gradient", at=At(Gradient("w")), fix="divide by 2", remedy="2.0")

    assert len(by_cause([one, two])) == 2


def test_order_is_severity_then_code():
    fragile = finding("view-output", "alias", severity=Severity.FRAGILE, code="A1")
    wrong = [finding("flipped-sign", code="B2"), finding("cut-gradient", code="B1")]

    assert names(by_cause([SAVED, fragile, *wrong])) == [
        "cut-gradient",
        "flipped-sign",
        "view-output",
        "unread-saved",
    ]


# ---- whole checks ----


class ScalesCotangent(Function):
    @staticmethod
    def forward(ctx, x):
        return 7 * x

    @staticmethod
    def backward(ctx, g):
        return g.mul_(7)


class ReadsFresh(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        total = torch.empty_like(x)
        return total.add_(2 * x * g)


class Drawn(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g * (torch.rand_like(g) > 0.5)


@pytest.mark.parametrize(
    ("target", "cause"),
    [
        (ScalesCotangent, "mutated-cotangent"),
        (ReadsFresh, "uninitialised-memory"),
        (Drawn, "random-in-backward"),
    ],
)
def test_defect_has_one_finding(target, cause):
    report = pb.check(target, (X,), profile="quick")

    assert names(report.findings) == [cause]
    assert report.findings[0].facts["also"].startswith("seen as ")


def test_reference_is_not_made_of_overwritten_numbers():
    groups = ["gradient", "domain", "dtype", "shape"]
    report = pb.check(ScalesCotangent, (X.detach().float(),), select=groups, profile="quick")

    assert report.findings == ()


def test_crash_is_echo_of_freed_memory():
    crash = finding("crash", "crash", "while a rule was tried", got="it was ended by SIGSEGV")
    freed = finding("mutated-saved", "mutation", "the memory of input `x`", detail=Damage.FREED)
    kept = finding("mutated-saved", "mutation", At(Input("x"), (0,), ", after backward"))

    assert names(by_cause([crash, freed])) == ["mutated-saved"]
    assert sorted(names(by_cause([crash, kept]))) == ["crash", "mutated-saved"]


def test_second_backward_is_told_by_what_was_saved():
    again = finding("backward-twice", "memory")
    saved = finding("mutated-saved", "mutation", detail=Sign.AGAIN)

    assert names(by_cause([again, saved])) == ["mutated-saved"]
    assert names(by_cause([finding("hessian-asymmetry", "second"), again])) == ["backward-twice"]
