"""Outputs that nobody used: what leads to them is not computed, and infinite slopes do no harm."""

import pytest
import torch

import pullback as pb
from pullback.derive import recipe
from pullback.errors import DifferingTextError, UncompiledWarning
from pullback.graph.absent import without_absent

X = [0.0, 1.0, 4.0]


def root_and_double(x):
    return x.sqrt(), 2 * x


def norm_and_parts(x):
    rows = torch.stack([x, x.sqrt()])
    return rows.norm(dim=0), rows[0] * 3, torch.cat([x.log(), x])


def shared(x):
    y = x * x
    return y.sqrt(), y.sum(), y.exp()


def gradients(call, some):
    """The gradient of `x` by some of the outputs, of which the others are never used."""
    x = torch.tensor(X, dtype=torch.float64, requires_grad=True)
    outputs = call(x)
    total = sum((outputs[i] * (i + 1)).sum() for i in some)
    return torch.autograd.grad(total, x)[0]


@pytest.mark.parametrize("program", [root_and_double, norm_and_parts, shared])
@pytest.mark.parametrize("make", [pb.derive, pb.combine])
@pytest.mark.parametrize("some", [(0,), (1,), (0, 1)], ids=str)
def test_gradient_of_some_outputs_is_that_of_the_program(program, make, some):
    x = torch.tensor(X, dtype=torch.float64, requires_grad=True)
    made = make(program, x)

    expected = gradients(program, some)

    torch.testing.assert_close(gradients(made.apply, some), expected, equal_nan=True)


def test_finite_gradient_beside_an_infinite_slope_stays_so():
    made = pb.derive(root_and_double, torch.tensor(X, dtype=torch.float64, requires_grad=True))

    assert gradients(made.apply, (1,)).tolist() == [4.0, 4.0, 4.0]


@pytest.mark.needs_compiler
@pytest.mark.parametrize("backend", ["inductor", "native"])
def test_compiled_gradient_beside_an_infinite_slope_is_finite_and_told(backend):
    example = torch.tensor(X, dtype=torch.float64, requires_grad=True)
    made = pb.combine(root_and_double, example, backend=backend)

    with pytest.warns(UncompiledWarning, match="infinite slope"):
        found = gradients(made.apply, (1,))

    assert found.tolist() == [4.0, 4.0, 4.0]
    assert "infinite slope" in made.explain()


def test_text_that_would_give_nan_is_refused():
    made = pb.derive(root_and_double, torch.tensor(X, dtype=torch.float64, requires_grad=True))

    with pytest.raises(DifferingTextError, match="output 1 alone"):
        made.source()


@pytest.mark.parametrize("some", [(0,), (1,)], ids=str)
def test_backward_that_leaves_out_too_much_is_not_used(some, monkeypatch):
    """A pass that also drops what was asked for: seen at the first call, and zeros do instead."""

    def spoiled(backward, count, absent):
        graph = without_absent(backward, count, absent)
        (end,) = graph.find_nodes(op="output")
        (gradient,) = end.args[0]
        with graph.inserting_before(end):
            half = graph.call_function(torch.ops.aten.mul.Tensor, (gradient, 0.5))
        half.meta = dict(gradient.meta)
        end.args = ((half,),)
        return graph

    monkeypatch.setattr(recipe, "without_absent", spoiled)
    x = torch.tensor([1.0, 4.0], dtype=torch.float64, requires_grad=True)
    made = pb.derive(root_and_double, x)

    outputs, expected = made(x), root_and_double(x)

    got = torch.autograd.grad(outputs[some[0]].sum(), x)
    torch.testing.assert_close(got, torch.autograd.grad(expected[some[0]].sum(), x))


@pytest.mark.slow
@pytest.mark.needs_compiler
def test_unused_output_at_a_size_that_shares_code_is_told_as_such():
    def program(x):
        return x.sin(), x.cos().cumsum(0)

    combined = pb.combine(program, torch.randn(5, 5, requires_grad=True), backend="inductor")
    for size in (5, 7):
        x = torch.randn(size, size, requires_grad=True)
        sum(y.sum() for y in combined(x)).backward()
    outputs, expected = combined(x), program(x)
    with pytest.warns(UncompiledWarning, match="an output has no gradient, at a size that shares"):
        got = torch.autograd.grad(outputs[1].sum(), x)

    torch.testing.assert_close(got, torch.autograd.grad(expected[1].sum(), x))
    assert "hooks" not in combined.explain()
