"""Gradients are judged right or wrong beyond doubt, and the worst entry is named."""

import numpy as np
import pytest
import torch

from pullback.judge.differences import Estimate
from pullback.judge.verdict import JudgedGradient
from tests.check import functions as f
from tests.check.subjects import made, normal, subject

SOUND = {
    "square": (f.Square, (normal(3, 4),)),
    "product": (f.Product, (normal(3), normal(3, seed=1))),
    "relu at zero": (f.Relu, (torch.zeros(5, requires_grad=True),)),
    "through numpy": (f.ThroughNumpy, (normal(4),)),
    "complex": (f.Conjugate, (torch.complex(normal(3), normal(3, seed=1)).detach(),)),
    "float32": (f.Square, (normal(3, 4, dtype=torch.float32),)),
    "declared": (f.Surrogate, (normal(3, 4),)),
    "callable": (lambda x, y: f.Product.apply(x, y).exp(), (normal(3), normal(3, seed=1))),
    "large": (f.Square, (1e6 * normal(3, 4).detach(),)),
    "tiny": (f.Square, (1e-9 * normal(3, 4).detach(),)),
}

WRONG = {
    "half": (f.HalfSquare, (normal(3, 4),), ["x"]),
    "swapped": (f.Swapped, (normal(3), normal(3, seed=1)), ["a", "b"]),
    "one of many": (f.OneWrong, (normal(100_000),), ["x"]),
    "through numpy": (f.ThroughNumpyWrong, (normal(4),), ["x"]),
    "no conjugate": (f.NoConjugate, (torch.complex(normal(3), normal(3, seed=1)).detach(),), ["x"]),
    "float32": (f.HalfSquare, (normal(3, 4, dtype=torch.float32),), ["x"]),
    "callable": (lambda x: f.HalfSquare.apply(x).exp(), (normal(3),), ["x"]),
    "tiny": (f.HalfSquare, (1e-9 * normal(3, 4).detach(),), ["x"]),
}


@pytest.mark.parametrize("name", SOUND)
def test_right_gradient_is_not_doubted(name):
    target, args = SOUND[name]

    assert subject(target, *args).base_mismatches == []


@pytest.mark.parametrize("name", WRONG)
def test_wrong_gradient_is_named(name):
    target, args, names = WRONG[name]

    assert [m.name for m in subject(target, *args).base_mismatches] == names


def test_worst_entry_is_that_which_differs():
    (mismatch,) = subject(f.OneWrong, normal(100_000)).base_mismatches

    assert (mismatch.index, mismatch.wrong, mismatch.total) == ((33_333,), 1, 100_000)
    assert mismatch.got == pytest.approx(1.005 * mismatch.expected)


def test_fast_gradcheck_misses_one_of_many():
    x = normal(1000)

    assert torch.autograd.gradcheck(f.OneWrong.apply, (x,), fast_mode=True)


def test_slope_outside_of_a_kink_is_wrong():
    class Bent(f.Relu):
        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * torch.where(x == 0, 5.0, (x > 0).to(x.dtype))

    (mismatch,) = subject(Bent, torch.zeros(2, dtype=torch.float64)).base_mismatches

    assert mismatch.name == "x"


# ---- hard to judge ----

X = normal(4, 5).detach()
Z = torch.complex(X, normal(4, 5, seed=2).detach())
ZEROS = torch.zeros(40, dtype=torch.float64)


def scales(*values):
    """A row of factors in float64."""
    return torch.tensor(values, dtype=torch.float64)


def by_numpy(function):
    """A forward that autograd cannot see into."""
    return lambda x: torch.from_numpy(np.asarray(function(x.detach().numpy())))


def variance(x):
    """The variance of each row."""
    return ((x - x.mean(-1, keepdim=True)) ** 2).mean(-1)


def variance_back(g, x):
    """Its gradient."""
    return 2 * g[:, None] * (x - x.mean(-1, keepdim=True)) / x.shape[-1]


