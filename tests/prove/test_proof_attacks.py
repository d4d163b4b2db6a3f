"""Attacks: gradients that are wrong where nobody looks, and right ones that look wrong."""

import math
from types import MappingProxyType

import pytest
import torch
from torch.autograd import Function
from torch.nn import functional as F

from pullback.prove import prove
from tests.prove.proofs import (
    ONE,
    POSITIVE,
    POSITIVES,
    TWO,
    assert_witness_holds,
    drawn,
    function,
)


def square(masked):
    """The gradient of a square, but g itself where `masked` is true."""
    return lambda x, g: torch.where(masked(x), g, 2 * x * g)


# Right wherever one looks by chance, and wrong on a set with volume.
HIDDEN = {
    "far step": square(lambda x: torch.floor(x / 1000) == 5),
    "root of a square": square(lambda x: ((x - 5000) ** 2).sqrt() - (x - 5000) == 0),
    "two arcs": square(lambda x: (x - 9).atan() + (1 / (x - 9)).atan() - math.pi / 2 >= 0),
    "undefined comparison": square(lambda x: ~(torch.log(x + 5000) > -1e9)),
    "thin slice": square(lambda x: (x > 0.3) & (x < 0.30001)),
    "top of a wave": square(lambda x: torch.sin(x) > 0.9999999),
    "root far out": lambda x, g: 2 * x * g + 0 * torch.sqrt(x + 5000),
    "logarithm far out": lambda x, g: 2 * x * g + 0 * torch.log(5000 - x),
    "rounded factor": lambda x, g: (2 + 1e-9) * x * g,
    "small summand": lambda x, g: 2 * x * g + 1e-12,
    "memory that nobody wrote": lambda x, g: torch.empty_like(x),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_fault_is_never_proved(name):
    cls = function(torch.square, HIDDEN[name])
    proof = prove(cls, *ONE)

    assert proof.verdict != "proved"
    if proof.witness is not None:
        assert_witness_holds(cls, proof.witness, ["x"])


@pytest.mark.parametrize(
    ("forward", "backward", "examples"),
    [
        (lambda x: x.clamp(-1, 1), lambda x, g: g * (x.abs() <= 1.0001), ONE),
        (
            lambda x, y: x ** torch.floor(y),
            lambda x, y, g: (
                torch.where(x > -50, torch.floor(y) * x ** (torch.floor(y) - 1), 1.0) * g,
                0 * g,
            ),
            POSITIVES,
        ),
        (torch.lgamma, lambda x, g: g * torch.digamma(x) * torch.where(x > -50, 1, 2), POSITIVE),
    ],
    ids=["corner", "whole power", "between poles"],
)
def test_fault_near_numbers_is_refuted(forward, backward, examples):
    cls = function(forward, backward)
    proof = prove(cls, *examples)

    assert proof.verdict == "refuted"
    assert_witness_holds(cls, proof.witness, ["x", "y"][: len(examples)])


def test_infinity_is_not_taken_for_undefined():
    cls = function(
        lambda x: 1 / (1 + 1 / torch.relu(x)),
        lambda x, g: torch.where(x > 0, g / (1 + x) ** 2, 5 * g),
    )

    assert prove(cls, *ONE).verdict == "unknown"


# ---- right where the function is defined ----


@pytest.mark.parametrize(
    ("forward", "backward", "examples"),
    [
        (torch.log, lambda x, g: g * torch.exp(-torch.log(x)), POSITIVE),
        (torch.log, lambda x, g: g / x.abs(), POSITIVE),
        (torch.log1p, lambda x, g: g * torch.exp(-torch.log1p(x)), POSITIVE),
        (torch.acosh, lambda x, g: g / ((x - 1).sqrt() * (x + 1).sqrt()), (POSITIVE[0] + 1,)),
        (torch.atanh, lambda x, g: g / (1 - x * x).sqrt() ** 2, (POSITIVE[0].detach() / 9,)),
        (lambda x: x**1.5, lambda x, g: 1.5 * torch.sqrt(x) * g, POSITIVE),
        (lambda x: torch.relu(x).sqrt(), lambda x, g: torch.where(x > 0, g / x.sqrt() / 2, 0), ONE),
    ],
    ids=["by output", "by size", "shifted", "area cosine", "area tangent", "power", "masked root"],
)
def test_only_where_defined_does_it_matter(forward, backward, examples):
    assert prove(function(forward, backward), *examples).verdict == "proved"


def test_tie_goes_either_way():
    wide = function(torch.minimum, lambda x, y, g: (g * (x < y), g * (x >= y)))

    assert prove(wide, *TWO).provisos == ("not shown where x = y",)


def test_log_sigmoid_is_proved_through_its_buffer():
    right = function(F.logsigmoid, lambda x, g: g * torch.sigmoid(-x))
    wrong = function(F.logsigmoid, lambda x, g: g * torch.sigmoid(x))

    assert prove(right, *ONE).verdict == "proved"
    assert prove(wrong, *ONE).verdict == "refuted"


@pytest.mark.parametrize("sign", [1, -1], ids=["wrong", "right"])
def test_complex_numbers_inside_are_unknown(sign):
    cls = function(lambda x: torch.exp(1j * x).real, lambda x, g: sign * g * x.sin())

    assert prove(cls, *ONE).verdict == "unknown"


def test_broadcast_column_is_summed():
    right = function(torch.mul, lambda x, y, g: (g * y, (g * x).sum(1, keepdim=True)))
    wrong = function(torch.mul, lambda x, y, g: (g * y, (g * x).mean(1, keepdim=True)))
    examples = drawn((4, 5), (4, 1))

    assert prove(right, *examples).verdict == "proved"
    assert prove(wrong, *examples).verdict == "refuted"


# ---- what is asked for ----


class LooksAtNeeds(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        if all(ctx.needs_input_grad):
            return g * y, g * x
        return g, g * x


class LooksAtNone(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin(), x * x

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        if g is None:
            return h * x
        return g * x.cos() if h is None else g * x.cos() + 2 * h * x


class StumblesOverNone(LooksAtNone):
    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        return 1 * g * x.cos() + 2 * h * x


def test_fault_for_some_needs_is_refuted():
    x, y = TWO
    proof = prove(LooksAtNeeds, x, y)
    witness = proof.witness
    leaf = torch.tensor(witness.inputs["x"], dtype=torch.float64, requires_grad=True)
    other = torch.tensor(witness.inputs["y"], dtype=torch.float64)
    cotangent = torch.tensor(witness.cotangents[0], dtype=torch.float64)
    (got,) = torch.autograd.grad(LooksAtNeeds.apply(leaf, other), leaf, cotangent)

    assert {n: j.verdict for n, j in proof.gradients.items()} == {"x": "refuted", "y": "proved"}
    assert witness.setting == "only `x` needs a gradient"
    assert "gradient of `x`[0] where only `x` needs a gradient: expected" in str(witness)
    assert got[witness.index].item() == witness.got != witness.expected


def test_fault_for_some_outputs_is_refuted():
    witness = prove(LooksAtNone, *ONE).witness
    leaf = torch.tensor(witness.inputs["x"], dtype=torch.float64, requires_grad=True)
    cotangent = torch.tensor(witness.cotangents[0], dtype=torch.float64)
    (got,) = torch.autograd.grad(LooksAtNone.apply(leaf)[1], leaf, cotangent)

    assert witness.setting == "only output 1 is used"
    assert got[witness.index].item() == witness.got != witness.expected


def test_error_for_some_outputs_is_unknown():
    proof = prove(StumblesOverNone, *ONE)

    assert proof.verdict == "unknown"
    assert "where only output 0 is used: TypeError" in proof.reason


# ---- what a proof is about ----


class LooksAtSize(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g if x.shape[0] > 1000 else 2 * x * g


class RoundsStraightThrough(Function):
    declares = MappingProxyType({"surrogate": "x"})

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        return x.floor() * scale

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g, g * x.floor()


def test_branch_on_size_is_not_for_every_size():
    assert prove(LooksAtSize, *drawn((5,))).scope == "for shapes x [5]"


def test_mask_of_numbers_is_not_for_every_size():
    cls = function(
        lambda x, mask: x * mask,
        lambda x, mask, g: (g * mask, None),
    )
    mask = torch.tensor([True, False, True])

    assert prove(cls, *ONE, mask).scope == "for shapes x [3], y [3]"


def test_declared_surrogate_is_not_judged():
    judged = prove(RoundsStraightThrough, *TWO).gradients

    assert judged["x"].reason.startswith("declared a surrogate")
    assert judged["scale"].verdict == "proved"


def test_plain_arguments_are_told():
    class Scaled(Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.factor = factor
            return x * factor

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor, None

    assert prove(Scaled, *ONE, 2.5).provisos == ("for the given values of `factor`",)
