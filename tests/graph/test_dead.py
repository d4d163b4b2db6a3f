"""Dead code is dropped; random numbers are drawn as before."""

import torch

from pullback.graph.dead import drop_dead
from pullback.graph.parts import JointGraph
from tests.graph.graphs import formulas, graph_of, joint_of, printed


def wasteful(x, y):
    x.exp() + 1
    return x * 2


def test_unused_nodes_are_dropped():
    graph = graph_of(wasteful, *torch.randn(2, 3))
    text = printed(graph)

    after = drop_dead(graph)

    assert [node.name for node in after.nodes] == ["x_1", "y_1", "mul", "output"]
    assert printed(graph) == text


def test_used_nodes_are_left_alone():
    graph = graph_of(lambda x: (x.exp() + 1) * 2, torch.randn(3))

    assert formulas(drop_dead(graph)) == formulas(graph)


def test_unused_draw_of_numbers_stays():
    graph = graph_of(lambda x: (torch.rand_like(x).exp(), x * 2)[1], torch.randn(3))

    names = [node.name for node in drop_dead(graph).nodes if node.op == "call_function"]

    assert names == ["rand_like", "mul"]


def test_joint_graph_stays_one():
    joint = joint_of(wasteful, *torch.randn(2, 3))

    after = drop_dead(joint)

    assert isinstance(after, JointGraph)
    assert (after.input_count, after.output_count) == (2, 1)
    assert len(after.graph.nodes) < len(joint.graph.nodes)
