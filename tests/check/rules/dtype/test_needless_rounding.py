"""Sound functions pass `needless-rounding`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from tests.check.subjects import check_of, normal, rule_tests

check = check_of("needless-rounding")


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
    "square": (made(lambda x: x * x, lambda x, g: 2 * x * g), lambda: (normal(4, 5),)),
    "mask": (made(lambda x: x.clamp(min=0), lambda x, g: g * (x > 0)), lambda: (normal(4, 5),)),
}
PLANTED = {
    "float32": (
        made(torch.sin, lambda x, g: (g.float() * x.float().cos()).to(x.dtype)),
        lambda: (normal(4, 5),),
        "gradient of `args[0]`",
    ),
    "bfloat16": (
        made(
            torch.sin,
            lambda x, g: (g * x.cos()).bfloat16().half() if x.dtype == torch.half else g * x.cos(),
        ),
        lambda: (normal(4, 5),),
        "gradient of `args[0]`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_gradcheck_alone_would_miss_it():
    target, args, _ = PLANTED["float32"]

    assert torch.autograd.gradcheck(target.apply, args())
