"""Parts that are put into zeros, joined to complex numbers, or split: what rules make of them."""

import warnings

import pytest
import torch

from pullback.derive.backward import derive_function
from pullback.graph.parts import BACKWARD
from pullback.graph.rewrite import rewrite
from pullback.graph.simplify import pieces
from tests.graph.graphs import assert_legal, formulas, graph_of, randn, run

aten = torch.ops.aten
RULES = {rule.name: rule for rule in pieces.TABLE}
X, Y = randn(4, 5, dtype=torch.float64), randn(4, 5, dtype=torch.float64, seed=1)
WIDE = randn(4, 6, dtype=torch.float64)


def put(x, y, base):
    return aten.select_backward(x, base.shape, 1, 2) + aten.select_backward(y, base.shape, 1, 0)


def put_three(x, y, base):
    return put(x, y, base) + aten.select_backward(x * y, base.shape, 1, 1)


def put_twice(x, y, base):
    return put(x, y, base) + aten.select_backward(x * y, base.shape, 1, 2)


def put_from_the_end(x, y, base):
    return aten.select_backward(x, base.shape, 1, -1) + aten.select_backward(y, base.shape, 1, 0)


def parts(x, y):
    real, imaginary = torch.stack([x, y], -1), torch.stack([y, x], -1)
    return torch.view_as_complex(real) + torch.view_as_complex(imaginary)


def beside(x, y):
    return torch.view_as_complex(torch.cat([x.unsqueeze(-1), y.unsqueeze(-1)], -1))


def halves(x):
    return x[:, :3].exp() * x[:, 3:6].sin()


def uneven(x):
    return x[:, :2].exp().sum() * x[:, 2:].sin()


def overlapping(x):
    return x[:, :4].exp() * x[:, 2:].sin()


def lonely(x):
    return x[:, :3].exp()


CASES = {
    "selections-put": [
        (put, True, "select_scatter(select_scatter(zeros, y, 1, 0), x, 1, 2)"),
        (
            put_three,
            True,
            "select_scatter(select_scatter(select_scatter(zeros, y, 1, 0), "
            "mul.Tensor(x, y), 1, 1), x, 1, 2)",
        ),
    ],
    "complex-parts-added": [
        (parts, False, "view_as_complex(add.Tensor(stack([x, y], -1), stack([y, x], -1)))")
    ],
    "complex-from-parts": [(parts, False, "add.Tensor(complex(x, y), complex(y, x))")],
    "slices-split": [
        (
            halves,
            False,
            "mul.Tensor(exp(getitem(split_with_sizes(x, [3, 3], 1), 0)), "
            "sin(getitem(split_with_sizes(x, [3, 3], 1), 1)))",
        ),
        (
            uneven,
            False,
            "mul.Tensor(sum(exp(getitem(split_with_sizes(x, [2, 4], 1), 0))), "
            "sin(getitem(split_with_sizes(x, [2, 4], 1), 1)))",
        ),
    ],
}
ALONE = {
    "selections-put": [(put, False), (put_twice, False), (put_from_the_end, True)],
    "complex-parts-added": [(lambda x, y: torch.complex(x, y) + x, False)],
    "complex-from-parts": [(beside, False)],
    "slices-split": [(overlapping, False), (lonely, False)],
}


def inputs_of(fn):
    """Tensors for a function, by how many it takes."""
    if fn in (halves, uneven, overlapping, lonely):
        return [WIDE]
    return [X, Y, randn(4, 7, 5, dtype=torch.float64)][: fn.__code__.co_argcount]


def backward_graph(fn, inputs, is_symbolic):
    """The graph of `fn`, as if a backward had made it."""
    graph = graph_of(fn, *inputs, symbolic=is_symbolic)
    for node in graph.nodes:
        if node.op == "call_function":
            node.meta["phase"] = BACKWARD
    return graph


def told(graph):
    """The formula of a graph, with the zeros that parts are put into as one word."""
    (text,) = formulas(graph)
    start = text.find("new_zeros(")
    end = text.find("pin_memory=False)") + len("pin_memory=False)")
    text = text if start < 0 else text[:start] + "zeros" + text[end:]
    return text.replace("_1", "")


def test_every_rule_of_pieces_is_tested():
    assert sorted(CASES) == sorted(ALONE) == sorted(RULES)


@pytest.mark.parametrize(
    ("name", "fn", "is_symbolic", "after"),
    [(name, *case) for name, cases in CASES.items() for case in cases],
)
def test_rule_makes_the_new_formula(name, fn, is_symbolic, after):
    inputs = inputs_of(fn)
    graph = backward_graph(fn, inputs, is_symbolic)

    step = rewrite(graph, (RULES[name],))

    assert told(step.graph) == after
    torch.testing.assert_close(run(step.graph, *inputs), run(graph, *inputs), rtol=0, atol=0)
    assert_legal(step.graph)


@pytest.mark.parametrize(
    ("name", "fn", "is_symbolic"),
    [(name, *case) for name, cases in ALONE.items() for case in cases],
)
def test_rule_leaves_this_alone(name, fn, is_symbolic):
    graph = backward_graph(fn, inputs_of(fn), bool(is_symbolic))

    step = rewrite(graph, (RULES[name],))

    assert step.applied.get(name, 0) <= (fn is put_twice)


def test_slices_of_forward_are_left_alone():
    graph = graph_of(halves, WIDE)

    assert rewrite(graph, (RULES["slices-split"],)).applied == {}


def test_symbolic_halves_are_a_split():
    def chunks(x, g):
        left, right = x.chunk(2, 1)
        return torch.cat([left * right, right], 1) * g

    def fn(x, g):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(chunks(x, torch.ones_like(x)), x, g)[0]

    graph = backward_graph(fn, [WIDE, WIDE * 2], True)

    after = rewrite(graph, (RULES["slices-split"],)).graph

    splits = [node for node in after.nodes if node.target == aten.split.Tensor]
    assert len(splits) >= 2
    assert not [node for node in after.nodes if node.target == aten.slice.Tensor]


def test_count_of_pieces_that_is_a_number_leaves_their_sizes_open():
    def pieces(x):
        return torch.cat([part * i for i, part in enumerate(x.split(2, -1), 1)], -1)

    x = torch.randn(3, 4, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # PyTorch warns of a symbol that is no node of its graph
        text = derive_function(pieces, x).source()

    assert "g_part, g_part_1 = grad_out.split(2, -1)" in text
