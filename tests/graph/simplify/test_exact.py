"""Each exact rule: before, after, what it leaves alone, and the same bits on awkward numbers."""

import operator
import sys

import pytest
import torch
import torch.nn.functional as F

from pullback.graph.parts import FORWARD, phase_of
from pullback.graph.rewrite import rewrite
from pullback.graph.simplify import EXACT, simplify, sizes
from pullback.graph.values import Maker, Value
from tests.graph.graphs import (
    assert_same_bits,
    formulas,
    graph_of,
    joint_of,
    row_of,
    run,
    traced,
)
from tests.graph.simplify.rules import (
    DTYPES,
    Case,
    assert_left_alone,
    assert_rewritten,
    results,
)

aten = torch.ops.aten
RULES = {rule.name: rule for rule in EXACT}

# Matrices of more dimensions.
MANY = {"q": (2, 3, 4, 5), "k": (2, 3, 5, 6), "s": (2, 4, 5), "m": (5, 6), "w": (6, 5), "b": (6,)}


def kept_negative(x, y):
    n = -y
    return x + n, n.exp()


def kept_view(x):
    flat = x.view(20)
    return flat.view(2, 10), flat.exp()


def kept_sum(x):
    total = x.sum(0, keepdim=True)
    return total.view(5), total.exp()


