"""Gradients are judged right or wrong beyond doubt, and the worst entry is named."""

import pytest
import torch

from tests.check import functions as f
from tests.check.subjects import normal, subject

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
