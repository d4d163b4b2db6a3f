"""Sound functions pass `kept-cotangent`; planted faults are caught, and named."""

from typing import ClassVar

from torch.autograd import Function

from pullback.check.rules.memory.kept_cotangent import check
from tests.check.subjects import normal, rule_tests


class Notes(Function):
    """Keeps a number."""

    seen: ClassVar = []

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        Notes.seen.append(float(grad.norm()))
        return 2 * grad


class Last(Function):
    """Keeps the last one only."""

    seen = None

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        Last.seen = grad
        return 2 * grad


class Logs(Function):
    """Keeps every one."""

    seen: ClassVar = []

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        Logs.seen.append(grad)
        return 2 * grad


SOUND = {
    "notes": (Notes, lambda: (normal(4, 3),)),
    "last": (Last, lambda: (normal(4, 3),)),
}
PLANTED = {
    "logs": (Logs, lambda: (normal(4, 3),), "the cotangents"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)
