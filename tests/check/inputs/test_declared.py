"""A declared domain is kept: nothing outside is tried, given or guessed."""

import pytest
import torch

import pullback as pb
from pullback.check.inputs.declared import declared_of, fitted
from pullback.errors import DeclarationError, ExamplesError
from pullback.judge.example import example_of

INF = float("inf")


class Root(torch.autograd.Function):
    """Right where x is positive; elsewhere backward is another one."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs()

    @staticmethod
    def backward(ctx, g):
        return g


INPUTS = (torch.linspace(0.5, 2, 6),)


def test_what_lies_outside_is_not_tried():
    options = {"select": ["domain"], "profile": "standard"}
    free = pb.check(Root, INPUTS, **options)
    bound = pb.check(Root, INPUTS, declares={"domain": {"x": (1e-3, INF)}}, **options)

    assert not free.ok
    assert bound.ok
    assert any("`x`: declared to be from 0.001 to inf" in note for note in bound.notes)


def test_inputs_outside_are_told_whole():
    with pytest.raises(ExamplesError) as raised:
        pb.check(Root, (torch.tensor([-1.0, 2.0]),), declares={"domain": {"x": (0, 1)}})

    assert str(raised.value) == (
        "E403 examples: the inputs of `Root` must lie in the domain that is declared for it\n"
        "  expected: `x`, declared to be from 0 to 1\n"
        "  got:      numbers from -1 to 2\n"
        "  fix:      give inputs that do, or declare another domain"
    )


@pytest.mark.parametrize("domain", [3, {"y": (0, 1)}, {"x": 3}, {"x": (1, 0)}, {"x": ("a", 1)}])
def test_wrong_declaration_is_refused(domain):
    with pytest.raises(DeclarationError, match="must be bounds of inputs, by their names"):
        pb.check(Root, INPUTS, declares={"domain": domain})


def test_numbers_have_a_domain_too():
    (bound,) = declared_of((("p", 0.0, 1.0),), ("x", "p"))

    assert bound.is_kept(example_of((torch.ones(2), 0.5)))
    assert not bound.is_kept(example_of((torch.ones(2), 1.5)))


@pytest.mark.parametrize(("low", "high"), [(0, 1), (2, INF), (-INF, -1), (-INF, INF)])
def test_guesses_are_brought_within(low, high):
    x = torch.linspace(-3, 3, 7).requires_grad_()
    (moved, other) = fitted((x, 3), (("x", low, high),), ("x", "n"))

    assert bool(((moved >= low) & (moved <= high)).all())
    assert moved.requires_grad
    assert other == 3
