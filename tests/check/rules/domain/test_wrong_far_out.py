"""Sound functions pass `wrong-far-out`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from tests.check.subjects import check_of, normal, rule_tests

check = check_of("wrong-far-out")


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


def saturated(q, k, v, g):
    """The gradients of attention by the row sums of `g * out`, whose digits cancel far out."""
    s = q @ k.mT / 2
    p = torch.exp(s - s.logsumexp(-1, keepdim=True))
    ds = p * (g @ v.mT - (g * (p @ v)).sum(-1, keepdim=True)) / 2
    return ds @ k, ds.mT @ q, p.mT @ g


SOUND = {
    "attention": (
        made(lambda q, k, v: (q @ k.mT / 2).softmax(-1) @ v, saturated),
        lambda: (normal(2, 5, 4), normal(2, 5, 4, seed=1), normal(2, 5, 4, seed=2)),
    ),
    "square": (made(lambda x: x * x, lambda x, g: 2 * x * g), lambda: (normal(4, 5),)),
    "clipped": (
        made(lambda x: x.clamp(0, 6), lambda x, g: g * ((x > 0) & (x < 6))),
        lambda: (normal(4, 5),),
    ),
}
PLANTED = {
    "no upper bound": (
        made(lambda x: x.clamp(0, 6), lambda x, g: g * (x > 0)),
        lambda: (normal(4, 5),),
        "gradient of `args[0]`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_gradcheck_alone_would_miss_it():
    target, args, _ = PLANTED["no upper bound"]

    assert torch.autograd.gradcheck(target.apply, args())
