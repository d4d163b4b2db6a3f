"""How ops are written: each form, and that it computes what the op computes."""

import math

import pytest
import torch
import torch.nn.functional as F

from pullback.errors import UnsupportedOpError
from pullback.graph.spelling.expressions import PythonWriter
from pullback.graph.text import function_text, graph_text
from tests.graph.graphs import assert_same_bits, graph_of, listed, randn, run

aten = torch.ops.aten
X, Y, V = randn(3, 4), randn(3, 4, seed=1), randn(4, seed=2)
CUBE, ROWS = randn(2, 3, 4), torch.tensor([2, 0])
MASK = X > 0
IMAGE, KERNEL, BIAS = randn(2, 3, 5, 5), randn(4, 3, 2, 2), randn(4)
COMPLEX = torch.complex(X, Y)
ALL = [1, 1], [0, 0], [1, 1], False, [0, 0], 1

FORMS = {
    # ---- operators ----
    "sum": (lambda x, y: x + y, "x + y"),
    "left to right": (lambda x, y: x - y - x, "x - y - x"),
    "right first": (lambda x, y: x - (y - x), "x - (y - x)"),
    "product of sums": (lambda x, y: (x + y) * (x - y), "(x + y) * (x - y)"),
    "sum of products": (lambda x, y: x * y + y * x, "x * y + y * x"),
    "right product": (lambda x, y: x * (y * x), "x * (y * x)"),
    "quotient": (lambda x, y: x / (y / x), "x / (y / x)"),
    "number in front": (lambda x: x * 2, "2 * x"),
    "negative number": (lambda x: x * -0.5, "-0.5 * x"),
    "whole number": (lambda x: x * 2.0 + 3.0, "2 * x + 3"),
    "power of power": (lambda x: (x**2) ** 3, "(x**2) ** 3"),
    "negative of power": (lambda x: -(x**2), "-x**2"),
    "power of negative": (lambda x: (-x) ** 2, "(-x) ** 2"),
    "negative of product": (lambda x, y: -(x * y), "-(x * y)"),
    "product of negative": (lambda x, y: (-x) * y, "-x * y"),
    "number minus": (lambda x: 1 - x, "1 - x"),
    "number to the power": (lambda x: 2**x, "2**x"),
    "tensor to the power": (lambda x, y: x.abs() ** y, "x.abs() ** y"),
    "reciprocal": (lambda x: x.reciprocal(), "1 / x"),
    "comparison": (lambda x, y: (x > 0) & (y <= x), "(x > 0) & (y <= x)"),
    "inversion": (lambda x: ~(x > 0) | (x == 1), "~(x > 0) | (x == 1)"),
    "scaled sum": (lambda x, y: torch.add(x, y, alpha=2), "x.add(y, alpha=2)"),
    "infinity": (lambda x: x * float("inf"), "torch.inf * x"),
    "minus infinity": (lambda x: x + float("-inf"), "x + -torch.inf"),
    "not a number": (lambda x: x * float("nan"), "torch.nan * x"),
    "root": (lambda x: x / math.sqrt(3), "x / 3**0.5"),
    "inverse root": (lambda x: x * 5**-0.5, "5**-0.5 * x"),
    "minus root": (lambda x: x * -math.sqrt(2), "-2**0.5 * x"),
    "bell": (lambda x: x * math.sqrt(2 / math.pi), "(2 / torch.pi) ** 0.5 * x"),
    "small number": (lambda x: x + 1e-5, "x + 1e-5"),
    "large number": (lambda x: x * 1e22, "1e22 * x"),
    "both": (lambda x, y: torch.logical_and(x > 0, y > 0), "(x > 0) & (y > 0)"),
    "either": (lambda x, y: torch.logical_or(x > 0, y > 0), "(x > 0) | (y > 0)"),
    "both numbers": (lambda x, y: torch.logical_and(x, y), "x.logical_and(y)"),
    "matrix product": (lambda x, y: x @ y.t(), "x @ y.T"),
    "batched product": (lambda c: torch.bmm(c, c.mT), "c @ c.mT"),
    "matrix by vector": (lambda x, v: x @ v, "x @ v"),
    # ---- shapes ----
    "flatten": (lambda c: c.reshape(6, 4), "c.flatten(0, 1)"),
    "reshape": (lambda x: x.reshape(2, 6), "x.reshape(2, 6)"),
    "reshape like": (
        lambda c, x: c[0].reshape(12).reshape(3, 4) + x,
        "c[0].flatten(0, 1).reshape(x.shape) + x",
    ),
    "to a number": (lambda v: v[:1].reshape(()), "v[:1].reshape(())"),
    "expand": (lambda v: v.expand(2, 4), "v.expand(2, 4)"),
    "expand like": (lambda v, x: v.expand(3, 4) + x, "v.expand_as(x) + x"),
    "transpose": (lambda c: c.transpose(0, 1), "c.transpose(0, 1)"),
    "permute": (lambda c: c.permute(2, 0, 1), "c.permute(2, 0, 1)"),
    "unsqueeze": (lambda x: x.unsqueeze(1), "x.unsqueeze(1)"),
    "new last": (lambda x: x.unsqueeze(2), "x.unsqueeze(-1)"),
    "split": (lambda x: x.split(2, 1)[0], "x.split(2, -1)[0]"),
    "split sizes": (lambda x: x.split([1, 3], 1)[1], "x.split([1, 3], -1)[1]"),
    # ---- brackets ----
    "select": (lambda x: x[:, 1], "x[:, 1]"),
    "slice": (lambda x: x[1:], "x[1:]"),
    "last dimension": (lambda c: c[..., 1:3], "c[..., 1:3]"),
    "steps": (lambda x: x[:, ::2], "x[:, ::2]"),
    "to the end": (lambda x: x[:, 1:4], "x[:, 1:]"),
    "index": (lambda x, i: x[i], "x[i]"),
    "inner index": (lambda x, i: x[:, i], "x[:, i]"),
    "put": (
        lambda x, i: x.index_put((i,), x[i], accumulate=True),
        "x.index_put((i,), x[i], accumulate=True)",
    ),
    # ---- reductions ----
    "whole sum": (lambda x: x.sum(), "x.sum()"),
    "sum over last": (lambda x: x.sum(1, keepdim=True), "x.sum(-1, keepdim=True)"),
    "sum over several": (lambda c: c.sum((0, 2)), "c.sum((0, 2))"),
    "mean": (lambda x: x.mean(0), "x.mean(0)"),
    "largest": (lambda x: x.amax(-1), "x.amax(-1)"),
    "variance": (lambda x: x.var(0, correction=0), "x.var(0, correction=0)"),
    "running sum": (lambda x: x.cumsum(1), "x.cumsum(-1)"),
    "softmax": (lambda x: x.softmax(1), "x.softmax(-1)"),
    "log softmax": (lambda x: x.log_softmax(0), "x.log_softmax(0)"),
    "values": (lambda x: x.max(1)[0], "x.max(-1).values"),
    "places": (lambda x: x.topk(2)[1], "x.topk(2).indices"),
    # ---- masks ----
    "masked": (lambda x, m: x.masked_fill(m, 0), "x.masked_fill(m, 0)"),
    "where": (lambda m, x, y: torch.where(m, x, y), "torch.where(m, x, y)"),
    "where number": (lambda m, x: torch.where(m, x, 0.0), "torch.where(m, x, 0.0)"),
    "lower bound": (lambda x: x.clamp(min=0.0), "x.clamp(min=0)"),
    "upper bound": (lambda x: x.clamp(max=0.5), "x.clamp(max=0.5)"),
    "both bounds": (lambda x: x.clamp(0, 6), "x.clamp(0, 6)"),
    "sign": (lambda x: x.sgn(), "x.sign()"),
    "complex sign": (lambda z: z.sgn(), "z.sgn()"),
    "real part": (lambda z: torch.view_as_real(z)[..., 0], "z.real"),
    "imaginary part": (lambda z: torch.view_as_real(z)[..., 1], "z.imag"),
    # ---- functions ----
    "method": (lambda x: x.exp().sin(), "x.exp().sin()"),
    "concatenation": (lambda x, y: torch.cat([x, y], 1), "torch.cat([x, y], -1)"),
    "roll": (lambda x: x.roll(1, 0), "x.roll(1, 0)"),
    "largest of blocks": (
        lambda p: F.max_pool2d(p, 2, stride=1),
        "torch.nn.functional.max_pool2d(p, 2, stride=1)",
    ),
    "means of blocks": (
        lambda p: F.avg_pool2d(p, 2),
        "torch.nn.functional.avg_pool2d(p, 2)",
    ),
    "stack": (lambda x, y: torch.stack([x, y], 2), "torch.stack([x, y], -1)"),
    "gelu": (
        lambda x: F.gelu(x, approximate="tanh"),
        'torch.nn.functional.gelu(x, approximate="tanh")',
    ),
    "elu": (lambda x: F.elu(x, 0.5), "torch.nn.functional.elu(x, 0.5)"),
    "selu": (
        lambda x: F.selu(x),
        "torch.ops.aten.elu.default(x, 1.6732632423543772, 1.0507009873554805)",
    ),
    "pad": (lambda x: F.pad(x, (1, 0)), "torch.nn.functional.pad(x, (1, 0))"),
    "pad with": (
        lambda x: F.pad(x, (1, 0), value=2.0),
        "torch.nn.functional.pad(x, (1, 0), value=2.0)",
    ),
    "embedding": (lambda i, x: F.embedding(i, x), "torch.nn.functional.embedding(i, x)"),
    "norm": (lambda x: torch.linalg.vector_norm(x), "torch.linalg.vector_norm(x)"),
    "special": (lambda x: torch.special.i1(x), "torch.special.i1(x)"),
    "conjugate": (lambda z: z.conj() * z, "z.conj().clone() * z"),
    "unnamed": (
        lambda p: aten._adaptive_avg_pool2d(p, [2, 2]),
        "torch.ops.aten._adaptive_avg_pool2d.default(p, [2, 2])",
    ),
    # ---- convolutions ----
    "convolution": (lambda p, k, b: F.conv2d(p, k, b), "torch.nn.functional.conv2d(p, k, b)"),
    "strided": (
        lambda p, k: F.conv2d(p, k, stride=2, padding=1),
        "torch.nn.functional.conv2d(p, k, stride=2, padding=1)",
    ),
    "uneven": (
        lambda p, k: F.conv2d(p, k, stride=(2, 1)),
        "torch.nn.functional.conv2d(p, k, stride=[2, 1])",
    ),
    "transposed": (
        lambda u, k: F.conv_transpose2d(u, k),
        "torch.nn.functional.conv_transpose2d(u, k)",
    ),
    # ---- new tensors ----
    "zeros like": (lambda x: torch.zeros_like(x) + x, "torch.zeros_like(x) + x"),
    "zeros": (lambda x: torch.zeros(3, 4) + x, "torch.zeros_like(x) + x"),
    "other zeros": (lambda x: torch.zeros(2, 3, 4) + x, "x.new_zeros((2, 3, 4)) + x"),
    "full": (lambda x: torch.full((4,), 2.5) * x, "x.new_full((4,), 2.5) * x"),
    "range": (lambda x: torch.arange(4) * x, "torch.arange(4, device=x.device) * x"),
    "cast": (lambda x: x.to(torch.float64), "x.to(torch.float64)"),
    "dtype of an argument": (
        lambda x, v: (x > 0).sum().to(torch.float32) * v,
        "(x > 0).sum().to(x.dtype) * v",
    ),
    "identity": (
        lambda x: torch.eye(4, dtype=torch.float32) + x[:1],
        "torch.eye(4, dtype=x.dtype, device=x.device) + x[:1]",
    ),
    "other dtype": (
        lambda x: torch.zeros(4, dtype=torch.float64) * x,
        "torch.zeros([4], dtype=torch.float64, device=x.device) * x",
    ),
}
VALUES = {"t": torch.tensor([1, 0, 3]), "x": X, "y": Y, "v": V, "c": CUBE, "i": ROWS, "m": MASK}
VALUES |= {"p": IMAGE, "k": KERNEL, "b": BIAS, "z": COMPLEX, "u": randn(2, 4, 5, 5)}


