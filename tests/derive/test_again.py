"""A printed Function that saved intermediates is right when it is differentiated again."""

import pytest
import torch

from pullback.derive.again import again_of
from pullback.derive.backward import derive_function
from pullback.derive.source import function_source, readable_parts
from pullback.judge.comparison import Comparison
from pullback.judge.tensor_specs import tensor_specs_of


def chain(x, y):
    """Saves values between its inputs and its output."""
    inner = torch.exp(x) * y
    return torch.tanh(inner) * inner


def dropped(x):
    return torch.dropout(x, 0.5, True) * x


def loaded(program, *examples, save="everything"):
    captured = derive_function(program, *examples, save=save)._pb_derived.general.captured
    source = function_source(
        Comparison(captured, program, tensor_specs_of(examples)), save, "Printed", program
    )
    text = "\n".join(["import torch", *source.constants, *source.lines])
    space = {}
    exec(text, space)
    return space["Printed"], text


@pytest.fixture
def inputs():
    x = torch.linspace(-1, 1, 5, dtype=torch.float64, requires_grad=True)
    return x, (x.detach() + 2).requires_grad_()


def test_second_derivative_is_right(inputs):
    printed, text = loaded(chain, *inputs)

    assert "if torch.is_grad_enabled():" in text
    assert torch.autograd.gradcheck(printed.apply, inputs)
    assert torch.autograd.gradgradcheck(printed.apply, inputs)


def test_missing_inputs_are_saved_besides(inputs):
    captured = derive_function(chain, *inputs, save="everything")._pb_derived.general.captured
    parts = readable_parts(captured, "everything")
    saved = {parts.names[node] for node in parts.cut.saved}

    assert parts.between
    assert not saved & set(again_of(parts, "Printed", {}).extra)
    assert {"x", "y"} <= saved | set(again_of(parts, "Printed", {}).extra)


def test_nothing_between_needs_nothing(inputs):
    x, _ = inputs
    captured = derive_function(torch.sin, x)._pb_derived.general.captured
    more = again_of(readable_parts(captured, "auto"), "Printed", {})

    assert (more.extra, more.lines) == ((), ())


def test_what_was_drawn_is_refused_again(inputs):
    x, _ = inputs
    printed, _ = loaded(dropped, x)
    printed.apply(x).sum().backward()

    with pytest.raises(RuntimeError, match="`Printed` is differentiable once"):
        torch.autograd.grad(printed.apply(x).sum(), x, create_graph=True)


def detached(x, y):
    return (x * x).detach() * y + x.sin()


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


def quantized(x, y):
    return Rounded.apply(x) ** 2 * y


@pytest.mark.parametrize("program", [detached, quantized])
def test_ops_that_do_not_tell_are_refused(program, inputs):
    """Differentiating the ops again would not be what the program does."""
    printed, _ = loaded(program, *inputs)
    found = torch.autograd.grad(printed.apply(*inputs).sum(), inputs)
    expected = torch.autograd.grad(program(*inputs).sum(), inputs)

    assert all(map(torch.allclose, found, expected))
    with pytest.raises(RuntimeError, match="its ops do not tell its second derivative"):
        torch.autograd.grad(printed.apply(*inputs).sum(), inputs, create_graph=True)


def test_cotangent_without_history_loses_nothing(inputs):
    """`once_differentiable` gives gradients without history there, and says nothing."""
    x, y = inputs
    source = derive_function(chain, x, y, save="everything").source()
    space = {}
    exec(source, space)
    (first,) = torch.autograd.grad(space["Chain"].apply(x, y).sum(), x, create_graph=True)
    (expected,) = torch.autograd.grad(chain(x, y).sum(), x, create_graph=True)

    assert "once_differentiable" not in source
    assert torch.allclose(*(torch.autograd.grad(g.sum(), x)[0] for g in (first, expected)))
