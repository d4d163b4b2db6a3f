"""Sound functions pass `same-tensor-in-place`; planted faults are caught, and named."""

from torch.autograd import Function

from pullback.check.rules.shape.same_tensor_in_place import check
from tests.check.subjects import normal, rule_tests


class Copies(Function):
    """Saves what both were."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a.clone(), b.clone())
        a.mul_(b)
        ctx.mark_dirty(a)
        return a

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad * b, grad * a


class Overwrites(Function):
    """Saves a tensor that it may write into."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a.clone(), b.clone() if a is not b else b.detach())
        a.mul_(b)
        ctx.mark_dirty(a)
        return a

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad * b, grad * a


SOUND = {
    "copies": (Copies, lambda: (normal(4, 3), normal(4, 3, seed=1))),
}
PLANTED = {
    "overwrites": (Overwrites, lambda: (normal(4, 3), normal(4, 3, seed=1)), "both `a` and `b`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)
