"""Sound functions pass `wrong-at-negative`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from tests.check.subjects import check_of, normal, rule_tests

check = check_of("wrong-at-negative")


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


def positive():
    """Positive numbers."""
    return (normal(4, 5).detach().abs().add(0.5).requires_grad_(),)


SOUND = {
    "labels of zero and one": (
        made(
            lambda x, t: torch.nn.functional.softplus(torch.where(t > 0.5, -x, x)),
            lambda x, t, g: (-g * (2 * t - 1) * torch.sigmoid(-(2 * t - 1) * x), None),
        ),
        lambda: (normal(4, 3), (normal(4, 3, seed=1) > 0).double()),
    ),
    "square": (made(lambda x: x * x, lambda x, g: 2 * x * g), lambda: (normal(4, 5),)),
    "log of size": (made(lambda x: x.abs().log(), lambda x, g: g / x), positive),
}
PLANTED = {
    "sign lost": (
        made(lambda x: x.abs().log(), lambda x, g: g / x.abs()),
        positive,
        "gradient of `args[0]`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_gradcheck_alone_would_miss_it():
    target, args, _ = PLANTED["sign lost"]

    assert torch.autograd.gradcheck(target.apply, args())
