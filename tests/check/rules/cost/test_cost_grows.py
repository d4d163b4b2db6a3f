"""Sound functions pass `cost-grows`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from pullback.check.rules.cost.cost_grows import check
from tests.check.functions import Square
from tests.check.subjects import normal, rule_tests


class Cumulative(Function):
    @staticmethod
    def forward(ctx, x):
        return x.cumsum(0)

    @staticmethod
    def backward(ctx, g):
        return g.flip(0).cumsum(0).flip(0)


class Matmul(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g @ b.t(), a.t() @ g


class Scan(Cumulative):
    """Steps along one dimension, each over whole rows."""

    @staticmethod
    def backward(ctx, g):
        total, parts = torch.zeros_like(g[:1]), []
        for k in range(len(g) - 1, -1, -1):
            total = total + g[k : k + 1]
            parts.insert(0, total)
        return torch.cat(parts)


class Jacobian(Cumulative):
    @staticmethod
    def backward(ctx, g):
        return torch.ones(len(g), len(g), dtype=g.dtype).tril().t() @ g


class Entries(Square):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        grad = torch.zeros_like(x).reshape(-1)
        for i in range(x.numel()):
            grad[i] = 2 * x.reshape(-1)[i] * g.reshape(-1)[i]
        return grad.view_as(x)


@torch.library.custom_op("tests_cost_grows::gram", mutates_args=())
def gram(x: torch.Tensor) -> torch.Tensor:
    return x.mT @ x


gram.register_autograd(
    lambda ctx, g: ctx.saved_tensors[0] @ (g + g.mT),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


SOUND = {
    "work inside an op": (lambda x: gram(x), lambda: (normal(4, 3),)),
    "square": (Square, lambda: (normal(8, 3),)),
    "cumulative": (Cumulative, lambda: (normal(8, 3),)),
    "matmul": (Matmul, lambda: (normal(3, 4), normal(4, 5, seed=1))),
    "scan": (Scan, lambda: (normal(8, 3),)),
}
PLANTED = {
    "jacobian": (Jacobian, lambda: (normal(8, 3),), "numbers written by backward"),
    "entries": (Entries, lambda: (normal(8, 3),), "operators run by backward"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
