"""Sound functions pass `mutated-input`; planted faults are caught, and named."""

from typing import ClassVar

import pytest
import torch
from torch.autograd import Function

from tests.check.functions import DoubledInPlace
from tests.check.subjects import check_of, findings, made, normal, rule_tests

check = check_of("mutated-input")

X, W = normal(3, 4), normal(4, seed=1)


class Donated(Function):
    """Given away on purpose."""

    declares: ClassVar = {"donates": "x", "surrogate": "x"}

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.exp())
        x.data.zero_()
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return None


class PastTheCounter(Function):
    @staticmethod
    def forward(ctx, x, w):
        x.data.sub_(x.mean())
        return x * w

    @staticmethod
    def backward(ctx, g):
        return g, g.sum(0)


class Buffer(Function):
    @staticmethod
    def forward(ctx, x, running):
        running.mul_(0.9).add_(0.1 * x.mean(0))
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g, None


class InList(Function):
    @staticmethod
    def forward(ctx, x, kept):
        kept[0].add_(1)
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g, None


def plain(x, running):
    """PyTorch's own in-place operator, which autograd sees."""
    running.add_(1)
    return x * 2


SOUND = {
    "square": (made(lambda x: x * x, lambda g, x: 2 * x * g), (X,)),
    "marked": (DoubledInPlace, (X,)),
    "donated": (Donated, (X,)),
    "plain program": (plain, (X, torch.zeros(4))),
}

PLANTED = {
    "past the counter": (PastTheCounter, (X, W), "input `x`"),
    "buffer": (Buffer, (X, torch.zeros(4)), "input `running`"),
    "in a list": (InList, (X, [torch.zeros(2)]), "input `kept`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


@pytest.mark.parametrize(("name", "weight"), [("past the counter", "wrong"), ("buffer", "fragile")])
def test_buffer_is_less_at_risk(name, weight):
    target, args, _ = PLANTED[name]

    assert [str(finding.weight) for finding in findings(check, target, *args)] == [weight]


@torch.library.custom_op("pullback_tests::halve_and_clear", mutates_args=())
def halve_and_clear(x: torch.Tensor) -> torch.Tensor:
    half = x / 2
    x.zero_()
    return half


def test_op_must_name_what_it_writes():
    (finding,) = findings(check, torch.ops.pullback_tests.halve_and_clear, normal(4))

    assert finding.at.startswith("input `x` at ")
    assert finding.fix == "work on a clone of `x`, or name it in `mutates_args`"


@torch.library.custom_op("tests_mutated_input::centre", mutates_args=())
def centre(x: torch.Tensor) -> torch.Tensor:
    x -= x.mean()
    return x.clone()


@torch.library.custom_op("tests_mutated_input::scale", mutates_args={"x"})
def scale(x: torch.Tensor) -> None:
    x *= 2


def test_op_that_writes_in_a_program_is_named():
    (found,) = findings(check, lambda x: centre(2 * x), normal(4))

    assert found.at == "argument `x` of the op `tests_mutated_input::centre`"


def test_op_that_says_what_it_writes_is_fine():
    def program(x):
        y = x.detach().clone()
        scale(y)
        return x * y

    assert findings(check, program, normal(4)) == []
