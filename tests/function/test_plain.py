"""`program_of` gives the forward of a Function as a plain program."""

import pytest
import torch

from pullback.capture.joint import capture
from pullback.derive.backward import derive_function
from pullback.function.function import Function
from pullback.function.plain import plain_program
from tests.derive.functions import differences

BASES = pytest.mark.parametrize("base", [torch.autograd.Function, Function], ids=["torch", "ours"])


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def scale_of(base):
    """x times a factor; the backward is wrong, so that it shows when it is used."""

    class Scale(base):
        """x times a factor."""

        @staticmethod
        def forward(ctx, x, factor):
            wave = x.sin()
            ctx.save_for_backward(wave)
            ctx.factor = factor
            return wave * factor

        @staticmethod
        def backward(ctx, cotangent):
            return 100 * cotangent, None

    return Scale


def with_setup_of(base):
    class Scale(base):
        """x times a factor."""

        @staticmethod
        def forward(x, factor):
            return x.sin() * factor

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.factor = inputs[1]

        @staticmethod
        def backward(ctx, cotangent):
            return 100 * cotangent, None

    return Scale


def test_callable_is_its_own_program():
    assert plain_program(torch.sin) is torch.sin


@BASES
@pytest.mark.parametrize("make", [scale_of, with_setup_of], ids=["one method", "setup_context"])
def test_gradient_is_that_of_the_forward(base, make):
    program, x = plain_program(make(base)), normal(3)
    out = program(x, 2.0)

    assert differences(out, x.sin() * 2, tolerance=0) == []
    assert differences(torch.autograd.grad(out.sum(), x), [2 * x.cos()]) == []


@BASES
def test_program_has_the_face_of_the_function(base):
    program = plain_program(scale_of(base))

    assert (program.__name__, program.__doc__) == ("Scale", "x times a factor.")


@BASES
@pytest.mark.parametrize("make", [scale_of, with_setup_of], ids=["one method", "setup_context"])
def test_capture_of_program_and_of_function_differ(base, make):
    cls, x = make(base), normal(3)
    inlined, plain = capture(cls.apply, (x, 2.0)), capture(plain_program(cls), (x, 2.0))
    ops = [
        {node.target for node in each.joint.graph.nodes if node.op == "call_function"}
        for each in (inlined, plain)
    ]

    assert torch.ops.aten.cos.default not in ops[0]
    assert torch.ops.aten.cos.default in ops[1]


@BASES
def test_program_of_a_function_can_be_derived(base):
    cls, x = scale_of(base), normal(3)
    D = derive_function(plain_program(cls), x, 2.0)

    assert differences(torch.autograd.grad(D.apply(x, 2.0).sum(), x), [2 * x.cos()]) == []
    assert D.__name__ == "Scale"


@BASES
def test_forward_may_ask_which_gradients_are_needed(base):
    class Asking(base):
        @staticmethod
        def forward(ctx, x, factor, weight):
            Asking.seen = tuple(ctx.needs_input_grad)
            return x * factor * weight

    plain_program(Asking)(normal(2), 3.0, torch.ones(2))

    assert Asking.seen == (True, False, False)


@BASES
def test_forward_may_use_every_method_of_context(base):
    class Busy(base):
        @staticmethod
        def forward(ctx, x):
            y, index = x.clone(), torch.arange(3)
            ctx.save_for_backward(x, y)
            ctx.save_for_forward(x)
            ctx.mark_non_differentiable(index)
            ctx.set_materialize_grads(False)
            ctx.note = "kept"
            return y * 2, index

    x = normal(3)
    out, index = plain_program(Busy)(x)

    assert differences(torch.autograd.grad(out.sum(), x), [torch.full_like(x, 2)]) == []
    assert index.tolist() == [0, 1, 2]


@BASES
def test_function_inside_keeps_its_backward(base):
    inner = scale_of(base)

    class Outer(base):
        @staticmethod
        def forward(ctx, x):
            return inner.apply(x, 1.0) + x

    x = normal(3)
    out = plain_program(Outer)(x)

    assert differences(torch.autograd.grad(out.sum(), x), [torch.full_like(x, 101)]) == []


def test_program_of_a_derived_function_is_its_own():
    def program(x):
        return x.sin()

    assert plain_program(derive_function(program, normal(3))) is program
