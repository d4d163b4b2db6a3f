"""Sound functions pass `reseeded-generator`; planted faults are caught, and named."""

import numpy as np
import torch
from torch.autograd import Function

from tests.check.subjects import check_of, normal, rule_tests

check = check_of("reseeded-generator")


class Own(Function):
    """Draws from a generator of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) > 0.5
        return x * ctx.mask

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.mask


class Draws(Function):
    """Takes the next numbers of all."""

    @staticmethod
    def forward(ctx, x):
        ctx.mask = torch.rand_like(x) > 0.5
        return x * ctx.mask

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.mask


class Resets(Function):
    """Gives everybody the same numbers."""

    @staticmethod
    def forward(ctx, x):
        torch.manual_seed(0)
        ctx.mask = torch.rand_like(x) > 0.5
        return x * ctx.mask

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.mask


class ResetsLate(Function):
    """Gives everybody the same numbers, from backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        torch.manual_seed(0)
        return grad * ctx.saved_tensors[0].cos()


class ResetsNumpy(Function):
    """Gives everybody NumPy's same numbers."""

    @staticmethod
    def forward(ctx, x):
        np.random.seed(0)
        ctx.scale = float(np.random.rand())
        return x * ctx.scale

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale


class Replays(Function):
    """Goes back to the numbers of forward, and leaves everybody there."""

    @staticmethod
    def forward(ctx, x):
        ctx.state = torch.get_rng_state()
        return x * (torch.rand_like(x) > 0.5)

    @staticmethod
    def backward(ctx, grad):
        torch.set_rng_state(ctx.state)
        return grad * (torch.rand_like(grad) > 0.5)


class ReplaysApart(Replays):
    """Goes back to the numbers of forward, and puts the others back after that."""

    @staticmethod
    def backward(ctx, grad):
        with torch.random.fork_rng(devices=[]):
            return Replays.backward(ctx, grad)


SOUND = {
    "replays apart": (ReplaysApart, lambda: (normal(4, 3),)),
    "own": (Own, lambda: (normal(4, 3),)),
    "draws": (Draws, lambda: (normal(4, 3),)),
}
PLANTED = {
    "numpy": (ResetsNumpy, lambda: (normal(4, 3),), "forward: the generator of NumPy"),
    "forward": (Resets, lambda: (normal(4, 3),), "forward"),
    "replays": (Replays, lambda: (normal(4, 3),), "backward"),
    "backward": (ResetsLate, lambda: (normal(4, 3),), "backward"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)
