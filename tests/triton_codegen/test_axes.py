"""Axes: dimensions that line up are one, views split and merge them, other ops are refused."""

import pytest
import torch

from pullback.errors import KernelError
from pullback.triton_codegen.axes import assigned_axes, reduced_dims
from tests.triton_codegen.graphs import draw, parts_of


def axes_and_nodes(program, *given):
    graph = parts_of(program, *given).forward
    return assigned_axes(graph), graph


def test_broadcast_dimensions_are_one_axis():
    axes, graph = axes_and_nodes(lambda x, b: x + b, draw(4, 6), draw(6))
    x, b = graph.find_nodes(op="placeholder")

    assert axes.all_of(x)[1] is axes.all_of(b)[0]
    assert axes.all_of(x)[0] is not axes.all_of(b)[0]


def test_kept_dimensions_of_a_reduction_stay():
    axes, graph = axes_and_nodes(lambda x: x / x.sum(-1, keepdim=True), draw(4, 6))
    (x,) = graph.find_nodes(op="placeholder")
    total = next(n for n in graph.nodes if "sum" in str(n.target))

    assert reduced_dims(total) == [1]
    assert axes.reduced(total) == {axes.all_of(x)[1]}
    assert axes.all_of(total) == axes.all_of(x)[:1]


def test_view_splits_an_axis_everywhere():
    def grouped(x, w):
        return (x.reshape(x.shape[0], 2, -1) * 2).reshape(x.shape) * w

    axes, graph = axes_and_nodes(grouped, draw(4, 6), draw(6))
    x, w = graph.find_nodes(op="placeholder")

    assert len(axes.all_of(x)) == 3
    assert axes.all_of(w) == axes.all_of(x)[1:]


def test_transposed_view_has_the_axes_turned():
    axes, graph = axes_and_nodes(lambda x: x.t() * 2, draw(4, 6))
    (x,) = graph.find_nodes(op="placeholder")
    product = next(n for n in graph.nodes if "mul" in str(n.target))

    assert axes.all_of(product) == axes.all_of(x)[::-1]


@pytest.mark.parametrize("program", [torch.cumsum, torch.logcumsumexp])
def test_scans_are_refused_with_their_name(program):
    with pytest.raises(KernelError, match=program.__name__):
        axes_and_nodes(lambda x: program(x, -1), draw(4, 6))


def test_last_piece_is_no_longer_than_the_first():
    def program(x):
        a, b = x.split(4, -1)
        return a.sum(-1) + b.sum(-1)

    axes, _ = axes_and_nodes(program, draw(5, 6))
    (size,) = {symbol for one in axes.conditions for symbol in one.free_symbols}

    assert [one.subs(size, 8) for one in axes.conditions] == [True, True, True]
    assert [one.subs(size, 9) for one in axes.conditions] == [True, True, False]
    assert [one.subs(size, 4) for one in axes.conditions] == [True, False, True]