CASES = {
    # ---- noise ----
    "alias": Case(lambda x, y: x.detach() * y, "mul.Tensor(x, y)", lambda x: x.detach()),
    "copy": Case(lambda x, y: x.clone() * y, "mul.Tensor(x, y)", lambda x: x.clone().view(20)),
    "copied-over": Case(
        lambda x, y: aten.copy(aten.new_empty_strided(x, [4, 5], [1, 4]), x) * y,
        "mul.Tensor(x, y)",
        lambda x, y: aten.copy(x, y[:1]) * 2,
    ),
    "widened-and-back": Case(
        lambda x, y: aten._to_copy(aten._to_copy(x, dtype=torch.float64), dtype=x.dtype) * y,
        "mul.Tensor(x, y)",
        lambda x, y: x.to(torch.bfloat16).to(torch.float32) * y,
    ),
    "round-trip": Case(
        lambda x, y: x.t().unsqueeze(1).squeeze(1).t() * y,
        "mul.Tensor(x, y)",
        lambda x: x[:1].expand(5, 5).t() * 2,
    ),
    "view-of-view": Case(lambda x: x.view(20).view(2, 10), "view(x, [2, 10])", kept_view),
    "copied-view": Case(
        lambda x: x.t().contiguous().view(20),
        "reshape(t(x), [20])",
        lambda x: x.t().contiguous().exp(),
    ),
    "swapped": Case(
        lambda x: x.permute(1, 0), "t(x)", lambda s: s.permute(1, 2, 0), {"s": (2, 4, 5)}
    ),
    "permuted-twice": Case(
        lambda s: s.permute(1, 2, 0).permute(1, 0, 2),
        "permute(s, [2, 1, 0])",
        lambda s: s.permute(1, 2, 0),
        {"s": (2, 4, 5)},
    ),
    "cast-count": Case(
        lambda x: x / (x > 0).sum().to(x.dtype),
        "div.Tensor(x, sum(gt.Scalar(x, 0)))",
        lambda x: x / x.sum().to(torch.float64).to(x.dtype),
    ),
    "whole-slice": Case(
        lambda x, y: aten.slice_backward(x, [4, 5], 0, 0, sys.maxsize, 1) * y,
        "mul.Tensor(x, y)",
        lambda x: aten.slice_backward(x, [6, 5], 0, 1, 5, 1),
    ),
    "zeros-like": Case(
        lambda x, y: x.new_zeros(4, 5) + y,
        "add.Tensor(zeros_like(x), y)",
        lambda x, y: x.new_zeros(5) + y,
    ),
    # ---- numbers ----
    "scalar-overload": Case(
        lambda x: aten.mul.Scalar(x, 3), "mul.Tensor(x, 3)", lambda x: aten.add.Scalar(x, 3, 2)
    ),
    "constant-operand": Case(
        lambda x: torch.ones_like(x) * x,
        "mul.Tensor(x, 1)",
        lambda x: x / torch.full_like(x, 3.0),
    ),
    "constant-bound": Case(
        lambda x: torch.maximum(x, torch.full_like(x, 0.3)),
        "clamp_min(x, 0.3)",
        lambda x: torch.maximum(x, torch.zeros_like(x)),
    ),
    "times-one": Case(lambda x, y: x * 1 * y, "mul.Tensor(x, y)", lambda x, y: x * 2 * y),
    "over-one": Case(lambda x, y: x / 1 * y, "mul.Tensor(x, y)", lambda x, y: x / 2 * y),
    "times-minus-one": Case(lambda x: x * -1, "neg(x)", lambda x: x * -2),
    "minus-zero": Case(lambda x, y: (x - 0.0) * y, "mul.Tensor(x, y)", lambda x, y: (x - 1) * y),
    "plus-nothing": Case(
        lambda x, y: (x + -0.0) * y, "mul.Tensor(x, y)", lambda x, y: (x + 0.0) * y
    ),
    "power-one": Case(lambda x, y: x**1 * y, "mul.Tensor(x, y)", lambda x, y: x**2 * y),
    # ---- negation ----
    "double-negation": Case(
        lambda x, y: x.neg().neg() * y, "mul.Tensor(x, y)", lambda x, y: -x * y
    ),
    "added-negative": Case(
        lambda x, y: y * -2 * x + x, "sub.Tensor(x, mul.Tensor(mul.Tensor(y, 2), x))", kept_negative
    ),
    "subtracted-negative": Case(
        lambda x, y: x - (-y) / x, "add.Tensor(x, div.Tensor(y, x))", lambda x, y: x - y.neg().exp()
    ),
    "negative-times-number": Case(lambda x: -x * 3, "mul.Tensor(x, -3)", lambda x: (-x).exp() * 3),
    "negated-multiple": Case(lambda x: -(x * 3), "mul.Tensor(x, -3)", lambda x, y: -(x * y)),
    "negative-factor": Case(lambda x, y: y * -x, "neg(mul.Tensor(x, y))", lambda y, z: -z * y),
    "negative-dividend": Case(lambda x, y: -x / y, "neg(div.Tensor(x, y))", lambda y, z: -z / y),
    "negative-over-number": Case(
        lambda x: -x / 3, "neg(div.Tensor(x, 3))", lambda x: (-x).exp() / 3
    ),
    "negative-divisor": Case(lambda x, y: x / -y, "neg(div.Tensor(x, y))", lambda y, z: y / -z),
    "negated-view": Case(lambda x: (-x).t(), "neg(t(x))", lambda z: (-z).expand(4, 5)),
    # ---- broadcasting ----
    "expanded-operand": Case(
        lambda y, z: (z.expand(4, 5) / 8) * y,
        "mul.Tensor(div.Tensor(z, 8), y)",
        lambda z: z.expand(4, 5).exp(),
    ),
    "expanded-twice": Case(
        lambda v: v.expand(4, 5).expand(3, 4, 5), "expand(v, [3, 4, 5])", lambda v: v.expand(4, 5)
    ),
    "expanded-then-unsqueezed": Case(
        lambda z: z.expand(4, 5).unsqueeze(1),
        "expand(unsqueeze(z, 1), [4, 1, 5])",
        lambda v: v.unsqueeze(0),
    ),
    # ---- sums ----
    "doubled": Case(lambda x: x + x, "mul.Tensor(x, 2)", lambda x, y: x + y),
    "kept-then-dropped": Case(
        lambda x: x.sum(0, keepdim=True).view(5), "sum.dim_IntList(x, [0])", kept_sum
    ),
    "dropped-then-kept": Case(
        lambda x: x.mean(0).unsqueeze(0), "mean.dim(x, [0], True)", lambda x: x.mean(0).unsqueeze(1)
    ),
    # ---- matrix products ----
    "batched-product": Case(
        lambda q, k: q @ k,
        "matmul(q, k)",
        lambda q, k: torch.bmm(q.view(6, 4, 5), k.view(6, 5, 6)).view(3, 2, 4, 6),
        MANY,
    ),
    "folded-product": Case(
        lambda s, m: s @ m,
        "matmul(s, m)",
        lambda s, m: torch.mm(s.view(8, 5), m).view(4, 2, 6),
        MANY,
    ),
    "linear": Case(
        lambda v, w, b: F.linear(v.expand(3, 5), w, b),
        "linear(expand(v, [3, 5]), w, b)",
        lambda x, m, b: torch.addmm(b, x, m),
        MANY,
    ),
    "folded-linear": Case(
        lambda s, w, b: F.linear(s.view(8, 5), w, b).view(2, 4, 6),
        "linear(s, w, b)",
        lambda s, w, b: F.linear(s.view(8, 5), w, b).view(4, 2, 6),
        MANY,
        (RULES["linear"],),
    ),
}

