"""Patterns match nodes as the formulas they are written like."""

import pytest
import torch

from pullback.graph.patterns import also_shared, any_number, call, tensors
from tests.graph.graphs import graph_of

aten = torch.ops.aten
a, b = tensors("a b")
c = any_number("c")
X, Y = torch.randn(2, 3, 4)


def found(pattern, fn, *inputs):
    """How the wildcards of a pattern are bound in the last call of a graph."""
    graph = graph_of(fn, *(inputs or (X, Y)))
    bound = next(iter(pattern.matches_root(graph.output_node().args[0][0], {})), None)
    if bound is None:
        return None
    return {name: getattr(arg, "name", arg) for name, arg in bound.items()}


MATCHES = {
    "negative product": (-a * b, lambda x, y: -x * y, {"a": "x_1", "b": "y_1"}),
    "other order": (-a * b, lambda x, y: y * -x, {"a": "x_1", "b": "y_1"}),
    "difference": (a - b, lambda x, y: y - x, {"a": "y_1", "b": "x_1"}),
    "number": (a / c, lambda x, y: x / 3 + 0 * y if False else x / 3, {"a": "x_1", "c": 3}),
    "literal": (a * 2, lambda x, y: x * 2.0, {"a": "x_1"}),
    "same twice": (a + a, lambda x, y: x + x, {"a": "x_1"}),
    "power": (a**c, lambda x, y: x**3, {"a": "x_1", "c": 3}),
    "call": (call(aten.exp.default, -a), lambda x, y: (-x).exp(), {"a": "x_1"}),
}
MISMATCHES = {
    "other op": (-a * b, lambda x, y: x * y),
    "other order": (a - -b, lambda x, y: -y - x),
    "other literal": (a * 2, lambda x, y: x * 3),
    "tensor for number": (a / c, lambda x, y: x / y),
    "not the same": (a + a, lambda x, y: x + y),
    "keywords": (a + b, lambda x, y: torch.add(x, y, alpha=2)),
    "boolean": (a * 1, lambda x, y: x * True),
}


@pytest.mark.parametrize("name", MATCHES)
def test_pattern_matches_its_formula(name):
    pattern, fn, bound = MATCHES[name]

    assert found(pattern, fn) == bound


@pytest.mark.parametrize("name", MISMATCHES)
def test_pattern_does_not_match_another(name):
    pattern, fn = MISMATCHES[name]

    assert found(pattern, fn) is None


def used_twice(x, y):
    n = -x
    return n * y, n


def test_inner_node_has_one_user():
    assert found(-a * b, used_twice) is None


def test_shared_node_may_have_others():
    assert found(also_shared(-a) * b, used_twice) == {"a": "x_1", "b": "y_1"}


def test_symbolic_size_is_a_number():
    graph = graph_of(lambda x: x / x.shape[0], X, symbolic=True)
    node = graph.output_node().args[0][0]

    (bound,) = (a / c).matches_root(node, {})

    assert bound["c"].target == aten.sym_size.int
