"""Sound functions pass `gradient-underflow`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from tests.check.subjects import check_of, normal, rule_tests

check = check_of("gradient-underflow")


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


SOUND = {
    "ratio": (
        made(lambda a, b: a / b, lambda a, b, g: (g / b, -g * a / b**2)),
        lambda: (normal(4, 5), normal(4, 5, seed=1)),
    ),
    "square": (made(lambda x: x * x, lambda x, g: 2 * x * g), lambda: (normal(4, 5),)),
    "sign": (made(torch.abs, lambda x, g: g * x.sign()), lambda: (normal(4, 5),)),
}
PLANTED = {
    "square in the denominator": (
        made(torch.abs, lambda x, g: g * x * x.abs() / (x * x)),
        lambda: (normal(4, 5),),
        "gradient of `args[0]`",
    ),
    "quotient of a logarithm": (
        made(torch.log, lambda x, g: g * x / (x * x)),
        lambda: ((normal(4, 5).detach().abs() + 0.1).float().requires_grad_(),),
        "gradient of `args[0]`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_gradcheck_alone_would_miss_it():
    target, args, _ = PLANTED["square in the denominator"]

    assert torch.autograd.gradcheck(target.apply, args())