every_case = pytest.mark.parametrize("name", CASES)


def test_every_exact_rule_is_tested():
    assert sorted([*CASES, "size-of-argument", "size-arithmetic"]) == sorted(RULES)


def test_every_exact_rule_says_why():
    assert [rule.name for rule in EXACT if len(rule.why) < 15] == []


@every_case
def test_rule_makes_the_new_formula(name):
    assert_rewritten(RULES[name], CASES[name])


@every_case
def test_rule_leaves_this_alone(name):
    assert_left_alone(RULES[name], CASES[name])


@every_case
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rule_keeps_every_bit(name, dtype):
    before, after = results(RULES[name], CASES[name], dtype)

    assert_same_bits(after, before)


@pytest.mark.needs_cuda
@every_case
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rule_keeps_every_bit_on_gpu(name, dtype):
    before, after = results(RULES[name], CASES[name], dtype, device="cuda")

    assert_same_bits(after, before)


# ---- where a rule would be wrong ----

COMPLEX = {
    "times-one": lambda x, y: x * 1 * y,
    "doubled": lambda x: x + x,
    "negative-factor": lambda x, y: -x * y,
    "negative-dividend": lambda x, y: -x / y,
    "added-negative": lambda x, y: x + y * -2,
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers_are_left_alone(name):
    x, y = torch.randn(2, 4, dtype=torch.complex64)
    inputs = (x, y)[: COMPLEX[name].__code__.co_argcount]
    graph = graph_of(COMPLEX[name], *inputs)

    assert rewrite(graph, (RULES[name],)).applied == {}


def test_complex_infinity_times_one_differs():
    x = torch.tensor([complex(1, float("inf"))])

    assert torch.view_as_real(x).isnan().tolist() == [[False, False]]
    assert torch.view_as_real(x * 1).isnan().tolist() == [[True, False]]


def test_copy_of_conjugate_is_dropped_before_arithmetic():
    graph = graph_of(lambda x: x.conj() * x, torch.randn(4, dtype=torch.complex64))

    (formula,) = formulas(rewrite(graph, (RULES["copy"],)).graph)

    assert formula == "mul.Tensor(_conj(x_1), x_1)"


def test_copy_of_conjugate_stays_before_views():
    graph = graph_of(
        lambda x: torch.view_as_real(x.conj().resolve_conj()) * 2,
        torch.randn(4, dtype=torch.complex64),
    )

    assert rewrite(graph, (RULES["copy"],)).applied == {}


def test_rounded_constant_is_left_alone():
    x = torch.randn(4, dtype=torch.bfloat16)
    graph = graph_of(lambda x: x * torch.full_like(x, 0.1), x)

    assert rewrite(graph, (RULES["constant-operand"],)).applied == {}
    assert not torch.equal(x * torch.full_like(x, 0.1), x * 0.1)


def test_type_promotion_is_kept():
    x = torch.arange(4)
    graph = graph_of(lambda x: x * 1.0 + 1, x)

    assert rewrite(graph, (RULES["times-one"],)).applied == {}


def test_shape_of_broadcast_is_kept():
    x, y = torch.randn(5), torch.ones(4, 5)
    graph = graph_of(lambda x, y: x * torch.ones_like(y), x, y)

    (formula,) = formulas(simplify(graph))

    assert formula == "mul.Tensor(x_1, ones_like(y_1, pin_memory=False))"


def test_double_sum_is_left_alone():
    graph = graph_of(lambda x: x.sum(0).sum(0), torch.randn(4, 5))

    assert formulas(simplify(graph)) == formulas(graph)


def test_view_drops_dimensions_of_one():
    graph = graph_of(lambda x: x.unsqueeze(1).view(20), torch.randn(4, 5))

    assert formulas(rewrite(graph, (RULES["view-of-view"],)).graph) == ["view(x_1, [20])"]


def test_product_with_zeros_is_left_alone():
    graph = graph_of(lambda x: x * torch.zeros_like(x), torch.randn(4, 5))

    assert rewrite(graph, (RULES["constant-operand"],)).applied == {}


def test_difference_from_ones_is_told():
    graph = graph_of(lambda x: torch.ones_like(x) - x, torch.randn(4, 5))
    after = rewrite(graph, (RULES["constant-operand"],)).graph

    assert formulas(after) == ["rsub.Scalar(x_1, 1)"]


# ---- sizes ----


def sized_graph(read):
    """A graph in which `read` reads a symbolic size of a value on the way."""
    graph = graph_of(
        lambda x, y: (x * 2).view(-1) + y.view(-1), *torch.randn(2, 3, 4), symbolic=True
    )
    view = next(node for node in graph.nodes if node.name == "view")
    size = read(Value(view, Maker(graph.output_node())))
    graph.output_node().args = ((view, size.node),)
    return graph


def test_size_is_read_from_an_argument():
    rule = RULES["size-of-argument"]
    graph = sized_graph(lambda view: view.shape[0])

    _, size = formulas(rewrite(graph, (rule,)).graph)

    assert size == "sym_numel(x_1)"


def test_size_is_computed_from_arguments():
    graph = graph_of(lambda x: x[1:-1] * x.shape[0], torch.randn(7, 3), symbolic=True)
    view = next(node for node in graph.nodes if node.target == aten.slice.Tensor)
    size = Value(view, Maker(graph.output_node())).shape[0]
    graph.output_node().args = ((view, size.node),)

    _, size = formulas(rewrite(graph, (RULES["size-of-argument"],)).graph)

    assert size == "sub(sym_size.int(x_1, 0), 2)"


def test_arithmetic_of_sizes_is_shortened():
    graph = graph_of(lambda x: x.chunk(2)[0].exp(), torch.randn(6), symbolic=True)
    before = [node for node in graph.nodes if node.target is operator.add]

    after = simplify(graph)

    (size,) = [node for node in after.nodes if node.target is operator.floordiv]
    assert len(before) == 1
    assert [node.target for node in size.all_input_nodes] == [operator.add]
    assert size.all_input_nodes[0].args[1] == 1


def test_shortest_arithmetic_is_left_alone():
    graph = graph_of(lambda x: x.new_zeros(x.shape[0] + 1), torch.randn(6), symbolic=True)

    assert rewrite(graph, (RULES["size-arithmetic"],)).applied == {}


def test_forward_reads_no_size_from_cotangents():
    joint = joint_of(lambda x: x.chunk(2)[0].exp(), torch.randn(6), symbolic=True)

    after = simplify(joint)

    forward = [n for n in after.graph.nodes if n.op == "call_function" and phase_of(n) == FORWARD]
    sources = {source.name for node in forward for source in node.all_input_nodes}
    assert sources.isdisjoint(node.name for node in after.cotangents)


def test_numbers_are_read_from_tensors():
    graph = graph_of(
        lambda x, y: (x * 2).view(-1) + y.view(-1), *torch.randn(2, 3, 4), symbolic=True
    )
    x = next(iter(graph.nodes))
    total = x.meta["val"].numel()
    with graph.inserting_before(x):
        given = graph.placeholder("count")
    given.meta["val"] = total
    graph.output_node().args = ((x, given),)

    after = sizes.read_numbers(graph, {given.name})

    _, count = formulas(after)
    assert [node.name for node in after.find_nodes(op="placeholder")] == ["x_1", "y_1"]
    assert count == "sym_numel(x_1)"


def test_unknown_number_stays_given():
    graph = graph_of(lambda x: x * 2, torch.randn(3, 4), symbolic=True)
    x = next(iter(graph.nodes))
    with graph.inserting_before(x):
        given = graph.placeholder("scale")
    given.meta["val"] = 0.5
    graph.output_node().args = ((x, given),)

    after = sizes.read_numbers(graph, {given.name})

    assert [node.name for node in after.find_nodes(op="placeholder")] == ["scale", "x_1"]


def test_size_of_argument_is_left_alone():
    graph = graph_of(lambda x: x.expand(3, x.shape[0]), torch.randn(4), symbolic=True)

    assert rewrite(graph, (RULES["size-of-argument"],)).applied == {}


def test_backward_reads_sizes_from_cotangents():
    joint = traced("rms_norm", symbolic=True).joint

    after = sizes.read_from_cotangents(joint)

    assert "given_1" in [node.name for node in sources_of_sizes(joint)]
    assert {node.name for node in sources_of_sizes(after)} == {"cotangents_1"}
    assert_same_bits(run(after.graph, *row_of("rms_norm")), run(joint.graph, *row_of("rms_norm")))


def test_forward_reads_sizes_from_inputs():
    joint = joint_of(lambda x: x / x.shape[0], torch.randn(3, 4), symbolic=True)

    after = sizes.read_from_cotangents(joint)

    assert "given_1" in [node.name for node in sources_of_sizes(after)]


def sources_of_sizes(joint):
    """The placeholders whose sizes are used, in order."""
    found = joint.graph.find_nodes(op="call_function", target=aten.sym_size.int)
    return list(dict.fromkeys(node.args[0] for node in found if node.users))
