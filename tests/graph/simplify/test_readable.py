"""Rules that keep the mathematics but not every bit: before, after, left alone, close numbers."""

import pytest
import torch

from pullback.graph.rewrite import rewrite
from pullback.graph.simplify import READABLE, order, zeros
from pullback.graph.values import Maker, Value
from tests.graph.graphs import FINITE, graph_of
from tests.graph.simplify.rules import (
    Case,
    assert_left_alone,
    assert_rewritten,
    results,
)

aten = torch.ops.aten
RULES = {rule.name: rule for rule in (*zeros.TABLE, *order.TABLE)}
FACTORS = {"a": (5, 4), "b": (5, 3), "d": (4, 3), "c": (4,)}


def padded(x, y):
    """The gradient of a tensor that was cut in two, with a part used twice."""
    left = aten.slice_backward(x, [4, 10], 1, 0, 5, 1)
    right = aten.slice_backward(y, [4, 10], 1, 5, 10, 1)
    again = aten.slice_backward(y, [4, 10], 1, 0, 5, 1)
    return left + right + again


def half_padded(x, y):
    left = aten.slice_backward(x, [4, 11], 1, 0, 5, 1)
    return left + aten.slice_backward(y, [4, 11], 1, 5, 10, 1)


def stacked(x, y):
    return aten.select_backward(x, [4, 2, 5], 1, 0) + aten.select_backward(y, [4, 2, 5], 1, 1)


def half_stacked(x, y):
    return aten.select_backward(x, [4, 3, 5], 1, 0) + aten.select_backward(y, [4, 3, 5], 1, 1)


def kept_negative(x):
    n = -x
    return n.sum(0), n.exp()


CASES = {
    # ---- zeros ----
    "negated-sum": Case(lambda x: (-x).sum(0), "neg(sum.dim_IntList(x, [0]))", kept_negative),
    "opposite-difference": Case(
        lambda x, y: (x - y).exp() * (y - x),
        "mul.Tensor(exp(sub.Tensor(x, y)), neg(sub.Tensor(x, y)))",
        lambda x, y: (x - y).exp() * (x.exp() - y),
    ),
    "negated-product": Case(
        lambda a, d: (-a) @ d, "neg(mm(a, d))", lambda a, d: a @ d.exp(), FACTORS
    ),
    "sum-of-one": Case(
        lambda v, z: z.sum(0) * v,
        "mul.Tensor(squeeze.dims(z, [0]), v)",
        lambda z: z.sum(1),
    ),
    "slices-joined": Case(padded, "cat([add.Tensor(x, y), y], 1)", half_padded),
    "selections-stacked": Case(stacked, "stack([x, y], 1)", half_stacked),
    "plus-zero": Case(lambda x, y: (x + 0.0) * y, "mul.Tensor(x, y)", lambda x: x + 1),
    "negated-difference": Case(lambda x, y: -(x - y), "sub.Tensor(y, x)", lambda x, y: -(x + y)),
    "negated-difference-from-number": Case(
        lambda x: -(1 - x), "sub.Tensor(x, 1)", lambda x: (1 - x).exp()
    ),
    # ---- order ----
    "transposed-product": Case(
        lambda a, b: (a.t() @ b).t(), "mm(t(b), a)", lambda a, d: (a @ d).t(), FACTORS
    ),
    "average": Case(lambda x: x.sum(0) / 4, "mean.dim(x, [0])", lambda x: x.sum(0) / 5),
    "folded-numbers": Case(
        lambda x, y: (x * 0.5 * y) * 3 * (y * 2),
        "mul.Tensor(mul.Tensor(mul.Tensor(x, 3.0), y), y)",
        lambda x, y: 2 * (x + 3) * y,
    ),
    "product-plus": Case(
        lambda a, d, c: torch.addmm(c[:3], a, d),
        "add.Tensor(mm(a, d), slice.Tensor(c, 0, 0, 3))",
        lambda a, d, c: torch.addmm(c[:3], a, d, alpha=2),
        FACTORS,
    ),
    "repeated-summand": Case(
        lambda x, y: x + y + y, "add.Tensor(x, mul.Tensor(y, 2))", lambda x, y: x + y + x.exp()
    ),
    "repeated-subtrahend": Case(
        lambda x, y: x - y - y, "sub.Tensor(x, mul.Tensor(y, 2))", lambda x, y: x - y - x.exp()
    ),
}

every_case = pytest.mark.parametrize("name", CASES)


def test_every_readable_rule_is_tested():
    assert sorted(CASES) == sorted(RULES)


def test_names_of_rules_differ():
    names = [rule.name for rule in READABLE]

    assert len(set(names)) == len(names)


@every_case
def test_rule_makes_the_new_formula(name):
    assert_rewritten(RULES[name], CASES[name])


@every_case
def test_rule_leaves_this_alone(name):
    assert_left_alone(RULES[name], CASES[name])


@every_case
def test_numbers_stay_close(name):
    before, after = results(RULES[name], CASES[name], torch.float64, values=FINITE)

    torch.testing.assert_close(after, before, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("name", [rule.name for rule in zeros.TABLE if "product" not in rule.name])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_zeros_differ_in_sign_only(name, dtype):
    (before,), (after,) = results(RULES[name], CASES[name], dtype)

    torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)


def test_inner_sum_waits_for_the_outer():
    graph = graph_of(padded, *torch.randn(2, 4, 5))

    step = RULES["slices-joined"].formula

    inner = next(node for node in graph.nodes if node.name == "add")
    assert step(Value(inner, Maker(inner))) is None


@pytest.mark.parametrize("numbers", [(1e30, 1e30), (1e-30, 1e-30), (1e-30, 1e30), (2.0, 1e30)])
def test_numbers_that_leave_the_range_are_not_folded(numbers):
    first, second = numbers
    graph = graph_of(lambda x, y: (x * first) * y * second, *torch.randn(2, 3))

    assert rewrite(graph, (RULES["folded-numbers"],)).applied == {}
