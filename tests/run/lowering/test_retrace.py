"""A graph for the layouts of one row: no symbols left, the same results."""

import torch

from pullback.capture.joint import capture
from pullback.derive.recipe import parts_of
from pullback.graph.parts import calls
from pullback.run.lowering.retrace import retrace


def forward_of(program, *examples):
    captured = capture(program, examples)
    return parts_of(captured, "everything").forward


def retraced(program, *examples, like=None, decompositions=None, **options):
    graph = forward_of(program, *examples)
    row = [each.detach() for each in like or examples]
    return retrace(graph, row, decompositions or {}, **options)


def flattened(x):
    return x.reshape(x.shape[0] * x.shape[1]) * x.shape[0]


def test_sizes_become_numbers_of_the_row():
    x, other = torch.randn(3, 4), torch.randn(5, 6)
    module = retraced(flattened, x, like=[other]).module

    assert not any("sym_size" in str(node.target) for node in calls(module.graph))
    assert torch.equal(module(other)[0], flattened(other))


def test_free_sizes_serve_other_sizes():
    x, other = torch.randn(3, 4), torch.randn(5, 6)
    found = retraced(flattened, x, free_sizes=True)

    assert torch.equal(found.module(other)[0], flattened(other))
    assert found.stage.meets(found.stage.conditions(found.arguments), [other])


def test_strides_are_those_of_the_row():
    x = torch.randn(4, 3).t()
    found = retraced(torch.sin, torch.randn(3, 4), like=[x])

    assert found.arguments[0].stride() == (1, 3)
    assert found.module.graph.output_node().args[0][0].meta["val"].stride() == (1, 3)


def test_ops_are_taken_apart():
    table = {torch.ops.aten.silu.default: lambda x: x * x.sigmoid()}
    module = retraced(torch.nn.functional.silu, torch.randn(3), decompositions=table).module

    names = [str(node.target) for node in calls(module.graph)]

    assert names == ["aten.sigmoid.default", "aten.mul.Tensor"]


def test_changes_in_place_are_gone():
    def filled(x):
        buffer = torch.empty_like(x)
        buffer.copy_(x)
        return buffer.mul_(2)

    table = {torch.ops.aten.neg.default: filled}
    module = retraced(torch.neg, torch.randn(3), decompositions=table).module
    x = torch.tensor([1.0, 2.0, 3.0])

    assert not any(node.target._schema.is_mutable for node in calls(module.graph))
    assert torch.equal(module(x)[0], torch.tensor([2.0, 4.0, 6.0]))


def test_autocast_around_changes_nothing():
    x, w = torch.randn(2, 3), torch.randn(3, 2)
    graph = forward_of(torch.mm, x, w)
    with torch.autocast("cpu", torch.bfloat16):
        module = retrace(graph, [x, w], {}).module

    assert module(x, w)[0].dtype is torch.float32
    assert [str(node.target) for node in calls(module.graph)] == ["aten.mm.default"]


def test_placeholder_without_use_stays():
    captured = capture(torch.mul, [torch.randn(3, requires_grad=True), torch.randn(3)])
    backward = parts_of(captured, "everything").backward
    row = [torch.randn(3) for node in backward.nodes if node.op == "placeholder"]
    module = retrace(backward, [*row], {}).module

    assert len(module.graph.find_nodes(op="placeholder")) == len(row)
