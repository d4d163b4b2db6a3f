"""The engine: rules are applied to the end, and graphs stay legal, whatever the rules do."""

import pytest
import torch

from pullback.errors import InternalError
from pullback.graph.patterns import tensors
from pullback.graph.rewrite import SWEEPS, RewriteRule, rewrite, rule
from pullback.graph.values import Maker, Value
from tests.graph.graphs import assert_legal, formulas, graph_of, joint_of, printed, run

aten = torch.ops.aten
a, b = tensors("a b")
X, Y = torch.randn(2, 3, 4)

drop_minus = RewriteRule.of("drop-minus", -a, lambda a: a, why="a test")
swap = RewriteRule.of("swap", a - b, lambda a, b: b - a, why="a test that never ends")


def replacing(target, formula, **options):
    """A rule that replaces each call of `target` by a formula of the node."""
    return rule("test", target, why="a test", **options)(formula)


def test_rules_apply_to_the_end():
    graph = graph_of(lambda x: x.neg().neg().neg() * 2, X)

    step = rewrite(graph, (drop_minus,))

    assert formulas(step.graph) == ["mul.Tensor(x_1, 2)"]
    assert step.applied == {"drop-minus": 3}


def test_callers_graph_stays_as_it_is():
    graph = graph_of(lambda x: -x * 2, X)
    text = printed(graph)

    rewrite(graph, (drop_minus,))

    assert printed(graph) == text


def test_endless_rules_are_named():
    graph = graph_of(lambda x, y: x - y, X, Y)

    with pytest.raises(InternalError) as error:
        rewrite(graph, (swap,))

    assert str(error.value) == (
        "E900 internal: the rules must come to an end\n"
        f"  expected: at most {SWEEPS} sweeps\n"
        f"  got:      swap {SWEEPS} times"
    )


def test_first_rule_of_table_wins():
    to_sin = replacing(aten.exp.default, lambda node: node.args[0].made(aten.sin.default))
    to_cos = replacing(aten.exp.default, lambda node: node.args[0].made(aten.cos.default))
    graph = graph_of(lambda x: x.exp(), X)

    assert formulas(rewrite(graph, (to_sin, to_cos)).graph) == ["sin(x_1)"]


def test_late_rule_waits_for_the_others():
    late = replacing(
        aten.exp.default, lambda node: node.args[0].made(aten.cos.default), is_late=True
    )
    graph = graph_of(lambda x: (-x).exp(), X)

    step = rewrite(graph, (late, drop_minus))

    assert formulas(step.graph) == ["cos(x_1)"]
    assert list(step.applied) == ["drop-minus", "test"]


# ---- what a replacement must be like ----


def turned(node):
    """The argument, laid out by columns."""
    columns = node.args[0].t()
    return columns.made(aten.clone.default, memory_format=torch.contiguous_format).t()


UNFIT = {
    "another dtype": lambda node: node.args[0].to(torch.float64),
    "another shape": lambda node: node.args[0].sum(0),
    "other strides": lambda node: turned(node),
    "a failing op": lambda node: node.args[0].reshape([7]),
    "the node itself": lambda node: node,
    "a user of the node": lambda node: node * 2,
    "a number": lambda node: 3,
    "nothing": lambda node: None,
}


@pytest.mark.parametrize("name", UNFIT)
def test_unfit_replacement_does_not_apply(name):
    graph = graph_of(lambda x: x.exp() * 2, X)

    step = rewrite(graph, (replacing(aten.exp.default, UNFIT[name]),))

    assert formulas(step.graph) == formulas(graph)
    assert step.applied == {}
    assert_legal(step.graph)


def test_other_strides_apply_where_allowed():
    graph = graph_of(lambda x: x.exp() * 2, X)
    loose = replacing(aten.exp.default, turned, keeps_strides=False)

    (after,) = rewrite(graph, (loose,)).graph.output_node().args[0]

    assert after.meta["val"].stride() == run(rewrite(graph, (loose,)).graph, X)[0].stride()


