"""Fused ops written out: the formula computes what the kernel computes."""

import pytest
import torch

from pullback.graph.rewrite import rewrite
from pullback.graph.simplify import activations, convolutions, indexing, losses, norms
from tests.graph.graphs import assert_legal, graph_of, printed, randn, run

aten = torch.ops.aten
X, G = randn(4, 5, dtype=torch.float64), randn(4, 5, dtype=torch.float64, seed=1)
P = X.sigmoid()
W, B = randn(5, dtype=torch.float64, seed=2), randn(5, dtype=torch.float64, seed=3)
CLASSES = torch.tensor([1, 0, -100, 4])
MEAN = X.mean(-1, keepdim=True)
RSTD = (X.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
IMAGE = randn(2, 6, 3, 3, dtype=torch.float64)
WIDE = randn(6, dtype=torch.float64)
MEANS, RSTDS = randn(2, 2, 3, dtype=torch.float64)
KERNEL = randn(4, 6, 2, 2, dtype=torch.float64)
BACK = randn(2, 4, 2, 2, dtype=torch.float64)
ALL, ONE = [True, True, True], [True, False, False]
CHANNEL_MEAN = (IMAGE * 2).mean((0, 2, 3))
CHANNEL_RSTD = ((IMAGE * 2).var((0, 2, 3), correction=0) + 1e-5).rsqrt()
PIXELS = randn(2, 4, 4, 4, dtype=torch.float64)
PLACES = aten.max_pool2d_with_indices(PIXELS, [2, 2])[1]
OVERLAPPING = aten.max_pool2d_with_indices(PIXELS, [2, 2], [1, 1])[1]

CASES = {
    "sigmoid-backward": [(G, P)],
    "tanh-backward": [(G, X.tanh())],
    "threshold-backward": [(G, X, 0), (G, X, 0.5)],
    "leaky-relu-backward": [(G, X, 0.1, False)],
    "silu-backward": [(G, X), (G, X * 100)],
    "gelu-backward": [(G, X), (G, X * 100)],
    "mish-backward": [(G, X), (G, X * 100)],
    "softplus-backward": [(G, X, 1, 20), (G, X * 100, 2, 5)],
    "log-sigmoid-backward": [(G, x, (-x.abs()).exp()) for x in (X, X * 100)],
    "softmax-backward-data": [(G, X.softmax(-1), -1, torch.float64)],
    "log-softmax-backward-data": [(G, X.log_softmax(0), 0, torch.float64)],
    "native-layer-norm": [(X, [5], W, B, 1e-5), (X, [4, 5], None, None, 1e-5)],
    "native-layer-norm-backward": [
        (G, X, [5], MEAN, RSTD, W, B, ALL),
        (G, X, [5], MEAN, RSTD, W, B, [True, False, False]),
        (G, X, [5], MEAN, RSTD, None, None, [True, False, False]),
    ],
    "native-group-norm": [
        (IMAGE, WIDE, WIDE, 2, 6, 9, 3, 1e-5),
        (IMAGE, None, None, 2, 6, 9, 2, 0.1),
    ],
    "native-group-norm-backward": [
        (IMAGE, IMAGE * 2, MEANS, RSTDS, WIDE, 2, 6, 9, 3, ALL),
        (
            IMAGE,
            IMAGE * 2,
            MEANS,
            RSTDS,
            None,
            2,
            6,
            9,
            3,
            [True, False, False],
        ),
    ],
    "native-batch-norm-legit.no-stats": [
        (IMAGE, WIDE, WIDE, True, 0.1, 1e-5),
        (IMAGE, None, None, True, 0.1, 0.1),
    ],
    "native-batch-norm-backward": [
        (IMAGE, IMAGE * 2, WIDE, None, None, CHANNEL_MEAN, CHANNEL_RSTD, True, 1e-5, ALL),
        (IMAGE, IMAGE * 2, None, None, None, CHANNEL_MEAN, CHANNEL_RSTD, True, 1e-5, ONE),
    ],
    "max-pool2d-with-indices-backward": [
        (BACK, PIXELS, [2, 2], [2, 2], [0, 0], [1, 1], False, PLACES),
        (
            PIXELS[:, :, :3, :3].contiguous(),
            PIXELS,
            [2, 2],
            [1, 1],
            [0, 0],
            [1, 1],
            False,
            OVERLAPPING,
        ),
    ],
    "mse-loss": [(X, G), (X, G, 0), (X, G, 2)],
    "mse-loss-backward": [(G.sum(), X, G, 1), (G, X, G, 0)],
    "huber-loss-backward": [(G.sum(), X, G, 1, 0.7), (G, X, G, 0, 1.0)],
    "smooth-l1-loss-backward": [(G.sum(), X, G, 1, 0.7), (G, X, G, 2, 1.0)],
    "binary-cross-entropy-backward": [(G, P, P, None, 0), (G.sum(), P, P.flip(0), P, 1)],
    "nll-loss-forward": [(X, CLASSES, None, reduction, -100) for reduction in (0, 1, 2)],
    "nll-loss-backward": [
        (G[:, 0], X, CLASSES, None, 0, -100, G.sum()),
        (G.sum(), X, CLASSES, None, 1, -100, torch.tensor(3.0, dtype=torch.float64)),
        (G.sum(), X, CLASSES, None, 2, -100, G.sum()),
    ],
    "slice-backward": [
        (G, [4, 9], 1, 2, 7, 1),
        (G, [9, 5], 0, -4, 2**63 - 1, 1),
        (G, [4, 10], 1, 0, 10, 2),
    ],
    "select-backward": [(W, [3, 5], 0, 1), (W, [5, 4], -1, -1)],
    "embedding-dense-backward": [
        (G, torch.tensor([1, 1, 0, 2]), 4, -1, False),
        (G, torch.tensor([1, 1, 0, 2]), 4, 1, False),
    ],
    "convolution-backward": [
        (BACK, IMAGE, KERNEL, [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, ALL),
        (BACK, IMAGE, KERNEL, [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, True]),
    ],
}

TABLE = (
    *activations.TABLE,
    *norms.TABLE,
    *losses.TABLE,
    *indexing.TABLE,
    *convolutions.TABLE,
)
RULES = {rule.name: rule for rule in TABLE}
EACH = [(name, position) for name, rows in CASES.items() for position in range(len(rows))]

each_case = pytest.mark.parametrize(("name", "position"), EACH)


def fused_graph(rule, arguments):
    """A graph that calls the op of `rule` on the tensors among `arguments`."""
    tensors = [arg for arg in arguments if isinstance(arg, torch.Tensor)]

    def call(*given):
        rest = iter(given)
        args = [next(rest) if isinstance(arg, torch.Tensor) else arg for arg in arguments]
        results = rule.heads[0](*args)
        results = results if isinstance(results, tuple | list) else (results,)
        return tuple(result for result in results if result is not None)

    return graph_of(call, *tensors), tensors


def test_every_composite_is_tested():
    assert sorted(CASES) == sorted(RULES)


@each_case
def test_formula_computes_what_the_kernel_does(name, position):
    rule = RULES[name]
    graph, tensors = fused_graph(rule, CASES[name][position])
    text = printed(graph)

    step = rewrite(graph, (rule,))

    torch.testing.assert_close(
        run(step.graph, *tensors), run(graph, *tensors), rtol=1e-11, atol=1e-12
    )
    assert step.applied[name] > 0
    assert printed(graph) == text
    assert_legal(step.graph)


@each_case
def test_fused_op_is_gone(name, position):
    rule = RULES[name]
    graph, _ = fused_graph(rule, CASES[name][position])

    after = rewrite(graph, (rule,)).graph

    fused = [node for node in after.nodes if node.target == rule.heads[0]]
    assert [list(node.args[-1]).count(True) for node in fused] in ([], [1], [1, 1])


NARROW = {name: rows for name, rows in CASES.items() if name not in ("convolution-backward",)}


@pytest.mark.parametrize("name", NARROW)
def test_narrow_types_are_left_alone(name):
    row = [
        arg.bfloat16() if isinstance(arg, torch.Tensor) and arg.is_floating_point() else arg
        for arg in NARROW[name][0]
    ]
    row = [torch.bfloat16 if arg is torch.float64 else arg for arg in row]
    graph, _ = fused_graph(RULES[name], row)

    assert rewrite(graph, (RULES[name],)).applied == {}


def test_weighted_loss_is_left_alone():
    graph, _ = fused_graph(RULES["nll-loss-forward"], (X, CLASSES, W, 1, -100))

    assert rewrite(graph, (RULES["nll-loss-forward"],)).applied == {}


def test_frequency_scaling_is_left_alone():
    row = (G, torch.tensor([1, 1, 0, 2]), 4, -1, True)
    graph, _ = fused_graph(RULES["embedding-dense-backward"], row)

    assert rewrite(graph, (RULES["embedding-dense-backward"],)).applied == {}


def test_single_gradient_of_convolution_stays():
    row = (BACK, IMAGE, KERNEL, [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, False, False])
    graph, _ = fused_graph(RULES["convolution-backward"], row)

    assert rewrite(graph, (RULES["convolution-backward"],)).applied == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["sigmoid-backward", "threshold-backward", "leaky-relu-backward"])
def test_short_formulas_keep_every_bit(name, dtype):
    row = [arg.to(dtype) if isinstance(arg, torch.Tensor) else arg for arg in CASES[name][0]]
    graph, tensors = fused_graph(RULES[name], row)

    (after,) = run(rewrite(graph, (RULES[name],)).graph, *tensors)

    assert torch.equal(after, *run(graph, *tensors))
