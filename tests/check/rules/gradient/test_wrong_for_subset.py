"""Sound functions pass `wrong-for-subset`; planted faults are caught, and named."""

import pytest
import torch
from torch.autograd import Function

from tests.check.subjects import check_of, findings, made, normal, rule_tests

check = check_of("wrong-for-subset")

A, B = normal(5), normal(5, seed=1)


class Asks(Function):
    """Computes what is asked for."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        needs = ctx.needs_input_grad
        return g * b if needs[0] else None, g * a if needs[1] else None


class AsksTheOther(Asks):
    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b, g * a if ctx.needs_input_grad[0] else None


class HalfAlone(Asks):
    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b, g * a if ctx.needs_input_grad[0] else g * a / 2


class FailsWhenFrozen(Asks):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a if b.requires_grad else None, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b, g * a


class OtherWithoutGrad(Asks):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b if any(ctx.needs_input_grad) else a.clone()


class FailsWithoutGrad(Asks):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        if any(ctx.needs_input_grad):
            out = a * b
        return out


SOUND = {"asks": (Asks, (A, B)), "gives all": (made(lambda a: a * 2, lambda g, a: 2 * g), (A,))}

PLANTED = {
    "asks about another": (AsksTheOther, (A, B), "gradient of `b`"),
    "half when alone": (HalfAlone, (A, B), "gradient of `b`"),
    "fails when frozen": (FailsWhenFrozen, (A, B), "backward when only `a`"),
    "other without grad": (OtherWithoutGrad, (A, B), "output 0"),
    "fails without grad": (FailsWithoutGrad, (A, B), "forward when no input requires grad"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


@pytest.mark.parametrize("name", PLANTED)
def test_gradcheck_alone_would_miss_it(name):
    assert torch.autograd.gradcheck(PLANTED[name][0].apply, (A, B))


def test_one_error_is_told_once():
    class Unprepared(Function):
        @staticmethod
        def forward(ctx, a, b):
            if ctx.needs_input_grad[1]:
                kept = a * 2
            ctx.save_for_backward(a, b, kept)
            return a * b

        @staticmethod
        def backward(ctx, g):
            a, b, _ = ctx.saved_tensors
            return g * b, g * a

    found = findings(check, Unprepared, A, B)

    assert [finding.at for finding in found] == ["forward when no input requires grad"]


def test_worst_numbers_are_shown():
    (finding,) = findings(check, HalfAlone, A, B)

    assert float(finding.got) == pytest.approx(float(finding.expected) / 2, rel=1e-3)
    assert "index" in finding.at or "[" in finding.at
