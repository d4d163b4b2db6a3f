"""Sound functions pass `backward-twice`; planted faults are caught, and named."""

import pytest
import torch
from torch.autograd import Function

from pullback.check.findings.finding import Severity
from pullback.check.rules.memory.backward_twice import check
from tests.check.subjects import findings, made, normal, rule_tests

X = normal(4)


class Pops(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.cache = [x.cosh()]
        return x.sinh()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.cache.pop()


class Frees(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.kept = x.cosh()
        return x.sinh()

    @staticmethod
    def backward(ctx, g):
        kept, ctx.kept = ctx.kept, None
        return g * kept


class Counts(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.calls = 0
        return x * 4

    @staticmethod
    def backward(ctx, g):
        ctx.calls += 1
        return g * 4 / ctx.calls


class Once(Frees):
    """Says in PyTorch's own way that it is good for one backward."""

    clear_saved_tensors_on_access = True


SOUND = {
    "declared": (Once, (X,)),
    "saved": (made(lambda x: x.sinh(), lambda g, x: g * x.cosh()), (X,)),
    "given away": (
        made(lambda x: x * x, lambda g, x: x.data.mul_(2 * g), declares={"donates": "x"}),
        (X,),
    ),
}

PLANTED = {
    "pops": (Pops, (X,), "the second backward"),
    "frees": (Frees, (X,), "the second backward"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


@pytest.mark.parametrize("name", PLANTED)
def test_what_second_backward_raises_is_told(name):
    assert findings(check, PLANTED[name][0], X)[0].got.split(":")[0] in ("IndexError", "TypeError")


def test_second_backward_that_differs_is_wrong():
    (found,) = findings(check, Counts, X)

    assert found.severity is Severity.WRONG
    assert found.at.endswith("in the second backward over one graph")


def test_random_backward_is_left_to_another_rule():
    drawn = made(lambda x: x * x, lambda g, x: 2 * x * g * torch.rand_like(g))

    assert findings(check, drawn, X) == []