def described(fn, symbolic=False):
    """The graph of a form, its inputs, and the names of its parameters for the nodes."""
    parameters = fn.__code__.co_varnames[: fn.__code__.co_argcount]
    inputs = [VALUES[name] for name in parameters]
    graph = graph_of(fn, *inputs, symbolic=symbolic)
    names = dict(zip(graph.find_nodes(op="placeholder"), parameters, strict=True))
    return graph, inputs, names


@pytest.mark.parametrize("name", FORMS)
def test_op_has_its_form(name):
    fn, expected = FORMS[name]
    graph, inputs, names = described(fn)

    text = graph_text(graph, names)

    assert text.returned == (expected,) or text.statements[-1].endswith(expected)
    namespace = {"torch": torch}
    exec(function_text(graph, "form", names), namespace)
    assert_same_bits(listed(namespace["form"](*inputs)), run(graph, *inputs))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ((), "torch.nn.functional.nll_loss(x, t)"),
        ((None, 2, -100), 'torch.nn.functional.nll_loss(x, t, reduction="sum")'),
        ((None, 1, 2), "torch.nn.functional.nll_loss(x, t, ignore_index=2)"),
    ],
)
def test_loss_of_classes_has_its_form(settings, expected):
    inputs = X, torch.tensor([1, 0, 3])
    graph = graph_of(lambda x, t: (x * 1, t + 0), *inputs)
    x, t = graph.find_nodes(op="placeholder")
    with graph.inserting_before(graph.output_node()):
        loss = graph.call_function(aten.nll_loss.default, (x, t, *settings))
    loss.meta["val"] = x.meta["val"].sum()
    graph.output_node().args = ((loss,),)
    names = {x: "x", t: "t"}

    assert graph_text(graph, names).returned == (expected,)
    namespace = {"torch": torch}
    exec(function_text(graph, "form", names), namespace)
    assert_same_bits(listed(namespace["form"](*inputs)), run(graph, *inputs))


