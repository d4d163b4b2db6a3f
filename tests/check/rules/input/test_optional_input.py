"""Sound functions pass `optional-input`; planted faults are caught, and named."""

from torch.autograd import Function

from pullback.check.rules.input.optional_input import check
from tests.check.subjects import normal, rule_tests


class Both(Function):
    """Serves a bias that is given and one that is not."""

    @staticmethod
    def forward(ctx, x, bias=None):
        ctx.has_bias = bias is not None
        return 2 * x if bias is None else 2 * x + bias

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad, grad.sum_to_size(grad.shape[-1:]) if ctx.has_bias else None


class Forgets(Function):
    """Has no gradient for a bias."""

    @staticmethod
    def forward(ctx, x, bias=None):
        return 2 * x if bias is None else 2 * x + bias

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad, None


class Crashes(Function):
    """Needs the mask in backward."""

    @staticmethod
    def forward(ctx, x, mask=None):
        ctx.save_for_backward(mask)
        return 1 * x if mask is None else x * mask

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return grad * mask, None


class Constant(Function):
    """Takes a mask that has no gradient."""

    @staticmethod
    def forward(ctx, x, mask=None):
        ctx.save_for_backward(mask)
        return 1 * x if mask is None else x * mask

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return grad if mask is None else grad * mask, None


SOUND = {
    "left out": (Both, lambda: (normal(4, 3),)),
    "none": (Both, lambda: (normal(4, 3), None)),
    "given": (Both, lambda: (normal(4, 3), normal(3))),
    "constant": (Constant, lambda: (normal(4, 3), None)),
}
PLANTED = {
    "forgets": (Forgets, lambda: (normal(4, 3), None), "gradient of `bias`"),
    "crashes": (Crashes, lambda: (normal(4, 3), normal(3).detach()), "`mask` as None"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)
