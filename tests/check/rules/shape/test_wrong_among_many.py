"""Sound functions pass `wrong-among-many`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from tests.check.subjects import check_of, normal, rule_tests

check = check_of("wrong-among-many")


def made(forward, backward):
    """A Function of these two, whose backward gets the inputs and the cotangent."""

    class Made(Function):
        @staticmethod
        def forward(ctx, *args):
            ctx.args = [a for a in args if not isinstance(a, torch.Tensor)]
            ctx.save_for_backward(*(a for a in args if isinstance(a, torch.Tensor)))
            return forward(*args)

        @staticmethod
        def backward(ctx, grad):
            return backward(*ctx.saved_tensors, *ctx.args, grad)

    return Made


def one_wrong(x, grad):
    """One entry beyond the first 70,000 with the wrong sign."""
    out = 2 * x * grad
    if out.numel() > 70_001:
        out.view(-1)[70_000] *= -1
    return out


SOUND = {
    "square": (made(lambda x: x * x, lambda x, g: 2 * x * g), lambda: (normal(4, 5),)),
    "product": (
        made(lambda a, b: a * b, lambda a, b, g: (g * b, g * a)),
        lambda: (normal(4, 5), normal(4, 5, seed=1)),
    ),
}
PLANTED = {"sign": (made(lambda x: x * x, one_wrong), lambda: (normal(4, 5),), "1 of ")}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_gradcheck_alone_would_miss_it():
    target, args, _ = PLANTED["sign"]

    assert torch.autograd.gradcheck(target.apply, args())
