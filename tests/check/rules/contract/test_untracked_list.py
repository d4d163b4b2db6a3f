"""Sound functions pass `untracked-list`; planted faults are caught, and named."""

from torch.autograd import Function

from pullback.check.rules.contract.untracked_list import check
from tests.check.subjects import made, normal, rule_tests


class Listed(Function):
    """Takes its tensors in a list."""

    @staticmethod
    def forward(ctx, xs):
        ctx.count = len(xs)
        return 2 * sum(xs)

    @staticmethod
    def backward(ctx, grad):
        return [2 * grad] * ctx.count


class Scaled(Function):
    """Has constants in a list."""

    @staticmethod
    def forward(ctx, x, scales):
        ctx.scales = scales
        return x * sum(scales)

    @staticmethod
    def backward(ctx, grad):
        return grad * sum(ctx.scales), None


class WithoutBackward(Function):
    """Takes its tensors in a list, and is not to be differentiated."""

    @staticmethod
    def forward(ctx, xs):
        return 2 * sum(xs)


SOUND = {
    "without-backward": (WithoutBackward, lambda: ([normal(3), normal(3)],)),
    "constants": (Scaled, lambda: (normal(3), [normal(3).detach()])),
    "direct": (made(lambda a, b: a + b, lambda g, a, b: (g, g)), lambda: (normal(3), normal(3))),
}
PLANTED = {
    "listed": (Listed, lambda: ([normal(3), normal(3)],), "`xs`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)
