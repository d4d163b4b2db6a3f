"""Sound functions pass `half-range`; planted faults are caught, and named."""

import pytest
import torch

from pullback.check.rules.dtype.half_range import check
from tests.check.subjects import made, normal, rule_tests

X, W = normal(4, 6, dtype=torch.float32), normal(4, 6, seed=1, dtype=torch.float32)


def square(x):
    return x * x


def normed(x):
    wide = x.float() if x.dtype == torch.float16 else x
    return (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)


def from_mean_square(g, x):
    r = ((x * x).mean(-1, keepdim=True) + 1e-6).rsqrt()
    y = x * r
    return r * (g - y * (g * y).mean(-1, keepdim=True))


def from_wide(g, x):
    return from_mean_square(g.double(), x.double()).to(x.dtype)


SOUND = {
    "square": (made(square, lambda g, x: 2 * x * g), (X,)),
    "quotient by a square": (
        made(
            lambda x, w: x / (w * w + 1),
            lambda g, x, w: (g / (w * w + 1), -g * x * 2 * w / (w * w + 1) ** 2),
        ),
        (X, W),
    ),
    "normed, computed wide": (made(normed, from_wide), (X,)),
    "normed in half throughout": (
        made(lambda x: x * ((x * x).mean(-1, keepdim=True) + 1e-3).rsqrt(), from_mean_square),
        (X,),
    ),
    "float32 only": (made(lambda x: x.float().square().to(x.dtype), lambda g, x: 2 * x * g), (X,)),
}

PLANTED = {
    "scales down first": (
        made(square, lambda g, x: 2 * x * (g * 1e-4) * 1e4),
        (X,),
        "cotangents of size 0.000976562",
    ),
    "scales up first": (
        made(square, lambda g, x: 2 * x * (g * 1e3) / 1e3),
        (X,),
        "cotangents of size 256",
    ),
    "squares in half": (made(normed, from_mean_square), (X,), "gradient of `x`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)


@pytest.mark.parametrize("name", PLANTED)
def test_gradcheck_alone_would_miss_it(name):
    target, args, _ = PLANTED[name]

    exact = [
        a.detach().double().requires_grad_() if isinstance(a, torch.Tensor) else a for a in args
    ]

    assert torch.autograd.gradcheck(target.apply, exact)