def test_strides_that_break_a_view_are_refused():
    graph = graph_of(lambda x: x.exp().view(12), X)
    loose = replacing(aten.exp.default, turned, keeps_strides=False)

    assert rewrite(graph, (loose,)).applied == {}


def test_overlapping_result_is_not_returned():
    overlap = replacing(
        aten.exp.default, lambda node: node.args[0].sum(0).expand([3, 4]), keeps_strides=False
    )

    assert rewrite(graph_of(lambda x: x.exp(), X), (overlap,)).applied == {}
    assert rewrite(graph_of(lambda x: x.exp() * 2, X), (overlap,)).applied == {"test": 1}


# ---- memory of the outputs ----

drop_clone = replacing(aten.clone.default, lambda node: node.args[0])
drop_alias = replacing(aten.detach.default, lambda node: node.args[0])

ALIASING = {
    "an input": lambda x: x.clone(),
    "a view of an input": lambda x: x.clone().view(12),
    "another output": lambda x: (lambda y: (y, y.clone()))(x.exp()),
}


@pytest.mark.parametrize("name", ALIASING)
def test_output_does_not_come_to_share_memory(name):
    graph = graph_of(ALIASING[name], X)

    assert rewrite(graph, (drop_clone,)).applied == {}


def test_returned_alias_stays_an_alias():
    graph = graph_of(lambda x: x.detach(), X)

    assert rewrite(graph, (drop_alias,)).applied == {}


def test_gradients_may_share_memory():
    joint = joint_of(lambda x, y: x.exp() + y, X, Y)
    (cotangent,) = joint.cotangents
    copy = Value(cotangent, Maker(joint.graph.output_node())).made(aten.clone.default)
    joint.graph.output_node().args = ((*joint.outputs, cotangent, copy.node),)

    step = rewrite(joint.graph, (drop_clone,), joint.output_count)

    _, first, second = step.graph.output_node().args[0]
    assert first is second


# ---- what nodes remember ----


def test_new_node_takes_over_the_name():
    graph = graph_of(lambda x, y: x - y, X, Y)
    to_sum = RewriteRule.of("sum", a - b, lambda a, b: -(b + a), why="a test")

    (node,) = rewrite(graph, (to_sum,)).graph.output_node().args[0]

    assert (node.name, node.target) == ("sub", aten.neg.default)
    assert node.meta["rules"] == ("sum",)


def test_old_node_remembers_whom_it_replaced():
    graph = graph_of(lambda x: -(x.exp()) * 2, X)

    step = rewrite(graph, (drop_minus,))

    exp = next(node for node in step.graph.nodes if node.name == "exp")
    assert exp.meta["stands_for"] == ("neg",)
    assert exp.meta["rules"] == ("drop-minus",)


def test_result_used_as_a_whole_is_reported():
    graph = graph_of(lambda x: x.sort(0), X)
    sort = next(node for node in graph.nodes if node.name == "sort")
    graph.output_node().args = ((sort,),)

    with pytest.raises(InternalError) as error:
        rewrite(graph, (replacing(aten.sort.default, lambda node: (node.args[0], None)),))

    assert str(error.value) == (
        "E900 internal: `sort` must be taken apart before it is rewritten\n"
        "  got:      `output` uses it as a whole"
    )


def test_several_results_are_replaced_one_by_one():
    graph = graph_of(lambda x: x.sort(0)[0], X)
    swapped = replacing(aten.sort.default, lambda node: (node.args[0].exp(), None))

    assert formulas(rewrite(graph, (swapped,)).graph) == ["exp(x_1)"]


def test_missing_result_does_not_apply():
    graph = graph_of(lambda x: x.sort(0), X)
    swapped = replacing(aten.sort.default, lambda node: (node.args[0].exp(), None))

    assert rewrite(graph, (swapped,)).applied == {}
