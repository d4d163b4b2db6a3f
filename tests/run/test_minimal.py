"""Minimal graphs: each value that is made comes out once, and the rest is known without running."""

import torch
from torch import fx

from pullback.run.minimal import minimal, whole
from pullback.run.node import Source


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
    return whole(one, lambda row: made(*row))(list(row))


def test_inputs_do_not_go_through():
    one = minimal(returning(lambda a, b, s, p: (s, a, b)))

    assert one.made_count == 1
    assert one.sources == (Source(False, 0), Source(True, 0), Source(True, 1))


def test_value_that_is_returned_twice_is_made_once():
    one = minimal(returning(lambda a, b, s, p: (s, p, s)))

    assert one.made_count == 2
    assert one.sources == (Source(False, 0), Source(False, 1), Source(False, 0))


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

    assert one.made_count == 0
    assert whole(one, lambda row: 1 / 0)([1, 2]) == [2, None]
