"""Values: formulas on nodes make the graph that the same formulas on tensors would."""

import pytest
import torch

from pullback.graph.values import (
    Maker,
    Value,
    is_smooth,
    named_value,
    outcome_of,
    same,
    same_sizes,
)
from tests.graph.graphs import assert_same_bits, graph_of, randn, run

X, Y = randn(3, 4), randn(3, 4, seed=1)
INDEX = torch.tensor([[0, 2, 1, 1]])

FORMULAS = {
    "operators": lambda x, y: (-x + y * 2 - 1) / (1 - y) ** 2,
    "reversed": lambda x, y: 2 * x + (3 + y) - (1 - x),
    "product": lambda x, y: x @ y.t(),
    "comparisons": lambda x, y: (x > 0) | (x < -1) | (y >= 1) | (y <= -1),
    "equality": lambda x, y: x.eq(0) | y.ne(0),
    "pointwise": lambda x, y: x.exp() + x.erf() + x.tanh() + x.sigmoid(),
    "more pointwise": lambda x, y: x.exp().rsqrt() + x.clamp(-1, 1),
    "masks": lambda x, y: x.masked_fill(y > 0, 0).where(x > 0, y),
    "sums": lambda x, y: x.sum() + x.sum(0) + y.sum([1], keepdim=True) + x.mean() + y.mean(1, True),
    "variance": lambda x, y: x.var([0], correction=0, keepdim=True) + y,
    "shapes": lambda x, y: x.unsqueeze(1).squeeze(1).reshape([2, 6]).transpose(0, 1),
    "expansion": lambda x, y: x.sum(0).expand([3, 4]) * y,
    "dtypes": lambda x, y: x.to(torch.float64) + y.to(torch.float32),
    "new": lambda x, y: x.new_zeros([3, 4]) + y * x.numel(),
}


def graph_for(formula):
    """The graph that a formula makes when it is given values."""
    graph = graph_of(lambda x, y: x * 1, X, Y)
    x, y = graph.find_nodes(op="placeholder")
    maker = Maker(graph.output_node())
    result = formula(Value(x, maker), Value(y, maker))
    graph.output_node().args = ((result.node,),)
    return graph, result


@pytest.mark.parametrize("name", FORMULAS)
def test_values_compute_like_tensors(name):
    graph, result = graph_for(FORMULAS[name])
    expected = FORMULAS[name](X, Y)

    assert_same_bits(run(graph, X, Y), [expected])
    assert (result.val.shape, result.val.dtype) == (expected.shape, expected.dtype)


def moved(x, index):
    """A formula that puts rows where it picked them."""
    picked = x.gather(0, index)
    placed = x.scatter(0, index, 2.0).scatter(0, index, picked)
    return placed.index_put([index], picked.unsqueeze(2).expand([1, 4, 4]), True)


def test_values_pick_and_put_like_tensors():
    graph = graph_of(lambda x, i: x.gather(0, i), X, INDEX)
    maker = Maker(graph.output_node())

    result = moved(*(Value(node, maker) for node in graph.find_nodes(op="placeholder")))
    graph.output_node().args = ((result.node,),)

    assert_same_bits(run(graph, X, INDEX), [moved(X, INDEX)])


def test_new_node_inherits_phase_and_place():
    graph = graph_of(lambda x: x.exp(), X)
    exp = next(node for node in graph.nodes if node.op == "call_function")
    exp.meta |= {"phase": "backward", "unit": 3, "place": "user.py:7", "stack_trace": "long"}

    made = Value(exp.args[0], Maker(exp)) * 2

    kept = {key: made.node.meta[key] for key in ("phase", "unit", "place")}
    assert kept == {"phase": "backward", "unit": 3, "place": "user.py:7"}
    assert "stack_trace" not in made.node.meta


def test_named_value_carries_a_hint():
    graph = graph_of(lambda x: x.exp(), X)
    value = Value(next(iter(graph.nodes)), Maker(graph.output_node()))

    assert named_value("s", value.exp()).node.meta["hint"] == "s"
    assert named_value("s", X) is X


# ---- symbolic sizes ----


def symbolic_graph():
    graph = graph_of(lambda x, y: (x * y).sum(), X, Y, symbolic=True)
    return graph, [node.meta["val"] for node in graph.find_nodes(op="placeholder")]


def test_symbolic_sizes_become_values():
    graph, _ = symbolic_graph()
    x = Value(next(iter(graph.nodes)), Maker(graph.output_node()))

    rows, columns = x.shape
    count = x.numel()

    assert [size.target for size in (rows, columns, count)] == [
        torch.ops.aten.sym_size.int,
        torch.ops.aten.sym_size.int,
        torch.ops.aten.sym_numel.default,
    ]


def test_comparing_sizes_adds_no_guard():
    _, (x, y) = symbolic_graph()
    guards = len(x.fake_mode.shape_env.guards)

    answers = [same(x.shape[0], 3), same_sizes(x.shape, y.shape), same_sizes(x.shape, [3, 4])]

    assert answers == [False, True, False]
    assert len(x.fake_mode.shape_env.guards) == guards


def test_fake_runs_add_no_guard():
    _, (x, _) = symbolic_graph()
    guards = len(x.fake_mode.shape_env.guards)

    outcome_of(torch.ops.aten.view.default, (x, [12]), {})

    assert len(x.fake_mode.shape_env.guards) == guards


def test_smooth_is_what_can_carry_a_gradient():
    graph = graph_of(lambda x, z, i: (x * 2, z * 2, i * 2), X, torch.complex(X, Y), INDEX)
    floats, complexes, integers = graph.find_nodes(op="placeholder")

    assert is_smooth(floats)
    assert is_smooth(complexes)
    assert not is_smooth(integers)
    assert not is_smooth(2.0)
