"""Cost: bytes and operations by hand-counted examples, and what each kind of node is."""

import pytest
import torch
import torch.nn.functional as F

from pullback.errors import InternalError
from pullback.graph.cost import (
    base_of,
    bytes_of,
    flops_of,
    hint_of,
    is_matmul_like,
    is_mutating,
    is_opaque,
    is_random,
    is_view,
    op_name,
)
from tests.graph.graphs import graph_of

aten = torch.ops.aten


def node_for(fn, *shapes, symbolic=False, dtype=torch.float32):
    """The node that computes what `fn` returns."""
    inputs = [torch.randn(shape).to(dtype) for shape in shapes]
    return graph_of(fn, *inputs, symbolic=symbolic).output_node().args[0][0]


# ---- kinds ----

KINDS = {
    "pointwise": (lambda x: x.exp(), ""),
    "transpose": (lambda x: x.t(), "view"),
    "reshape": (lambda x: x.view(12), "view"),
    "unsafe view": (lambda x: aten._unsafe_view(x, [12]), "view"),
    "part of split": (lambda x: x.split(2, 1)[0], "view"),
    "part of sort": (lambda x: x.sort(0)[0], ""),
    "copy": (lambda x: x.clone(), ""),
    "random": (lambda x: torch.rand_like(x), "random"),
    "dropout": (lambda x: aten.native_dropout(x, 0.5, True)[0], ""),
    "product": (lambda x: x @ x.t(), "matmul-like"),
    "convolution": (lambda x: F.conv1d(x[None], x[None, :, :1]), "matmul-like"),
    "inverse": (lambda x: torch.linalg.inv_ex(x @ x.t())[0], ""),
}


@pytest.mark.parametrize("name", KINDS)
def test_kind_of_node_is_told(name):
    fn, kind = KINDS[name]
    node = node_for(fn, (3, 4))

    answers = {
        "view": is_view(node),
        "random": is_random(node),
        "matmul-like": is_matmul_like(node),
        "opaque": is_opaque(node),
        "mutating": is_mutating(node),
    }
    assert [answer for answer, holds in answers.items() if holds] == ([kind] if kind else [])


def test_dropout_itself_is_random():
    node = node_for(lambda x: aten.native_dropout(x, 0.5, True)[0], (3, 4))

    assert is_random(node.args[0])


def test_factorisation_counts_as_product():
    node = node_for(lambda x: torch.linalg.inv_ex(x @ x.t())[0], (3, 4))

    assert is_matmul_like(node.args[0])


def test_custom_op_is_opaque():
    with torch.library._scoped_library("cost_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        node = node_for(lambda x: torch.ops.cost_test.twice(x), (3,))

        assert is_opaque(node)
        assert op_name(node) == "twice"


def test_inplace_op_is_mutating():
    assert is_mutating(node_for(lambda x: x.clone().add_(1), (3,)))


def test_base_of_views_is_found():
    node = node_for(lambda x: x.exp().view(12)[2:].view(2, 5).t(), (3, 4))

    assert op_name(base_of(node)) == "exp"


# ---- bytes ----

BYTES = {
    "float": (lambda x: x.exp(), torch.float32, 48),
    "double": (lambda x: x.exp(), torch.float64, 96),
    "bfloat16": (lambda x: x.exp(), torch.bfloat16, 24),
    "mask": (lambda x: x > 0, torch.float32, 12),
    "number": (lambda x: x.sum(), torch.float32, 4),
    "complex": (lambda x: x.exp(), torch.complex64, 96),
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_are_counted(name):
    fn, dtype, expected = BYTES[name]

    assert bytes_of(node_for(fn, (3, 4), dtype=dtype)) == expected


def test_bytes_of_several_results_add_up():
    node = node_for(lambda x: x.sort(0)[0], (3, 4))

    assert bytes_of(node.args[0]) == 12 * (4 + 8)


# ---- operations ----

FLOPS = {
    "sum of two": (lambda x, y: x + y, [(3, 4), (3, 4)], 12),
    "broadcast": (lambda x, y: x * y, [(3, 4), (4,)], 12),
    "exponential": (lambda x: x.exp(), [(3, 4)], 120),
    "reduction": (lambda x: x.sum(0), [(3, 4)], 12),
    "softmax": (lambda x: x.softmax(-1), [(3, 4)], 13 * 12),
    "transpose": (lambda x: x.t(), [(3, 4)], 0),
    "copy": (lambda x: x.clone(), [(3, 4)], 0),
    "concatenation": (lambda x: torch.cat([x, x]), [(3, 4)], 0),
    "product": (lambda x, y: x @ y, [(3, 4), (4, 5)], 2 * 3 * 4 * 5),
    "with summand": (lambda b, x, y: torch.addmm(b, x, y), [(5,), (3, 4), (4, 5)], 2 * 3 * 4 * 5),
    "batched": (lambda x, y: torch.bmm(x, y), [(2, 3, 4), (2, 4, 5)], 2 * 2 * 3 * 4 * 5),
    "matrix by vector": (lambda x, y: x @ y, [(3, 4), (4,)], 2 * 3 * 4),
    "convolution": (
        lambda x, w: F.conv2d(x, w),
        [(2, 3, 8, 8), (4, 3, 3, 3)],
        2 * (2 * 4 * 6 * 6) * (3 * 3 * 3),
    ),
    "transposed": (
        lambda x, w: F.conv_transpose2d(x, w),
        [(2, 3, 6, 6), (3, 4, 3, 3)],
        2 * (2 * 3 * 6 * 6) * (4 * 3 * 3),
    ),
}


@pytest.mark.parametrize("name", FLOPS)
def test_operations_are_counted(name):
    fn, shapes, expected = FLOPS[name]

    assert flops_of(node_for(fn, *shapes)) == expected


def test_gradients_of_convolution_count_twice():
    def backward(g, x, w):
        settings = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])
        return aten.convolution_backward(g, x, w, None, *settings)[0]

    node = node_for(backward, (2, 4, 6, 6), (2, 3, 8, 8), (4, 3, 3, 3))

    assert flops_of(node.args[0]) == 2 * FLOPS["convolution"][2]


def test_attention_counts_two_products():
    node = node_for(
        lambda q, k, v: aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0],
        *[(2, 3, 16, 8)] * 3,
    )

    assert flops_of(node.args[0]) == 2 * (2 * (2 * 3 * 16) * 16 * 8)


# ---- symbolic sizes ----


def test_symbolic_sizes_cost_what_they_were_in_the_examples():
    node = node_for(lambda x, y: x @ y, (3, 4), (4, 5), symbolic=True)

    assert (bytes_of(node), flops_of(node)) == (60, 120)


def test_cost_adds_no_guard():
    node = node_for(lambda x: (x.exp() / x.shape[0]).sum(0), (3, 4), symbolic=True)
    sizes = node.meta["val"].fake_mode.shape_env
    guards = len(sizes.guards)

    for each in node.graph.nodes:
        if each.op != "output":
            bytes_of(each), flops_of(each)

    assert len(sizes.guards) == guards


def test_size_without_hint_is_an_error():
    node = node_for(lambda x: x * 2, (3, 4), symbolic=True)
    unknown = node.meta["val"].fake_mode.shape_env.create_unbacked_symint()

    with pytest.raises(InternalError) as error:
        hint_of(unknown)

    assert str(error.value) == (
        f"E900 internal: the size `{unknown}` must have been known when the graph was captured"
    )
