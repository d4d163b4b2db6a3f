"""Sound functions pass `wrong-gradient`; planted faults are caught, and named."""

import pytest
import torch

from tests.check.subjects import check_of, findings, made, normal, rule_tests

check = check_of("wrong-gradient")

X, A, B = normal(3, 4), normal(5), normal(5, seed=1)
SIN = (lambda x: x.sin(), lambda g, x: g * x.cos())

SOUND = {
    "sine": (made(*SIN), (X,)),
    "product": (made(lambda a, b: a * b, lambda g, a, b: (g * b, g * a)), (A, B)),
    "wrong sign, told by another rule": (made(SIN[0], lambda g, x: -g * x.cos()), (X,)),
    "on purpose": (
        made(lambda x: x.round(), lambda g, x: g, declares={"surrogate": "x"}),
        (X,),
    ),
}


class SavedInHalf(torch.autograd.Function):
    """A product whose gradients come from inputs that were rounded to be saved."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a.half(), b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b, g * a.to(g.dtype)


PLANTED = {
    "saved in half": (SavedInHalf, (A, B), "gradient of `b`"),
    "missing term": (
        made(lambda x: x * x.sin(), lambda g, x: g * x.sin()),
        (X,),
        "gradient of `x`",
    ),
    "second of two": (
        made(lambda a, b: a * b.exp(), lambda g, a, b: (g * b.exp(), g * a * b)),
        (A, B),
        "gradient of `b`",
    ),
    "one entry": (
        made(lambda x: x.exp(), lambda g, x: (g * x.exp()).index_fill(0, torch.tensor([1]), 1.5)),
        (A,),
        "at [1], wrong in 1 of 5 entries",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_finding_says_what_it_must_be():
    (finding,) = findings(check, PLANTED["missing term"][0], torch.tensor([0.5]).double())

    assert float(finding.got) / float(finding.expected) == pytest.approx(0.5221, rel=1e-3)
