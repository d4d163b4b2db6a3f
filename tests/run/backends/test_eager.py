"""The eager backend: a graph as Python."""

import torch
from torch import fx

from pullback.run.backends import eager


def sine(*extra):
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(2)
    y = graph.call_function(torch.ops.aten.sin.default, (x,))
    y.meta["val"] = torch.ones(2)
    graph.output((y, *(extra and (x,))))
    return graph


def test_graph_becomes_a_function_of_a_row():
    run = eager.BACKEND.specialise(sine(), (), name="forward")

    assert [y.tolist() for y in run([torch.ones(2)])] == [torch.ones(2).sin().tolist()]


def test_several_results_come_in_order():
    x = torch.ones(2)
    y, same = eager.BACKEND.specialise(sine(True), (), name="forward")([x])

    assert same is x
    assert torch.equal(y, x.sin())


def test_eager_is_never_absent():
    assert eager.BACKEND.absence() is None
