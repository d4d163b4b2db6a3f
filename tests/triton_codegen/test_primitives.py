"""Programs in primitive ops: what is saved, and what is not materialised."""

import pytest
import torch
import torch.nn.functional as F

from pullback.graph.values import aten
from tests.triton_codegen.graphs import draw, parts_of


def targets(graph):
    return {node.target for node in graph.nodes if node.op == "call_function"}


def test_cross_entropy_saves_one_number_per_row():
    parts = parts_of(
        lambda x, t: F.cross_entropy(x.float(), t),
        draw(4, 9, dtype=torch.bfloat16),
        torch.arange(4),
    )

    shapes = [tuple(map(str, node.meta["val"].shape)) for node in parts.cut.saved]

    assert sum(len(shape) == 2 and shape[1] != "1" for shape in shapes) == 1  # the logits alone
    assert not {aten.scatter.src, aten.nll_loss_backward.default} & targets(parts.backward)


def test_softmax_saves_its_output():
    parts = parts_of(lambda x: torch.softmax(x, -1), draw(4, 9, dtype=torch.bfloat16))

    assert [*parts.cut.saved] == [*parts.joint.outputs]


def test_fused_ops_of_half_types_compute_in_float32():
    parts = parts_of(
        lambda x, w, b: F.layer_norm(x, (8,), w, b),
        *(draw(*shape, dtype=torch.bfloat16) for shape in ((4, 8), (8,), (8,))),
    )
    rstd = next(node for node in parts.forward.nodes if node.target is aten.rsqrt.default)

    assert rstd.meta["val"].dtype is torch.float32


def test_explicit_casts_of_the_program_stay():
    parts = parts_of(lambda x: x.bfloat16().float() * 2, draw(4, 8))
    casts = [n for n in parts.forward.nodes if n.target is aten._to_copy.default]

    assert [n.meta["val"].dtype for n in casts] == [torch.bfloat16, torch.float32]


def test_gradients_that_are_not_wanted_are_left_out():
    from pullback.derive.recipes import Recipes
    from pullback.triton_codegen.primitives import kernel_parts

    captured = Recipes(torch.mul, "auto").general((draw(3), draw(3))).captured
    parts = kernel_parts(captured, "auto", (True, False))

    assert [one is None for one in parts.backward.output_node().args[0]] == [False, True]


def test_graphs_compute_what_the_program_computes():
    x, t = draw(5, 7), torch.tensor([0, 3, -100, 6, 2])
    parts = parts_of(lambda x, t: F.cross_entropy(x, t, label_smoothing=0.2), x, t)
    loss = F.cross_entropy(x, t, label_smoothing=0.2)
    (expected,) = torch.autograd.grad(loss, x)

    made = torch.fx.Interpreter(torch.fx.GraphModule({}, parts.forward)).run(x.detach(), t)
    backward = torch.fx.Interpreter(torch.fx.GraphModule({}, parts.backward))
    (got,) = backward.run(*made[1:], torch.tensor(1.0))

    torch.testing.assert_close(made[0], loss.detach())
    torch.testing.assert_close(got, expected)


def test_sizes_beside_class_indices_stay_free():
    parts = parts_of(F.cross_entropy, draw(4, 9), torch.arange(4))
    sizes = [size for node in parts.joint.inputs for size in node.meta["val"].shape]

    assert len({str(size) for size in sizes}) == 2
    assert all(size.node.expr.is_symbol for size in sizes)


def test_products_with_a_size_are_negated():
    parts = parts_of(lambda x: -x * x.shape[1] ** -0.5 + x.var(), draw(4, 9))

    assert aten.neg.default not in targets(parts.forward) | targets(parts.backward)


@pytest.mark.parametrize(
    ("program", "is_shift"),
    [
        (lambda x: torch.softmax(x, -1), True),
        (lambda x: torch.log_softmax(x, -1), True),
        (lambda x: torch.logsumexp(x, -1), True),
        (lambda x: torch.softmax(x, -1) * x.amax(-1, keepdim=True), False),
        (lambda x: (2 * x - x.amax(-1, keepdim=True)).exp(), False),
        (lambda x: x.amax(-1) + x.cos().sum(-1).log(), False),
        (lambda x: x.amax(-1) + 1.5, False),
    ],
    ids=(
        "softmax",
        "log softmax",
        "logsumexp",
        "also a factor",
        "of other numbers",
        "other sum",
        "a number",
    ),
)
def test_a_largest_number_is_a_shift_if_exponentials_carry_nan_on(program, is_shift):
    parts = parts_of(program, draw(4, 9))
    (largest,) = (n for n in parts.forward.nodes if n.target is aten.amax.default)

    assert largest.meta["is_shift"] is is_shift
