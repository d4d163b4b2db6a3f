"""What is drawn is what was captured: ops, what is kept and why, what is computed again, costs."""

import pytest
import torch
from torch import nn

import pullback as pb
from pullback.report.graphs.drawn import drawn_graph
from pullback.report.graphs.picture import DrawnGraph, DrawnNode
from pullback.report.graphs.text import graph_table

X = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
W = torch.linspace(0, 1, 16).reshape(4, 4).requires_grad_()


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        s = torch.sigmoid(x)
        ctx.save_for_backward(x, s)
        return x * s

    @staticmethod
    def backward(ctx, g):
        x, s = ctx.saved_tensors
        return g * (s + x * s * (1 - s))


def program(x, w):
    return Swish.apply(x @ w).sum()


def named(graph):
    return {node.name: node for node in graph.nodes}


def test_program_is_drawn_with_its_calls_and_results():
    graph = drawn_graph(program, X, W)
    nodes = named(graph)

    assert graph.units == ("matmul", "Swish", "sum")
    assert nodes["x"].kind == "input"
    assert [n.op for n in graph.nodes if n.kind == "forward"][:2] == ["mm", "sigmoid"]
    results = {word for node in graph.nodes for word in node.returns}
    assert results == {"output", "gradient of x", "gradient of w"}
    assert nodes["grad_x"].op == "mm"
    assert nodes["grad_x"].place.startswith("test_drawn.py:")


def test_edges_lead_from_what_is_read_and_run_in_order():
    graph = drawn_graph(program, X, W)

    assert graph.edges
    assert all(start < end for start, end in graph.edges)


def test_what_is_kept_says_why():
    nodes = named(drawn_graph(program, X, W))

    assert nodes["x"].saved == (
        "backward reads it for transposed (t); it is an input, which is there anyway"
    )
    kept = [n for n in nodes.values() if n.saved and n.kind != "input"]
    assert kept
    assert all("takes 48 B" in n.saved for n in kept)


def test_policy_decides_what_is_kept_and_computed_again():
    everything = drawn_graph(program, X, W, save="everything")
    inputs = drawn_graph(program, X, W, save="inputs")

    assert not any(node.again for node in everything.nodes)
    assert any(node.again for node in inputs.nodes)
    assert [n.name for n in inputs.nodes if n.saved] == ["x", "w"]


def test_times_and_bytes_are_those_of_each_op():
    graph = drawn_graph(program, X, W)

    assert all(node.seconds and node.seconds > 0 for node in graph.nodes if node.op)
    assert named(graph)["x"].bytes == X.nbytes
    plain = drawn_graph(program, X, W, is_timed=False)
    assert all(node.seconds is None for node in plain.nodes)


def test_function_is_drawn_with_its_own_backward():
    class Odd(Swish):
        @staticmethod
        def backward(ctx, g):
            return g.sinh()

    graph = drawn_graph(Odd, X)

    assert [node.op for node in graph.nodes if node.kind == "backward"] == ["sinh"]
    assert graph.nodes[0].name == "x"
    assert "gradient of x" in [word for node in graph.nodes for word in node.returns]


def test_what_was_made_needs_no_examples():
    made = pb.derive(lambda x: x.sin() ** 2, X, name="wave")

    graph = drawn_graph(made)

    assert graph.name == "Wave"
    assert [node.op for node in graph.nodes if node.kind == "forward"] == ["sin", "pow"]


def test_module_is_drawn_with_its_parameters():
    graph = drawn_graph(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), X)
    results = {word for node in graph.nodes for word in node.returns}

    assert {"gradient of 0.weight", "gradient of 0.bias"} <= results


def test_groups_of_a_hybrid_are_drawn():
    made = pb.hybrid(lambda x: x.sin().exp() * 2, X, groups=[(0, 1)], backend="eager")

    assert drawn_graph(made, X).groups == ((0, 1), (2,))


def test_target_without_examples_is_an_error():
    with pytest.raises(pb.PullbackError, match="must come with examples"):
        drawn_graph(program)


def test_table_has_a_row_for_each_node():
    table = graph_table(drawn_graph(program, X, W))

    assert "gradient of w" in table
    assert "sigmoid" in table
    assert "values kept: " in table
    many = DrawnGraph("many", tuple(DrawnNode(f"v{i}", "input") for i in range(250)), ())
    assert "and 50 more: --html shows them" in graph_table(many)
