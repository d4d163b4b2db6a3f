"""The graph of autograd, walked from its end: each node once, the end first."""

import torch

from pullback.check.watching import nodes
from pullback.check.watching.nodes import nodes_from


def names(*tensors):
    return [node.name() for node in nodes_from(t.grad_fn for t in tensors)]


def test_each_node_is_given_once():
    x = torch.ones(2, requires_grad=True)
    y = x.exp()

    assert names(y * y) == ["MulBackward0", "ExpBackward0", "torch::autograd::AccumulateGrad"]


def test_tensor_without_a_history_has_no_node():
    assert names(torch.ones(2), torch.ones(2, requires_grad=True)) == []


def test_large_graph_is_left_at_some_node(monkeypatch):
    monkeypatch.setattr(nodes, "NODES", 2)
    x = torch.ones(2, requires_grad=True)

    assert names(x.exp().sin().cos()) == ["CosBackward0", "SinBackward0"]
