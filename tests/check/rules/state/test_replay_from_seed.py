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


class RunsAgain(Function):
    """Runs a part of a program without a graph, and again in backward."""

    @staticmethod
    def forward(ctx, part, x):
        ctx.part, ctx.state = part, torch.get_rng_state()
        ctx.save_for_backward(x)
        return part(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = ctx.part(x)
        return None, torch.autograd.grad(y, x, grad)[0]


class RunsAgainAlike(RunsAgain):
    @staticmethod
    def backward(ctx, grad):
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.state)
            return RunsAgain.backward(ctx, grad)


class ForwardAndAdjoint(Function):
    @staticmethod
    def forward(ctx, operator, adjoint, x):
        ctx.adjoint = adjoint
        return operator(x)

    @staticmethod
    def backward(ctx, grad):
        return None, None, ctx.adjoint(grad)


def flipped(x):
    return 2 * x.flip(-1)


SOUND = {
    "by state": (ByState, lambda: (normal(20),)),
    "a part with its state": (RunsAgainAlike, lambda: (torch.sin, normal(20))),
    "an operator and its adjoint": (ForwardAndAdjoint, lambda: (flipped, flipped, normal(20))),
}
PLANTED = {
    "a part without its state": (RunsAgain, lambda: (torch.sin, normal(20)), "gradient of `x`"),
    "a module without its state": (
        RunsAgain,
        lambda: (torch.nn.Tanh(), normal(20)),
        "gradient of `x`",
    ),
    "by seed": (BySeed, lambda: (normal(20),), "gradient of `x`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)
