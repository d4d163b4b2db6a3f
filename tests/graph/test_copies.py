"""Copies of graphs are equal and independent."""

import torch

from pullback.graph.copies import (
    copied_graph,
    graph_of,
    graph_returning,
    output_count_of,
    with_graph,
)
from pullback.graph.parts import JointGraph
from tests.graph.graphs import assert_same_bits, printed, row_of, run, traced


def test_copy_prints_and_runs_alike():
    graph = traced("layer_norm").joint.graph
    row = row_of("layer_norm")

    copy, _ = copied_graph(graph)

    assert printed(copy) == printed(graph)
    assert_same_bits(run(copy, *row), run(graph, *row))


def test_changing_a_copy_changes_nothing_else():
    graph = traced("layer_norm").joint.graph
    text = printed(graph)

    copy, copies = copied_graph(graph)
    for node in graph.nodes:
        copies[node].meta["mark"] = 1
    copy.output_node().args = ((),)

    assert printed(graph) == text


def test_copy_renames_some_nodes():
    graph = traced("softmax").joint.graph
    node = next(iter(graph.find_nodes(op="call_function", target=torch.ops.aten._softmax.default)))

    copy, copies = copied_graph(graph, {node: "probs"})

    assert copies[node].name == "probs"
    assert len(copy.nodes) == len(graph.nodes)


def test_joint_graph_keeps_its_numbers():
    joint = traced("layer_norm").joint
    copy, _ = copied_graph(joint.graph)

    changed = with_graph(joint, copy)

    assert changed == JointGraph(copy, 3, 1)
    assert graph_of(changed) is copy
    assert (output_count_of(changed), output_count_of(copy)) == (1, None)


def test_part_of_what_a_graph_returns_is_returned():
    graph = traced("layer_norm").joint.graph
    text = printed(graph)

    first = graph_returning(graph, lambda row: row[:1])

    assert len(first.output_node().args[0]) == 1
    assert first.output_node().args[0][0].name == graph.output_node().args[0][0].name
    assert printed(graph) == text