# ---- symbolic sizes ----

SIZES = {
    "chunk": (lambda x: x.chunk(2, 1)[0], "x.chunk(2, -1)[0]"),
    "power of size": (lambda x: x * x.shape[1] ** -0.5, "x.shape[1] ** -0.5 * x"),
    "quotient of sizes": (lambda x: x * (2.0 / (x.shape[1] - 1.0)), "2 / (x.shape[1] - 1) * x"),
    "size": (lambda x: x / x.shape[0], "x / x.shape[0]"),
    "arithmetic": (lambda x: x * (2 * x.shape[0] + 1), "(2 * x.shape[0] + 1) * x"),
    "count": (lambda x: x / x.numel(), "x / x.numel()"),
    "shape": (lambda v, x: v[:1].expand(x.shape), "v[:1].expand_as(x)"),
    "one of many": (lambda x, v: v.expand(x.shape[0], 4), "v.expand_as(x)"),
}


@pytest.mark.parametrize("name", SIZES)
def test_size_is_read_from_a_tensor(name):
    fn, expected = SIZES[name]
    graph, _, names = described(fn, symbolic=True)

    assert graph_text(graph, names).returned == (expected,)


def writer_for(x):
    """A writer that knows one argument, `x`."""
    return PythonWriter((x,), {x: "x"}, {})


