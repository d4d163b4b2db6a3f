"""Sound functions pass `wrong-at-argument`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from tests.check.subjects import check_of, normal, rule_tests

check = check_of("wrong-at-argument")


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


def mean(x, mask):
    """The mean over the kept entries."""
    return (x * mask).sum(-1) / mask.sum(-1)


def args():
    """Rows, and a mask that keeps everything."""
    return normal(3, 4), torch.ones(3, 4, dtype=torch.float64)


SOUND = {
    "counted": (
        made(mean, lambda x, m, g: ((g / m.sum(-1))[:, None] * m, None)),
        args,
    ),
    "power": (
        made(lambda x, n: x**n, lambda x, n, g: (n * x ** (n - 1) * g, None)),
        lambda: (normal(4), 3),
    ),
}
PLANTED = {
    "switched off": (
        made(lambda x, eps: x.sin() + eps * x * x, lambda x, eps, g: (g * x.cos(), None)),
        lambda: (normal(4), 0.0),
        "gradient of `args[0]`",
    ),
    "length": (
        made(mean, lambda x, m, g: ((g / m.shape[-1])[:, None] * m, None)),
        args,
        "gradient of `args[0]`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
