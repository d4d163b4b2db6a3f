"""Sound functions pass `wrong-at-argument`; planted faults are caught, and named."""

import torch

from tests.check.subjects import check_of, normal, rule_tests, variadic

check = check_of("wrong-at-argument")


def mean(x, mask):
    """The mean over the kept entries."""
    return (x * mask).sum(-1) / mask.sum(-1)


def args():
    """Rows, and a mask that keeps everything."""
    return normal(3, 4), torch.ones(3, 4, dtype=torch.float64)


class Softmax(torch.autograd.Function):
    """Right along the last dimension, which is its default, and along no other."""

    @staticmethod
    def forward(ctx, x, dim=-1):
        y = x.softmax(dim)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True)), None


class Scaled(torch.autograd.Function):
    """Right for one of the two words that its forward knows."""

    @staticmethod
    def forward(ctx, x, norm="backward"):
        if norm not in ("backward", "ortho"):
            raise ValueError(norm)
        return x if norm == "backward" else 2 * x

    @staticmethod
    def backward(ctx, g):
        return g, None


class Powered(torch.autograd.Function):
    """Right for every power, also those that the example leaves to the default."""

    @staticmethod
    def forward(ctx, x, power=2, mode="plain"):
        ctx.save_for_backward(x)
        ctx.factor, ctx.power = (2.0 if mode == "doubled" else 1.0), power
        return ctx.factor * x**power

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.factor * ctx.power * x ** (ctx.power - 1), None, None


SOUND = {
    "defaults": (Powered, lambda: (normal(4).detach().abs() + 0.5,)),
    "counted": (
        variadic(mean, lambda x, m, g: ((g / m.sum(-1))[:, None] * m, None)),
        args,
    ),
    "power": (
        variadic(lambda x, n: x**n, lambda x, n, g: (n * x ** (n - 1) * g, None)),
        lambda: (normal(4), 3),
    ),
}
PLANTED = {
    "default that the example leaves out": (Softmax, lambda: (normal(3, 4),), "gradient of `x`"),
    "word of forward": (Scaled, lambda: (normal(4),), "gradient of `x`"),
    "switched off": (
        variadic(lambda x, eps: x.sin() + eps * x * x, lambda x, eps, g: (g * x.cos(), None)),
        lambda: (normal(4), 0.0),
        "gradient of `args[0]`",
    ),
    "length": (
        variadic(mean, lambda x, m, g: ((g / m.shape[-1])[:, None] * m, None)),
        args,
        "gradient of `args[0]`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
