"""How large the values of a graph are for one row of arguments, and how long the sums in it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback.capture.fake import size_with
from pullback.graph.values import tensor_of


def elements_in(graph: fx.Graph, row: Sequence[Any]) -> dict[fx.Node, int]:
    """How many elements each value has, where the arguments are those of `row`; numbers have one.

    The last arguments may be missing, where sizes follow from the others.
    """
    sizes = dict(_sizes(graph, row))
    return {node: _elements(node, sizes) for node in graph.nodes}


def longest_sum(elements: Mapping[fx.Node, int]) -> int:
    """How many numbers the longest sum adds up."""
    made = (node for node in elements if tensor_of(node) is not None)
    return max((_terms(node, elements) for node in made), default=1)


def _terms(node: fx.Node, elements: Mapping[fx.Node, int]) -> int:
    """The elements that go into one of a result; for a product of matrices, the inner size."""
    made = max(1, elements[node])
    into = [elements[one] for one in node.all_input_nodes]
    if len(into) < 2:
        return max([1, *into]) // made or 1
    return max(1, math.isqrt(into[0] * into[1] // made))


def _elements(node: fx.Node, sizes: dict[Any, int]) -> int:
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return 1
    return math.prod([size_with(size, sizes) for size in value.shape])


def _sizes(graph: fx.Graph, row: Sequence[Any]) -> Iterator[tuple[Any, int]]:
    """The numbers that the symbols of the graph stand for in this row."""
    for node, given in zip(graph.find_nodes(op="placeholder"), row, strict=False):
        symbols = getattr(node.meta.get("val"), "shape", (node.meta.get("val"),))
        numbers = getattr(given, "shape", (given,))
        for symbol, number in zip(symbols, numbers, strict=True):
            if isinstance(symbol, torch.SymInt):
                yield symbol.node.expr, int(number)
