"""Numbers tell a smooth value from a mask, and a whole history from a part of one."""

import pytest
import torch

from pullback.function.evidence import contradicts, moves_smoothly


def leaf(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype, requires_grad=True)


SMOOTH = {
    "exp": lambda x: x.detach().exp(),
    "of one element": lambda x: x.detach()[0] * torch.ones(3, dtype=x.dtype),
    "sum": lambda x: x.detach().sum(),
    "in low precision": lambda x: x.detach().bfloat16().sin(),
}
STEPS = {
    "constant": torch.ones_like,
    "mask": lambda x: (x > 0).to(x.dtype),
    "mask at a threshold": lambda x: (x > 1).to(x.dtype),
    "sign": lambda x: x.detach().sign(),
    "number": lambda x: torch.full((), 3.0),
}


@pytest.mark.parametrize("value", [leaf(1.0, -2.0, 0.3), leaf(0.0, 0.0), leaf(1e-4)])
@pytest.mark.parametrize("compute", SMOOTH.values(), ids=SMOOTH)
def test_smooth_value_moves(compute, value):
    assert moves_smoothly(lambda row: [compute(row[0])], [value], [0]) == [0]


@pytest.mark.parametrize("value", [leaf(1.0, -2.0, 0.3), leaf(0.0, 0.0), leaf(1e-4)])
@pytest.mark.parametrize("compute", STEPS.values(), ids=STEPS)
def test_step_does_not_move(compute, value):
    assert moves_smoothly(lambda row: [compute(row[0])], [value], [0]) == []


def test_only_asked_values_are_judged():
    def run(row):
        return [row[0].detach() * 2, torch.ones(1), row[0].detach() * 3]

    assert moves_smoothly(run, [leaf(1.0)], [0, 1]) == [0]
    assert moves_smoothly(run, [leaf(1.0)], [1]) == []
    assert moves_smoothly(run, [leaf(1.0)], [1, 2]) == [2]


WHOLE = {
    "exp": lambda x: x.exp(),
    "relu": lambda x: x.relu(),
    "norm": lambda x: x / (1 + x.norm()),
    "steep": lambda x: (100 * x).sin(),
    "constant part": lambda x: x * torch.ones_like(x),
    "abs": lambda x: x.abs(),
}
PART = {
    "factor": lambda x: x * x.detach().exp(),
    "term": lambda x: x + 2 * x.detach(),
    "through": lambda x: x + (x.detach() ** 2 - x.detach()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("compute", WHOLE.values(), ids=WHOLE)
def test_whole_history_is_believed(compute, dtype):
    x = leaf(1.0, -2.0, 0.3, dtype=dtype)

    assert contradicts(lambda row: [compute(row[0])], [x], [compute(x)], [0]) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("compute", PART.values(), ids=PART)
def test_part_of_history_is_caught(compute, dtype):
    x = leaf(1.0, -2.0, 0.3, dtype=dtype)

    assert contradicts(lambda row: [compute(row[0])], [x], [compute(x)], [0]) == [0]


def test_complex_history_is_believed():
    x = torch.tensor([1 + 2j, -0.5j], dtype=torch.complex128, requires_grad=True)

    def run(row):
        return [row[0] * row[0]]

    assert contradicts(run, [x], run([x]), [0]) == []
