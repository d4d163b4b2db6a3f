"""Fused ops written out, at NaN, infinities, zeros of both signs, kinks, and far out.

PyTorch's own kernel is the truth. The slopes of a few formulas are zero where the kernel's are just
above the smallest number of their dtype; numbers of that size are not among those drawn.
"""

import pytest
import torch

from pullback.graph.rewrite import rewrite
from tests.graph.graphs import run
from tests.graph.simplify.test_composites import CASES, RULES, fused_graph

NAN, INF = float("nan"), float("inf")
KINKS = (0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 20.0, -20.0)
FAR = (1e-12, 50.0, -50.0, 1e4, -1e4)
TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-4}  # some kernels hold constants in float32

# Sums over many numbers meet infinities, and lose digits, in another order than the kernel's.
SUMS = ("norm", "convolution")


def special(like, seed, dtype, values):
    """Numbers in the shape of `like`, most of them special."""
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(len(values), like.shape, generator=generator)
    smooth = torch.randn(like.shape, generator=generator, dtype=dtype)
    is_smooth = torch.rand(like.shape, generator=generator) < 0.25
    return torch.where(is_smooth, smooth, torch.tensor(values, dtype=dtype)[picks])


def special_row(name, row, seed, dtype):
    """The arguments of a case with special numbers in the place of the others."""
    is_sum = any(part in name for part in SUMS)
    values = (*KINKS, NAN) if is_sum else (*KINKS, *FAR, NAN, INF, -INF)
    made = []
    for place, arg in enumerate(row):
        if isinstance(arg, torch.Tensor) and arg.is_floating_point():
            arg = special(arg, 100 * seed + place, dtype, values)
        made.append(dtype if arg is torch.float64 else arg)
    if name == "log-sigmoid-backward":  # what forward hands over, made of the input
        made[2] = (-made[1].abs()).exp()
    return made


EACH = [(name, position) for name, rows in CASES.items() for position in range(len(rows))]


@pytest.mark.quick(50)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("name", "position"), EACH)
def test_formula_agrees_at_special_values(name, position, dtype):
    rows = [special_row(name, CASES[name][position], seed, dtype) for seed in range(8)]
    graph, _ = fused_graph(RULES[name], rows[0])

    step = rewrite(graph, (RULES[name],))

    assert step.applied[name] > 0
    for row in rows:
        tensors = [arg for arg in row if isinstance(arg, torch.Tensor)]
        torch.testing.assert_close(
            run(step.graph, *tensors),
            run(graph, *tensors),
            rtol=TOLERANCE[dtype],
            atol=1e-6 if dtype == torch.float32 else 1e-12,
            equal_nan=True,
        )


def test_loss_of_ignored_samples_has_no_gradient():
    x, target = torch.randn(4, 3, dtype=torch.float64), torch.full((4,), -100)
    count = torch.zeros((), dtype=torch.float64)
    row = (torch.ones((), dtype=torch.float64), x, target, None, 1, -100, count)
    graph, tensors = fused_graph(RULES["nll-loss-backward"], row)

    (gradient,) = run(rewrite(graph, (RULES["nll-loss-backward"],)).graph, *tensors)

    assert gradient.tolist() == torch.zeros(4, 3).tolist()
