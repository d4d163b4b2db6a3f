"""Sound functions pass `wrong-at-ties`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from tests.check.subjects import check_of, normal, rule_tests

check = check_of("wrong-at-ties")


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


def shared(x, grad):
    """Each of the tied elements gets its share."""
    tied = x == x.amax(-1, keepdim=True)
    return grad[..., None] * tied / tied.sum(-1, keepdim=True)


SOUND = {
    "shared": (made(lambda x: x.amax(-1), shared), lambda: (normal(4, 5),)),
    "first": (
        made(
            torch.maximum,
            lambda a, b, g: (torch.where(a >= b, g, 0.0), torch.where(a >= b, 0.0, g)),
        ),
        lambda: (normal(4, 5), normal(4, 5, seed=1)),
    ),
}
PLANTED = {
    "everyone": (
        made(lambda x: x.amax(-1), lambda x, g: g[..., None] * (x == x.amax(-1, keepdim=True))),
        lambda: (normal(4, 5),),
        "gradient of `args[0]`",
    ),
    "nobody": (
        made(torch.minimum, lambda a, b, g: (g * (a < b), g * (b < a))),
        lambda: (normal(4, 5), normal(4, 5, seed=1)),
        "gradient of `args[0]`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_gradcheck_alone_would_miss_it():
    target, args, _ = PLANTED["everyone"]

    assert torch.autograd.gradcheck(target.apply, args())
