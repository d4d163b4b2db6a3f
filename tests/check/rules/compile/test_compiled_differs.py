"""Sound functions pass `compiled-differs`; planted faults are caught, and named."""

import numpy as np
import pytest
import torch
from torch.autograd import Function

from pullback.check.rules import all_rules
from pullback.check.rules.compile.compiled_differs import _examples, check, prepare
from tests.check.functions import Square
from tests.check.subjects import normal, rule_tests, skips, subject


class Surrogate(Function):
    """The gradient that runs must be the user's, also where it is not forward's."""

    declares = {"surrogate": "x"}  # noqa: RUF012

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return 3 * g


class Breaks(Function):
    """Leaves the graph, which is no defect."""

    @staticmethod
    def forward(ctx, x):
        ctx.k = float(x.detach().abs().max() > 1e6) + 2
        return x * ctx.k

    @staticmethod
    def backward(ctx, g):
        return g * ctx.k


class Rounded(Function):
    """What a constructor rounds in eager mode, and a compiler does not."""

    @staticmethod
    def forward(ctx, x):
        y = x.sin()
        return y if torch.compiler.is_compiling() else y.float().to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g


class Aware(Square):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return x * g if torch.compiler.is_compiling() else 2 * x * g


class AwareForward(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh() if not torch.compiler.is_compiling() else x / (1 + x.abs())

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (1 - x.tanh() ** 2)


class ThroughNumPy(Function):
    """What NumPy makes a row of, and the compiler's own version of NumPy does not."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return torch.from_numpy(np.ascontiguousarray(x.detach().numpy().sum()))

    @staticmethod
    def backward(ctx, g):
        return g.sum().expand(ctx.shape)


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        return x * k

    @staticmethod
    def backward(ctx, g):
        return g * ctx.k, None


class Constant(Scaled):
    """What was traced first stays."""

    kept: list = []  # noqa: RUF012

    @staticmethod
    def forward(ctx, x, k):
        if torch.compiler.is_compiling():
            Constant.kept.append(k)
            k = Constant.kept[0]
        ctx.k = k
        return x * k


SOUND = {
    "numpy": (ThroughNumPy, lambda: (normal(4),)),
    "scaled": (Scaled, lambda: (normal(4), 0.5)),
    "square": (Square, lambda: (normal(4, 3),)),
    "surrogate": (Surrogate, lambda: (normal(4),)),
    "break": (Breaks, lambda: (normal(4),)),
    "rounding": (Rounded, lambda: (normal(4),)),
}
PLANTED = {
    "value that became a constant": (Constant, lambda: (normal(4), 0.5), "output 0"),
    "backward": (Aware, lambda: (normal(4),), "gradient of `x`"),
    "forward": (AwareForward, lambda: (normal(4),), "output 0"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_compiler_is_loaded_before_the_fork():
    (registered,) = [r for r in all_rules() if r.rule.name == "compiled-differs"]

    assert registered.prepare is prepare


class Draws(Square):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x + 0 * torch.rand(())


class Declared(Square):
    declares = {"nondeterministic": 1e-6}  # noqa: RUF012


@pytest.mark.parametrize("target", [Draws, Declared])
def test_function_that_draws_is_left_alone(target):
    (skip,) = skips(check, target, normal(4))

    assert skip.reason.startswith("it draws random numbers")


@pytest.mark.parametrize("args", [(normal(4), 0.5), (normal(), 0.5)], ids=["sizes", "no size"])
def test_sizes_and_plain_values_change_together(args):
    made = subject(Scaled, *args)
    first, *others = _examples(made)

    assert first is made.small
    assert [example.args[1] for example in others] == [0.375] * len(others)
    assert len({tuple(e.args[0].shape) for e in others}) == (2 if args[0].dim() else 1)
    assert all((e.args[0].shape == args[0].shape) == (not args[0].dim()) for e in others)
