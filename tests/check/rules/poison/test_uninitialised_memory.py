"""Sound functions pass `uninitialised-memory`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from pullback.check.rules.poison.uninitialised_memory import check
from tests.check.functions import Square
from tests.check.subjects import findings, normal, rule_tests


class Written(Function):
    """Every entry of the fresh memory is written."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        out.copy_(x)
        return out.mul_(2)

    @staticmethod
    def backward(ctx, g):
        grad = torch.empty_like(g)
        grad[:] = 2 * g
        return grad


class Tail(Function):
    """The rows after the last whole pair are never written."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        grad = torch.empty_like(g)
        whole = len(g) // 2 * 2
        grad[:whole] = 2 * g[:whole]
        return grad


class Accumulates(Function):
    @staticmethod
    def forward(ctx, x, bias):
        return x + bias

    @staticmethod
    def backward(ctx, g):
        total = torch.empty_like(g[0])
        for row in g:
            total += row
        return g, total


class Scratch(Function):
    """Forward gives a column that it never wrote."""

    @staticmethod
    def forward(ctx, x):
        out = x.new_empty(x.shape)
        out[:, 1:] = x[:, 1:]
        return out

    @staticmethod
    def backward(ctx, g):
        return g * torch.tensor([0.0, *[1.0] * (g.shape[1] - 1)], dtype=g.dtype)


class Lengths(Function):
    """Rows that are one short keep an entry that nobody wrote."""

    @staticmethod
    def forward(ctx, x, lengths):
        ctx.lengths, ctx.shape = lengths, x.shape
        return torch.stack([row[:n].sum() for row, n in zip(x, lengths, strict=True)])

    @staticmethod
    def backward(ctx, g):
        grad = torch.empty(ctx.shape, dtype=g.dtype)
        for i, n in enumerate(ctx.lengths):
            grad[i, :n] = g[i]
            if n != ctx.shape[1] - 1:
                grad[i, n:] = 0
        return grad, None


class Reordered(Function):
    """An order names each row once, so that each is written."""

    @staticmethod
    def forward(ctx, x, order):
        ctx.save_for_backward(order)
        return x[order]

    @staticmethod
    def backward(ctx, g):
        (order,) = ctx.saved_tensors
        grad = torch.empty_like(g)
        grad[order] = g
        return grad, None


SOUND = {
    "reordered": (Reordered, lambda: (normal(4, 3), torch.tensor([2, 0, 3, 1]))),
    "square": (Square, lambda: (normal(5),)),
    "written": (Written, lambda: (normal(4, 3),)),
}
PLANTED = {
    "tail at an odd size": (Tail, lambda: (normal(4, 3),), "gradient of `x`"),
    "accumulated": (
        Accumulates,
        lambda: (normal(3, 4), normal(4, seed=1)),
        "gradient of `bias`",
    ),
    "output": (Scratch, lambda: (normal(3, 4),), "output 0"),
    "lengths": (Lengths, lambda: (normal(3, 5), [5, 2, 3]), "gradient of `x`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_switches_of_torch_are_as_before():
    before = torch.are_deterministic_algorithms_enabled()
    findings(check, Tail, normal(4, 3))

    assert torch.are_deterministic_algorithms_enabled() == before
