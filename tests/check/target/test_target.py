"""Targets: the names of their arguments are the user's."""

import torch

import pullback as pb
from pullback.check.target.target import target_of

X = torch.ones(3, requires_grad=True)


def scaled(x, scale):
    return (x * scale).relu()


class Product(torch.autograd.Function):
    program = "a name of the user's own"

    @staticmethod
    def forward(ctx, a, b):
        return a * b


def test_what_pullback_made_has_the_names_of_its_program():
    for made in (pb.derive(scaled, X, 2.0), pb.combine(scaled, X, 2.0, backend="eager")):
        assert target_of(made).names_of(2) == ("x", "scale")


def test_function_has_the_names_of_its_forward():
    assert target_of(Product).names_of(3) == ("a", "b", "arg2")


def test_calls_that_break_a_graph_are_named_with_their_method():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.largest = x.abs().max().item()
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    assert target_of(Scaled).graph_breaks == (("forward", "item"),)