HARD = {
    "cancellation": (variance, variance_back, X + 1e6),
    "saturated": (lambda x: x.sigmoid(), lambda g, x: g * x.sigmoid() * (-x).sigmoid(), 300 * X),
    "steep": (lambda x: (20 * x).exp(), lambda g, x: 20 * g * (20 * x).exp(), X),
    "near a pole": (lambda x: 1 / x, lambda g, x: -g / (x * x), 1e-8 * X),
    "fast": (lambda x: (1000 * x).sin(), lambda g, x: 1000 * (1000 * x).cos() * g, X),
    "huge": (by_numpy(lambda x: x**3), lambda g, x: 3 * x * x * g, 1e15 * X),
    "tiny": (by_numpy(lambda x: x**3), lambda g, x: 3 * x * x * g, 1e-15 * X),
    "many kinks": (lambda x: x.clamp(min=0), lambda g, x: g * ((x > 0) + 0.5 * (x == 0)), ZEROS),
    "kinks by numpy": (by_numpy(lambda x: np.maximum(x, 0)), lambda g, x: g * (x > 0), ZEROS),
    "ties": (
        lambda x: x.amax(),
        lambda g, x: g * (torch.arange(40) == 7),
        ZEROS,
    ),
    "steps": (lambda x: x.floor(), lambda g, x: 0 * g, (3 * X).round()),
    "jump": (lambda x: x * (x > 0.5), lambda g, x: g * (x > 0.5), ZEROS + 0.5),
    "float32 inside": (
        lambda x: (x.float() ** 3).double(),
        lambda g, x: (3 * x.float() ** 2 * g.float()).double(),
        X,
    ),
    "bfloat16 inside": (lambda x: x.bfloat16().sin().double(), lambda g, x: g * x.cos(), X),
    "complex to real": (lambda z: z.abs(), lambda g, z: g * z / z.abs(), Z),
    "real to complex": (
        lambda x: torch.exp(1j * x),
        lambda g, x: (g * (1j * torch.exp(1j * x)).conj()).real,
        X,
    ),
    "no dimension": (lambda x: x**3, lambda g, x: 3 * x * x * g, torch.tensor(1.3)),
    "zero": (lambda x: 0 * x + 1, lambda g, x: 0 * g, X),
    "partly undefined": (lambda x: x.log(), lambda g, x: torch.where(x > 0, g / x, 0.0), X),
    "infinite slope": (
        lambda x: x.sqrt(),
        lambda g, x: torch.where(x > 0, g / (2 * x.sqrt()), 0.0),
        scales(0.0, 1.0, 4.0),
    ),
    "other sizes": (
        lambda x: x * scales(1e8, 1.0, 1e-8),
        lambda g, x: g * scales(1e8, 1.0, 1e-8),
        normal(4, 3).detach(),
    ),
}

HIDDEN = {
    "small among large": (
        lambda x: x * scales(1e8, 1.0, 1e-3),
        lambda g, x: g * scales(1e8, 1.0, 2e-3),
        normal(4, 3).detach(),
    ),
    "tiny gradient": (lambda x: 1e-12 * x, lambda g, x: 2e-12 * g, X),
    "huge": (lambda x: x**3, lambda g, x: 2 * x * x * g, 1e15 * X),
    "huge by numpy": (by_numpy(lambda x: x**3), lambda g, x: 2 * x * x * g, 1e15 * X),
    "thousandth by numpy": (by_numpy(lambda x: x**3), lambda g, x: 3.003 * x * x * g, X),
    "NaN": (lambda x: x * x, lambda g, x: 2 * x * g * torch.where(x > 0, 1.0, torch.nan), X),
    "infinite": (lambda x: x * x, lambda g, x: 2 * x * g / (x > 0), X),
    "float32 inside": (lambda x: (x.float() ** 3).double(), lambda g, x: 2 * x * x * g, X),
    "beside kinks": (
        lambda x: x.clamp(min=0),
        lambda g, x: g * torch.where(x >= 0, 1.0, 0.3),
        torch.cat([ZEROS, torch.tensor([-1.0], dtype=torch.float64)]),
    ),
    "not conjugated": (lambda z: (z * z.conj()).real, lambda g, z: 2 * g * z.conj(), Z),
    "real part only": (
        by_numpy(np.abs),
        lambda g, z: torch.complex((g * z / z.abs()).real, 0 * g),
        Z,
    ),
    "no dimension": (lambda x: x**3, lambda g, x: 2 * x * x * g, torch.tensor(1.3)),
    "cancellation": (variance, lambda g, x: 1.005 * variance_back(g, x), X + 1e6),
    "truth is zero": (lambda x: 0 * x + 1, lambda g, x: 1e-3 * g, X),
    "fast": (lambda x: (1000 * x).sin(), lambda g, x: 900 * (1000 * x).cos() * g, X),
}


@pytest.mark.parametrize("name", HARD)
def test_hard_function_is_not_doubted(name):
    forward, backward, x = HARD[name]

    assert subject(made(forward, backward), x).base_mismatches == []


@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_error_is_found(name):
    forward, backward, x = HIDDEN[name]

    assert len(subject(made(forward, backward), x).base_mismatches) == 1


class Slope:
    """A reference whose forward has this slope at smaller steps."""

    def __init__(self, value):
        self.value = value

    def slope(self, exact, cotangents, along, step):
        return Estimate(self.value, 1e-9)


@pytest.mark.parametrize(
    ("finer", "is_confirmed"),
    [(2.0, True), (1.0, False), (3.0, False)],
    ids=["the same", "as the gradient says", "as neither says"],
)
def test_slope_counts_where_smaller_steps_give_the_same(finer, is_confirmed):
    x = normal(3)
    case = JudgedGradient(Slope(finer), None, (), 0, None, "x", x)

    # At the first step the slope is 2, and the gradient says 1.
    assert case._is_confirmed(x, Estimate(2.0, 1e-9), 1.0, 1e-6) is is_confirmed
