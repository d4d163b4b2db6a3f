"""A printed graph reads well, runs as printed, and gives the bits that the graph gives."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from pullback.errors import UnsupportedOpError
from pullback.graph.names import names_of
from pullback.graph.simplify import READABLE, simplify
from pullback.graph.text import function_text, graph_text
from tests.graph.graphs import (
    FUNCTIONS,
    assert_same_bits,
    graph_of,
    inputs_of,
    listed,
    row_of,
    run,
    trace,
    traced,
)

every_function = pytest.mark.parametrize("name", FUNCTIONS)
X, Y = torch.randn(2, 3, 4)


def derivation(found, name):
    """The text of a joint graph as a derivation by hand would read."""
    joint = simplify(found.joint, READABLE, across_phases=True)
    names = names_of(
        joint, found.local_names, found.input_names, differentiated=found.differentiated
    )
    return joint, function_text(joint.graph, name, names)


def call(text, name, *inputs):
    """What the printed function gives, in a namespace that has nothing but torch."""
    namespace = {"torch": torch}
    exec(compile(text, "<text>", "exec"), namespace)
    with torch.no_grad():
        return listed(namespace[name](*inputs))


@functools.cache
def derived(name, symbolic):
    """The derivation of one of the functions, made once."""
    return derivation(traced(name, symbolic=symbolic), name)


# ---- derivations ----


@pytest.mark.quick(12)
@every_function
def test_derivation_reads_as_it_did(name, gold):
    _, text = derived(name, True)

    gold(f"text/{name}.py", text)


@pytest.mark.quick(30)
@every_function
@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
def test_printed_function_gives_the_same_bits(name, symbolic):
    joint, text = derivation(traced(name, symbolic=symbolic), name)
    row = row_of(name)

    assert_same_bits(call(text, name, *row), run(joint.graph, *row))


@every_function
def test_captured_graph_prints_as_it_is(name):
    graph = traced(name).joint.graph
    row = row_of(name)

    assert_same_bits(call(function_text(graph, "f"), "f", *row), run(graph, *row))


@pytest.mark.parametrize("name", ["layer_norm", "cross_entropy", "rope"])
def test_text_is_the_same_every_time(name):
    fn = FUNCTIONS[name]

    _, text = derivation(trace(fn, *inputs_of(fn), symbolic=True), name)

    assert text == derived(name, True)[1]


@every_function
def test_lines_are_not_long(name):
    _, text = derived(name, True)

    assert max(map(len, text.splitlines())) <= 92


GROWN = {
    "layer_norm": [(5, 6), (6,), (6,)],
    "softmax": [(7, 2)],
    "attention": [(2, 4, 6), (2, 5, 6), (2, 5, 3)],
    "sequence_linear": [(3, 2, 6), (5, 6), (5,)],
    "outer": [(6,), (2,)],
    "logsumexp": [(4, 4)],
}


@pytest.mark.parametrize("name", GROWN)
def test_symbolic_text_serves_other_shapes(name):
    joint, text = derived(name, True)
    inputs = [torch.randn(shape) for shape in GROWN[name]]
    output = FUNCTIONS[name](*inputs)
    row = [*inputs, torch.randn_like(output)]

    assert_same_bits(call(text, name, *row), run(joint.graph, *row))


# ---- layout ----


def long_sum(x, y):
    return (x.exp() * y.sin() + x.tanh() * y.cos()) * (x.sigmoid() - y.sigmoid()).exp().log1p()


def test_long_expression_is_taken_apart():
    text = graph_text(graph_of(long_sum, X, Y))

    assert len(text.statements) > 0
    assert max(map(len, (*text.statements, *text.returned))) <= 84


def test_long_call_is_broken_over_lines():
    graph = graph_of(lambda *xs: torch.cat(xs), *[torch.randn(2, seed) for seed in [3] * 20])
    names = {node: f"argument_{i}" for i, node in enumerate(graph.find_nodes(op="placeholder"))}

    text = function_text(graph, "f", names)

    assert max(map(len, text.splitlines())) <= 88
    assert_same_bits(call(text, "f", *torch.ones(20, 2, 3)), [torch.ones(40, 3)])


def test_one_value_is_returned_bare():
    assert function_text(graph_of(lambda x: x * 2, X), "f") == "def f(x_1):\n    return 2 * x_1\n"


def test_nothing_returned_is_an_empty_tuple():
    graph = graph_of(lambda x: x * 2, X)
    graph.output_node().args = ((),)

    assert call(function_text(graph, "f"), "f", X) == []


def test_given_name_gets_a_line():
    graph = graph_of(lambda x: x.exp() * 2, X)
    names = {node: node.name for node in graph.nodes if node.name == "exp"}

    assert graph_text(graph, names).statements == ("exp = x_1.exp()",)
    assert graph_text(graph).statements == ()


def test_names_of_larger_graph_serve_its_parts():
    joint = traced("softmax").joint
    names = names_of(joint, {}, ["scores"])
    part = fx.Graph()
    part.output((part.placeholder(joint.inputs[0].name),))

    assert graph_text(part, names).parameters == ("scores",)


def test_random_ops_keep_their_lines():
    text = graph_text(graph_of(lambda x: torch.rand_like(x) - torch.rand_like(x), X))

    assert text.statements == (
        "rand_like = torch.rand_like(x_1)",
        "rand_like_1 = torch.rand_like(x_1)",
    )


def test_several_results_are_unpacked():
    text = graph_text(graph_of(lambda x: x.sort(0), X))

    assert text.statements == ("getitem, getitem_1 = x_1.sort(0)",)


def test_unused_result_is_an_underscore():
    graph = graph_of(lambda x: torch.ops.aten.native_layer_norm(x, [4], None, None, 0.1)[0::2], X)
    assert graph_text(graph).statements == (
        "getitem, _, getitem_2 = torch.native_layer_norm(x_1, [4], None, None, 0.1)",
    )


def test_taken_names_are_numbered():
    graph = graph_of(lambda x: (x.exp().sin(), x.exp().sin().cos()), X)
    exp = next(n for n in graph.nodes if n.target == torch.ops.aten.exp.default)
    placeholder = next(iter(graph.nodes))

    text = function_text(graph, "f", {placeholder: "exp", exp: "lambda_"})

    assert_same_bits(call(text, "f", X), [X.exp().sin(), X.exp().sin().cos()])
    assert text.startswith("def f(exp):\n    lambda_ = exp.exp()\n")


# ---- what cannot be printed ----


def test_constant_tensor_is_named():
    graph = graph_of(lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]), X)

    with pytest.raises(UnsupportedOpError) as error:
        function_text(graph, "f")

    assert str(error.value) == (
        "E302 unsupported-op: a constant in the graph must be a literal to be printed\n"
        "  got:      node `_tensor_constant0` (get_attr)\n"
        "  fix:      pass it as an argument of the function"
    )


def test_unknown_constant_is_named():
    graph = graph_of(lambda x: x + 1, X)
    next(n for n in graph.nodes if n.op == "call_function").args = (X, object())

    with pytest.raises(UnsupportedOpError) as error:
        function_text(graph, "f")

    assert str(error.value) == (
        "E302 unsupported-op: a constant in the graph must be a literal to be printed\n"
        "  got:      Tensor\n"
        "  fix:      pass it as an argument of the function"
    )


def some_function(x):
    return x


def test_unknown_function_is_named():
    graph = graph_of(lambda x: x + 1, X)
    node = next(n for n in graph.nodes if n.op == "call_function")
    node.target, node.meta["place"] = some_function, "user.py:3"

    with pytest.raises(UnsupportedOpError) as error:
        function_text(graph, "f")

    assert str(error.value) == (
        "E302 unsupported-op: `some_function` must be an op of PyTorch or a registered one "
        "to be printed\n"
        "  at:       user.py:3\n"
        "  got:      node `add` (call_function)\n"
        "  fix:      register it with `torch.library.custom_op`"
    )


def test_dropout_prints_and_runs():
    graph = graph_of(lambda x: F.dropout(x, 0.5, True), X)
    text = function_text(graph, "f")

    torch.manual_seed(3)
    expected = run(graph, X)
    torch.manual_seed(3)

    assert_same_bits(call(text, "f", X), expected)
