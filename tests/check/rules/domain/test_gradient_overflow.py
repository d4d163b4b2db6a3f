"""Sound functions pass `gradient-overflow`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from tests.check.subjects import check_of, normal, rule_tests

check = check_of("gradient-overflow")


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
    "normalised": (
        made(
            lambda x: x / ((x * x).sum(-1, keepdim=True) + 1e-6).sqrt(),
            lambda x, g: (
                g / ((x * x).sum(-1, keepdim=True) + 1e-6).sqrt()
                - x
                * (g * x).sum(-1, keepdim=True)
                / ((x * x).sum(-1, keepdim=True) + 1e-6).sqrt() ** 3
            ),
        ),
        lambda: (normal(4, 5),),
    ),
    "square": (made(lambda x: x * x, lambda x, g: 2 * x * g), lambda: (normal(4, 5),)),
    "softplus": (
        made(torch.nn.functional.softplus, lambda x, g: g * x.sigmoid()),
        lambda: (normal(4, 5, dtype=torch.float32),),
    ),
}
PLANTED = {
    "inf over inf": (
        made(torch.nn.functional.softplus, lambda x, g: g * x.exp() / (1 + x.exp())),
        lambda: (normal(4, 5),),
        "gradient of `args[0]`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_gradcheck_alone_would_miss_it():
    target, args, _ = PLANTED["inf over inf"]

    assert torch.autograd.gradcheck(target.apply, args())
