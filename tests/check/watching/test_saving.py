"""What a Function saves is told from what a graph inside of its forward saves."""

import torch
from torch.autograd import Function

from pullback.check.target.target import target_of
from pullback.check.watching.saving import saving
from tests.check.subjects import check_of, findings, normal

X = normal(4, 5)


class Force(Function):
    """Builds a graph of its own in forward, and saves its input alone."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            own = x.detach().clone().requires_grad_()
            (force,) = torch.autograd.grad((own**4).sum(), own)
        ctx.save_for_backward(x)
        return force

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 12 * x * x * g


class Hoarding(Force):
    """Saves a copy besides, which backward does not read."""

    @staticmethod
    def forward(ctx, x):
        force = Force.forward(ctx, x)
        ctx.save_for_backward(x, x.clone())
        return force

    @staticmethod
    def backward(ctx, g):
        x, _ = ctx.saved_tensors
        return 12 * x * x * g


def test_only_own_tensors_are_packed():
    packed = []

    with saving(target_of(Force), lambda tensor: packed.append(tensor) or tensor):
        out = Force.apply(X)

    assert [tensor is X for tensor in packed] == [True]
    assert torch.equal(torch.autograd.grad(out.sum(), X)[0], 12 * X * X)


def test_inner_graph_is_no_finding():
    assert findings(check_of("unread-saved"), Force, X) == []
    assert findings(check_of("saved-copy"), Force, X) == []


def test_own_waste_is_still_found():
    assert len(findings(check_of("unread-saved"), Hoarding, X)) == 1
    assert len(findings(check_of("saved-copy"), Hoarding, X)) == 1
