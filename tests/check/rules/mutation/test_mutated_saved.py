"""Sound functions pass `mutated-saved`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from tests.check.functions import Exp
from tests.check.subjects import check_of, findings, made, normal, rule_tests

check = check_of("mutated-saved")

X = normal(4, 3)


class IntoOutput(Exp):
    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        raw = y.detach().numpy()
        raw *= g.numpy()
        return torch.from_numpy(raw)


class Growing(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.kept = x.exp()
        return ctx.kept.clone()

    @staticmethod
    def backward(ctx, g):
        return ctx.kept.mul_(g)


class Counts(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.calls = 0
        return x * 4

    @staticmethod
    def backward(ctx, g):
        ctx.calls += 1
        return g * 4 / ctx.calls


SOUND = {
    "exp": (Exp, (X,)),
    "square": (made(lambda x: x * x, lambda g, x: 2 * x * g), (X,)),
    "random": (made(lambda x: x * x, lambda g, x: 2 * x * g * torch.rand_like(g)), (X,)),
    "given away": (
        made(lambda x: x * x, lambda g, x: x.data.mul_(2 * g), declares={"donates": "x"}),
        (X,),
    ),
    "writes the cotangent": (made(lambda x: x * x, lambda g, x: g.mul_(2 * x)), (X,)),
}


def freed(g, x):
    grad = 2 * x * g
    x.untyped_storage().resize_(0)
    return grad


PLANTED = {
    "freed": (made(lambda x: x * x, freed), (X,), "the memory of input `x`"),
    "input": (made(lambda x: x * x, lambda g, x: x.data.mul_(2 * g)), (X,), "input `x`"),
    "output": (IntoOutput, (X,), "output 0"),
    "kept": (Growing, (X,), "in a second backward"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_tensor_that_changed_is_named():
    (found,) = findings(check, Growing, X)

    assert found.why.startswith("`ctx.kept` was ")


def test_counter_on_ctx_is_left_to_another_rule():
    assert findings(check, Counts, X) == []
