"""Sound functions pass `replay-from-seed`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from tests.check.subjects import check_of, normal, rule_tests

check = check_of("replay-from-seed")


class ByState(Function):
    """Draws again from where forward began."""

    @staticmethod
    def forward(ctx, x):
        ctx.state = torch.get_rng_state()
        return x * (torch.rand_like(x) > 0.5)

    @staticmethod
    def backward(ctx, grad):
        generator = torch.Generator()
        generator.set_state(ctx.state)
        return grad * (torch.rand(grad.shape, generator=generator, dtype=grad.dtype) > 0.5)


class BySeed(Function):
    """Draws again from where the program began."""

    @staticmethod
    def forward(ctx, x):
        ctx.seed = torch.initial_seed()
        return x * (torch.rand_like(x) > 0.5)

    @staticmethod
    def backward(ctx, grad):
        generator = torch.Generator().manual_seed(ctx.seed)
        return grad * (torch.rand(grad.shape, generator=generator, dtype=grad.dtype) > 0.5)


SOUND = {
    "by state": (ByState, lambda: (normal(20),)),
}
PLANTED = {
    "by seed": (BySeed, lambda: (normal(20),), "gradient of `x`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)
