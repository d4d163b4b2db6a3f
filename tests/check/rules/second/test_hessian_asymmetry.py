"""Sound functions pass `hessian-asymmetry`; planted faults are caught, and named."""

import pytest
import torch
from torch.autograd import Function

from pullback.check.rules.second.hessian_asymmetry import check
from pullback.check.subject.second_order import SecondOrder
from pullback.check.subject.subject import Skip
from tests.check.functions import Product
from tests.check.subjects import findings, normal, subject


class _Lopsided(Function):
    """What backward gives, with a second backward that differs by the input's place."""

    @staticmethod
    def forward(ctx, g, x):
        ctx.save_for_backward(g, x)
        return g * x.exp().sum()

    @staticmethod
    def backward(ctx, dd):
        g, x = ctx.saved_tensors
        return dd * x.exp().sum(), (dd * g).sum() * x.exp()


class Lopsided(Function):
    """A forward that nothing can look into, so that the Hessian alone tells."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sum() * x.exp().sum()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return _Lopsided.apply(g, x) * torch.ones_like(x)


class Quadratic(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sum() * x.exp().sum()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x.exp().sum() + x.sum() * x.exp())


class _CoarseInOne(Function):
    """The backward of `a * a * b`; its own backward has float32's digits for `b` alone."""

    @staticmethod
    def forward(ctx, g, a, b):
        ctx.save_for_backward(g, a, b)
        return 2 * a * b * g, a * a * g

    @staticmethod
    def backward(ctx, u, v):
        g, a, b = ctx.saved_tensors
        coarse = (2 * a * g).float().to(a.dtype)
        return 2 * a * b * u + a * a * v, 2 * b * g * u + 2 * a * g * v, coarse * u


class CoarseInOne(Function):
    """Digits that are lost in the second backward, too few for any reference to be sure of."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * a * b

    @staticmethod
    def backward(ctx, g):
        return _CoarseInOne.apply(g, *ctx.saved_tensors)


SOUND = {
    "product": (Product, lambda: (normal(4), normal(4, seed=1))),
    "quadratic": (Quadratic, lambda: (normal(5),)),
    "not a number": (Product, lambda: (torch.tensor([float("nan"), 1.0, 2.0]), normal(3))),
}
PLANTED = {
    "lopsided": (Lopsided, lambda: (normal(5),), "the Hessian"),
    "coarse in one": (CoarseInOne, lambda: (normal(5), normal(5, seed=1)), "the Hessian"),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_function_has_no_finding(name):
    target, args = SOUND[name]

    assert findings(check, target, *args()) == []


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_caught(name):
    target, args, where = PLANTED[name]
    tried = subject(target, *args())
    tried.trials["second order"] = [SecondOrder()]  # as where no reference and no difference tells
    found = list(check(tried))

    assert {f.rule.name for f in found} == {"hessian-asymmetry"}
    assert any(where in f.at for f in found)


def test_known_defect_is_not_reported_twice():
    tried = subject(Lopsided, normal(5))
    tried.trials["second order"] = [SecondOrder(skip="reported already")]

    assert [type(result) for result in check(tried)] == [Skip]
