"""Sound functions pass `func-differs`; planted faults are caught, and named."""

from torch.autograd import Function

from pullback.check.rules.compile.func_differs import check
from tests.check.subjects import normal, rule_tests, skips


class Sine(Function):
    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


class Old(Function):
    """In the style that `torch.func` refuses."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class ByIdentity(Sine):
    """Trusts that setup_context sees the very tensor that forward saw."""

    seen = None

    @staticmethod
    def forward(x):
        ByIdentity.seen = x
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = 1.0 if inputs[0] is ByIdentity.seen else 2.0
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return ctx.factor * g * x.cos()


SOUND = {"sine": (Sine, lambda: (normal(5),)), "old style": (Old, lambda: (normal(5),))}
PLANTED = {"identity": (ByIdentity, lambda: (normal(5),), "gradient of `x`")}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_old_style_is_a_skip():
    told = [skip.reason for skip in skips(check, Old, normal(5))]

    assert told == ["torch.func takes no Function without setup_context"]
