"""Common subexpressions: merged where that changes nothing, and only there."""

import pytest
import torch
import torch.nn.functional as F

from pullback.graph.cse import cse
from pullback.graph.parts import BACKWARD, FORWARD
from tests.graph.graphs import assert_legal, assert_same_bits, graph_of, joint_of, printed, run

X = torch.randn(3, 4)


def targets(graph):
    return [str(n.target).split(".")[1] for n in graph.nodes if n.op == "call_function"]


def test_equal_computations_are_merged():
    graph = graph_of(lambda x: x.exp() * x.exp() + x.exp(), X)
    text = printed(graph)

    after = cse(graph)

    assert targets(after) == ["exp", "mul", "add"]
    assert_same_bits(run(after, X), run(graph, X))
    assert_legal(after)
    assert printed(graph) == text


def test_merging_goes_on_with_users():
    graph = graph_of(lambda x: x.exp().sin() + x.exp().sin(), X)

    assert targets(cse(graph)) == ["exp", "sin", "add"]


def test_merged_node_remembers_the_other():
    graph = graph_of(lambda x: x.exp() * x.exp(), X)

    exp = next(node for node in cse(graph).nodes if node.name == "exp")

    assert exp.meta["stands_for"] == ("exp_1",)


DIFFERENT = {
    "arguments": lambda x: x.sum(0) + x.sum(1).sum(0),
    "number types": lambda x: x.float() * 2 - (x + 2.0) + (x + 2),
    "signs of zero": lambda x: (x + 0.0) * (x + -0.0),
    "random numbers": lambda x: torch.rand_like(x) + torch.rand_like(x),
    "dropout": lambda x: F.dropout(x) + F.dropout(x),
    "undefined memory": lambda x: torch.empty_like(x) * torch.empty_like(x),
    "outputs": lambda x: (x.exp(), x.exp()),
    "views of outputs": lambda x: (x.exp(), x.exp().view(12)),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_is_left_alone(name):
    graph = graph_of(DIFFERENT[name], X)

    assert targets(cse(graph)) == targets(graph)


def test_opaque_ops_are_left_alone():
    with torch.library._scoped_library("cse_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        op = torch.ops.cse_test.twice
        graph = graph_of(lambda x: op(x) + op(x), X)

        assert targets(cse(graph)) == ["twice", "twice", "add"]


# ---- phases ----


def test_phases_are_kept_apart():
    joint = phased()

    assert [phase for phase, _ in sines(cse(joint))] == [FORWARD, BACKWARD]


def test_phases_are_merged_on_demand():
    joint = phased()

    assert [phase for phase, _ in sines(cse(joint, across_phases=True))] == [FORWARD]


def phased():
    """A joint graph in which forward and backward compute the same sine."""
    joint = joint_of(lambda x: x.sin(), X)
    for node in joint.graph.nodes:
        if node.target == torch.ops.aten.cos.default:
            node.target = torch.ops.aten.sin.default
    return joint


def sines(joint):
    nodes = [n for n in joint.graph.nodes if n.target == torch.ops.aten.sin.default]
    return [(node.meta["phase"], node.name) for node in nodes]
