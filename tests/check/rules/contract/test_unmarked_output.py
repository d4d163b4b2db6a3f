"""Sound functions pass `unmarked-output`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from pullback.check.rules.contract.unmarked_output import check
from tests.check.subjects import made, normal, rule_tests

X = normal(3, 5)


class Smallest(Function):
    @staticmethod
    def forward(ctx, x):
        values, index = x.min(-1)
        ctx.save_for_backward(index)
        ctx.mark_non_differentiable(index)
        return values, index

    @staticmethod
    def backward(ctx, g, _):
        (index,) = ctx.saved_tensors
        return torch.zeros(3, 5, dtype=g.dtype).scatter(-1, index[:, None], g[:, None])


class AsFloat(Smallest):
    @staticmethod
    def forward(ctx, x):
        values, index = x.min(-1)
        ctx.save_for_backward(index)
        return values, index.to(x.dtype)


class Count(Function):
    @staticmethod
    def forward(ctx, x):
        return x.exp().sum(), (x > 0).sum().to(x.dtype)

    @staticmethod
    def backward(ctx, g, _):
        return g.expand(3, 5)


class Share(Function):
    """The share of entries above zero: no whole number, and no input moves it either."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.relu(), (x > 0).to(x.dtype).mean(-1)

    @staticmethod
    def backward(ctx, g, _):
        (x,) = ctx.saved_tensors
        return g * (x > 0)


class Unseen(Function):
    """The second output has a gradient that autograd cannot see."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2, torch.from_numpy(x.detach().numpy() ** 2)

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        return 2 * g + 2 * x * h


class Rounded(Function):
    """PyTorch too gives `round` a gradient of zero."""

    @staticmethod
    def forward(ctx, x):
        return x - x.round(), x.round()

    @staticmethod
    def backward(ctx, g, _):
        return g


class Ones(Function):
    """Whole numbers by chance."""

    @staticmethod
    def forward(ctx, x):
        return x * 2, x / x

    @staticmethod
    def backward(ctx, g, _):
        return 2 * g


SOUND = {
    "integers": (Smallest, (X,)),
    "rounded": (Rounded, (X,)),
    "outside of PyTorch": (Unseen, (X,)),
    "by chance": (Ones, (X,)),
    "whole inputs": (
        made(lambda x: (x * 2, x * 3), lambda g, h, x: 2 * g + 3 * h),
        (X.round().detach(),),
    ),
}

PLANTED = {
    "index": (AsFloat, (X,), "output 1"),
    "count": (Count, (X,), "output 1"),
    "share": (Share, (X,), "output 1"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
