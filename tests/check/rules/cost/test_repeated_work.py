"""Sound functions pass `repeated-work`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from pullback.check.rules.cost.repeated_work import check
from tests.check.subjects import normal, rule_tests


class Once(Function):
    """One softmax."""

    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return y * (grad - (grad * y).sum(-1, keepdim=True))


class Rows(Function):
    """The same operator on other tensors."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sin(x[0]) + torch.sin(x[1])

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.stack([grad * x[0].cos(), grad * x[1].cos()])


class Twice(Function):
    """Two of it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(torch.softmax(x, -1))
        return torch.softmax(x, -1)

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return y * (grad - (grad * y).sum(-1, keepdim=True))


class Backwards(Function):
    """One in forward, and as many in backward as are in its formula."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.softmax(x, -1)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        dot = (grad * torch.softmax(x, -1)).sum(-1, keepdim=True)
        return torch.softmax(x, -1) * grad - torch.softmax(x, -1) * dot


SOUND = {
    "once": (Once, lambda: (normal(4, 3),)),
    "rows": (Rows, lambda: (normal(2, 3),)),
}
PLANTED = {
    "three times in backward": (Backwards, lambda: (normal(4, 3),), "`softmax` in backward"),
    "twice": (Twice, lambda: (normal(4, 3),), "`softmax` in forward"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)