def test_symbolic_size_is_found_in_an_argument():
    graph, _, _ = described(lambda x: x * 2, symbolic=True)
    x = graph.find_nodes(op="placeholder")[0]
    rows, columns = x.meta["val"].shape

    assert writer_for(x).arg([2, columns, rows]) == "[2, x.shape[1], x.shape[0]]"
    assert writer_for(x).shape([rows, columns]) == "x.shape"
    assert writer_for(x).shape([rows, 3]) == "(x.shape[0], 3)"


def test_size_is_made_of_those_of_arguments():
    graph, _, _ = described(lambda x: x * 2, symbolic=True)
    x = graph.find_nodes(op="placeholder")[0]
    rows, columns = x.meta["val"].shape

    assert writer_for(x).arg(columns + 7) == "x.shape[1] + 7"
    assert writer_for(x).arg([rows * columns, 2]) == "[x.shape[0]*x.shape[1], 2]"


def test_size_of_nothing_is_an_error():
    graph, _, _ = described(lambda x: x * 2, symbolic=True)
    x = graph.find_nodes(op="placeholder")[0]
    size = x.meta["val"].shape[1] // 7

    with pytest.raises(UnsupportedOpError) as error:
        writer_for(x).arg(size)

    assert str(error.value) == (
        "E302 unsupported-op: a size in the graph must be the size of one of its arguments\n"
        f"  got:      `{size}`\n"
        "  fix:      read it from a tensor in the graph"
    )


# ---- gradients of convolutions ----


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ([True, False, False], "torch.nn.grad.conv2d_input(p.shape, k, g)"),
        ([False, True, False], "torch.nn.grad.conv2d_weight(p, k.shape, g)"),
    ],
    ids=["input", "weight"],
)
def test_gradient_of_convolution_has_a_name(mask, expected):
    index = mask.index(True)
    inputs = (randn(2, 4, 4, 4), IMAGE, KERNEL)
    graph = graph_of(
        lambda g, p, k: aten.convolution_backward(g, p, k, None, *ALL, mask)[index], *inputs
    )
    names = dict(zip(graph.find_nodes(op="placeholder"), "gpk", strict=True))
    text = function_text(graph, "f", names)

    assert text == f"def f(g, p, k):\n    return {expected}\n"
    namespace = {"torch": torch}
    exec(text, namespace)
    assert_same_bits([namespace["f"](*inputs)], run(graph, *inputs))
