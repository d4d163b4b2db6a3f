"""The light node in Python: what its spec says, and what it hands to the general way."""

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from pullback.capture.layouts import Layout
from pullback.run.nodes.node import LayoutDemand, NodeSpec, Pull, ValueSource, make_node

INPUT = [ValueSource(True, 0), ValueSource(True, 1)]


def product(x, y, *, demand=LayoutDemand.LAYOUT, needs=(True, True), log=None):
    """A node for `x * y`, and beside it an output that carries no gradient."""
    log = [] if log is None else log

    def forward(row):
        a, b = row
        row.clear()
        return a * b, (a > b).to(a.dtype)

    def backward(first):
        log.append("compiled")

        def run(row):
            a, b, g = row
            log.append(tuple(t.stride() for t in row))
            return [v for v, need in zip((g * b, g * a), needs, strict=True) if need]

        return Pull(run, (Layout.of(x.detach(), needs=False),))

    def general(saved, numbers, cotangents, wanted):
        log.append("general")
        a, b = saved
        (g,) = cotangents
        g = torch.zeros_like(a) if g is None else g
        pair = (g * b, g * a)
        return tuple(v if need else None for v, need in zip(pair, needs, strict=True))

    spec = NodeSpec(
        name="Product",
        module=__name__,
        demand=demand,
        inputs=tuple(Layout.of(t) for t in (x, y)),
        forward=forward,
        outputs=(ValueSource(False, 0), ValueSource(False, 1)),
        saved=tuple(INPUT),
        read=2,
        numbers=(),
        silent=(1,),
        live=(0,),
        cotangents=(Layout.of(x.detach(), needs=False),),
        backward=backward,
        general=general,
        kept=() if demand is LayoutDemand.NOTHING else tuple(Layout.of(t.detach()) for t in (x, y)),
    )
    return make_node(spec), log


def pair(*shape):
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    return x, torch.randn_like(x).requires_grad_()


def test_node_computes_and_has_its_name():
    x, y = pair(2, 3)
    node, log = product(x, y)
    out, mask = node(x, y)
    gradients = torch.autograd.grad(out, (x, y), torch.ones_like(out))

    assert torch.equal(out, x * y)
    assert out.grad_fn.name() == "ProductBackward"
    assert not mask.requires_grad
    assert torch.equal(gradients[0], y)
    assert torch.equal(gradients[1], x)
    assert log == ["compiled", ((3, 1),) * 3]


def test_backward_is_compiled_once():
    x, y = pair(2, 3)
    node, log = product(x, y)
    for _ in range(3):
        node(x, y)[0].backward(torch.ones(2, 3, dtype=torch.float64))

    assert log.count("compiled") == 1


@pytest.mark.parametrize(
    "cotangent",
    [torch.ones(()).double().expand(2, 3), torch.ones(3, 2).double().t()],
    ids=["expanded", "transposed"],
)
def test_cotangent_is_brought_into_the_layout(cotangent):
    x, y = pair(2, 3)
    node, log = product(x, y)
    out, _ = node(x, y)
    got, _ = torch.autograd.grad(out, (x, y), cotangent)

    assert torch.equal(got, y)
    assert log[-1] == ((3, 1),) * 3


def test_differentiated_backward_goes_the_general_way():
    x, y = pair(2, 3)
    node, log = product(x, y)
    out, _ = node(x, y)
    first, _ = torch.autograd.grad(out.sum(), (x, y), create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), y)

    assert log == ["general"]
    assert torch.equal(second, 2 * y)


def test_saved_tensors_in_another_layout_go_the_general_way():
    x, y = (t.detach().t().requires_grad_() for t in pair(3, 2))
    node, log = product(x, y)
    node(x, y)[0].backward(torch.ones(2, 3, dtype=torch.float64))
    with save_on_cpu():  # gives them back contiguous
        out, _ = node(x, y)
    with saved_tensors_hooks(lambda t: t.contiguous(), lambda t: t):
        other, _ = node(x, y)
    got, _ = torch.autograd.grad(other, (x, y), torch.ones_like(other))
    torch.autograd.grad(out, (x, y), torch.ones_like(out))

    assert torch.equal(got, y)
    assert "general" in log


@pytest.mark.parametrize("change", [torch.Tensor.float, lambda t: torch._neg_view(-t)])
def test_hooks_that_change_a_tensor_first_do_no_harm(change):
    x, y = pair(2, 3)
    node, log = product(x, y)
    with saved_tensors_hooks(lambda t: t, change):
        out, _ = node(x, y)
    changed, _ = torch.autograd.grad(out, (x, y), torch.ones_like(out))
    out, _ = node(x, y)
    got, _ = torch.autograd.grad(out, (x, y), torch.ones_like(out))

    torch.testing.assert_close(changed.double(), y, rtol=1e-6, atol=1e-6)
    assert torch.equal(got, y)
    assert log[0] == "general"


@pytest.mark.parametrize("demand", LayoutDemand)
def test_lazily_negated_cotangent_is_resolved(demand):
    x, y = pair(2, 3)
    node, _ = product(x, y, demand=demand)
    out, _ = node(x, y)
    cotangent = torch._neg_view(torch.ones_like(out))
    got, _ = torch.autograd.grad(out, (x, y), cotangent)

    assert torch.equal(got, -y)


def test_any_layout_is_read_as_it_comes():
    x, y = (t.detach().t().requires_grad_() for t in pair(3, 2))
    node, log = product(x, y, demand=LayoutDemand.NOTHING)
    with saved_tensors_hooks(lambda t: t.contiguous(), lambda t: t):
        out, _ = node(x, y)
    got, _ = torch.autograd.grad(out, (x, y), torch.ones_like(out))

    assert torch.equal(got, y)
    assert "general" not in log


def test_only_needed_gradients_are_returned():
    x, y = pair(2, 3)
    y = y.detach()
    node, _ = product(x, y, needs=(True, False))
    out, _ = node(x, y)
    (got,) = torch.autograd.grad(out.sum(), x)

    assert torch.equal(got, y)


def test_input_changed_before_backward_is_an_error():
    x, y = pair(2, 3)
    node, _ = product(x, y)
    out, _ = node(x, y)
    with torch.no_grad():
        x.add_(1)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_second_backward_without_retaining_is_an_error():
    x, y = pair(2, 3)
    node, _ = product(x, y)
    out, _ = node(x, y)
    out.sum().backward()

    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()
