"""Work outside autograd is noticed, and nothing else is."""

import numpy as np
import pytest
import torch

import pullback as pb
from pullback.derive.unseen import is_capturable, outputs_without_history, unseen_in
from pullback.function.unwritten import run_plainly

OUTSIDE = "(detach, no_grad, numpy, a kernel)"


def function_of(forward):
    return type("Made", (pb.Function,), {"forward": staticmethod(forward)})


def reason(forward, *args):
    cls = function_of(forward)
    output = run_plainly(cls, args)
    return unseen_in(cls, args, output if isinstance(output, tuple) else (output,))


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def sine(ctx, x):
    return x.sin()


def branch(ctx, x):
    return x.sin() if x.sum() > 0 else x.cos()


def mask(ctx, x):
    return (x > 0).double()


def through(ctx, x):
    return x + (x.round() - x).detach()


def marked(ctx, x):
    y = 2 * x.detach()
    ctx.mark_non_differentiable(y)
    return x * 2, y


def drawn(ctx, x):
    return x * torch.rand_like(x) if x.sum() > -100 else x


@pytest.mark.parametrize(
    "forward", [sine, branch, mask, through, marked, drawn], ids=lambda f: f.__name__
)
def test_what_autograd_follows_is_fine(forward):
    assert reason(forward, normal(4)) == ""


def detached(ctx, x):
    return 2 * x.detach()


def without_grad(ctx, x):
    with torch.no_grad():
        return x.sin(), x.cos()


def by_numpy(ctx, x):
    return torch.from_numpy(np.sin(x.detach().numpy()))


def half_by_numpy(ctx, x):
    return x * torch.from_numpy(np.sin(x.detach().numpy()))


EXPECTED = {
    detached: f"`forward` computes its output outside autograd {OUTSIDE}",
    without_grad: f"`forward` computes output 0 outside autograd {OUTSIDE}",
    by_numpy: f"`forward` computes its output outside autograd {OUTSIDE}",
    half_by_numpy: f"`forward` moves otherwise than autograd sees {OUTSIDE}",
}


@pytest.mark.parametrize("forward", EXPECTED, ids=lambda f: f.__name__)
def test_work_outside_autograd_is_told(forward):
    assert reason(forward, normal(4)) == EXPECTED[forward]


def test_input_that_needs_nothing_may_be_outside():
    def forward(ctx, x, w):
        return x * torch.from_numpy(np.sin(w.detach().numpy()))

    x, w = normal(4), normal(4)

    assert reason(forward, x, w.detach()) == ""
    assert reason(forward, x, w) == f"`forward` moves otherwise than autograd sees {OUTSIDE}"


def test_capturable_is_what_capture_takes():
    assert is_capturable(function_of(sine), (normal(4),))
    assert not is_capturable(function_of(half_by_numpy), (normal(4),))


def test_silent_outputs_are_counted():
    x = normal(3)

    assert outputs_without_history([x, x.detach(), x.argmax(), "name"]) == [1]


def test_random_state_stays():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    reason(drawn, x := normal(4).detach().requires_grad_())
    torch.manual_seed(0)
    unseen_in(function_of(drawn), (x,), (x * 2,))

    assert torch.equal(torch.rand(3), expected)
