"""Sound functions pass `output-cut-at-size`; planted faults are caught, and named."""

from torch.autograd import Function

from pullback.check.rules.contract.output_cut_at_size import check
from tests.check.subjects import normal, rule_tests


class Always(Function):
    """Has a gradient at every size."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].cos()


class Small(Function):
    """Has a gradient at small sizes."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = x.sin()
        if x.numel() > 64:
            ctx.mark_non_differentiable(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].cos()


SOUND = {
    "always": (Always, lambda: (normal(4, 3),)),
}
PLANTED = {
    "small": (Small, lambda: (normal(4, 3),), "output 0"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)
