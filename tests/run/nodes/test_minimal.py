"""Minimal graphs: each value that is made comes out once, and the rest is known without running."""

import torch
from torch import fx

from pullback.run.nodes.minimal import minimal
from pullback.run.nodes.node import ValueSource


def returning(pick):
    """A graph that returns what `pick` takes of `a`, `b`, their sum and their product."""
    graph = fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    total = graph.call_function(torch.add, (a, b))
    product = graph.call_function(torch.mul, (a, b))
    graph.output(tuple(pick(a, b, total, product)))
    return graph


def run(one, *row):
    made = fx.GraphModule(torch.nn.Module(), one.graph)
    return one.whole(lambda row: made(*row))(list(row))


def test_inputs_do_not_go_through():
    one = minimal(returning(lambda a, b, s, p: (s, a, b)))

    assert len(one.made) == 1
    assert one.sources == (ValueSource(False, 0), ValueSource(True, 0), ValueSource(True, 1))


def test_value_that_is_returned_twice_is_made_once():
    one = minimal(returning(lambda a, b, s, p: (s, p, s)))

    assert len(one.made) == 2
    assert one.sources == (ValueSource(False, 0), ValueSource(False, 1), ValueSource(False, 0))


def test_what_nobody_asks_for_is_not_computed():
    one = minimal(returning(lambda a, b, s, p: (s, p)), 1)

    assert [n.target for n in one.graph.nodes if n.op == "call_function"] == [torch.add]


def test_whole_gives_every_value_again():
    x, y = torch.tensor([2.0]), torch.tensor([3.0])
    one = minimal(returning(lambda a, b, s, p: (a, s, None, s, 4)))
    got = run(one, x, y)

    assert got == [x, torch.tensor([5.0]), None, torch.tensor([5.0]), 4]
    assert got[0] is x


def test_graph_that_makes_nothing_runs_nothing():
    one = minimal(returning(lambda a, b, s, p: (b, None)))

    assert len(one.made) == 0
    assert one.whole(lambda row: 1 / 0)([1, 2]) == [2, None]
