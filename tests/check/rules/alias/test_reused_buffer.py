"""Sound functions pass `reused-buffer`; planted faults are caught, and named."""

from typing import ClassVar

import torch
from torch.autograd import Function

from pullback.check.rules.alias.reused_buffer import check
from tests.check.subjects import made, normal, rule_tests


class Buffered(Function):
    """Hands out one buffer in every call."""

    out = None

    @staticmethod
    def forward(ctx, x):
        if Buffered.out is None or Buffered.out.shape != x.shape:
            Buffered.out = torch.empty_like(x)
        return Buffered.out.copy_(x * 2).detach()

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Static(Function):
    """Returns one gradient buffer from every backward."""

    out: ClassVar = {}

    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, grad):
        kept = Static.out.setdefault(grad.shape, torch.empty_like(grad))
        return kept.copy_(3 * grad).detach()


SOUND = {
    "new": (made(lambda x: 2 * x, lambda g, x: 2 * g), lambda: (normal(4, 3),)),
    "view": (made(lambda x: x.view_as(x), lambda g, x: g), lambda: (normal(4, 3),)),
}
PLANTED = {
    "output": (Buffered, lambda: (normal(4, 3),), "output 0"),
    "gradient": (Static, lambda: (normal(4, 3),), "gradient of `x`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)
