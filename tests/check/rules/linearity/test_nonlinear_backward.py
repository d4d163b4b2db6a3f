"""Sound functions pass `nonlinear-backward`; planted faults are caught, and named."""

import pytest
import torch

from tests.check.subjects import check_of, made, normal, rule_tests

check = check_of("nonlinear-backward")

X = normal(4, 3)
SQUARE = lambda x: x * x  # noqa: E731

SOUND = {
    "square": (made(SQUARE, lambda g, x: 2 * x * g), (X,)),
    "wrong, and linear": (made(SQUARE, lambda g, x: x * g), (X,)),
    "rounded to float32": (made(SQUARE, lambda g, x: (2 * x * g).float().double()), (X,)),
    "infinite slope": (
        made(lambda x: x.sqrt(), lambda g, x: g / (2 * x.sqrt())),
        (torch.tensor([0.0, 1.0, 4.0]),),
    ),
    "clipped on purpose": (
        made(SQUARE, lambda g, x: 2 * x * g.clamp(-1, 1), declares={"surrogate": "x"}),
        (X,),
    ),
    "random": (made(SQUARE, lambda g, x: 2 * x * g * torch.rand_like(g)), (X,)),
}

PLANTED = {
    "clamped": (made(SQUARE, lambda g, x: 2 * x * g.clamp(-10, 10)), (X,), "gradient of `x`"),
    "normalised": (made(SQUARE, lambda g, x: 2 * x * g / g.norm()), (X,), "gradient of `x`"),
    "sign": (made(SQUARE, lambda g, x: 2 * x * g.sign()), (X,), "gradient of `x`"),
    "shifted": (made(SQUARE, lambda g, x: 2 * x * g + 0.01), (X,), "gradient of `x`"),
    "second of two": (
        made(lambda a, b: a * b, lambda g, a, b: (g * b, g.clamp(min=0) * a)),
        (X, normal(4, 3, seed=1)),
        "gradient of `b`",
    ),
    "refuses large ones": (
        made(SQUARE, lambda g, x: 2 * x * g if g.abs().max() < 50 else [][0]),
        (X,),
        "64 times as large",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


@pytest.mark.parametrize("fast_mode", [False, True])
def test_gradcheck_alone_would_miss_the_clamp(fast_mode):
    assert torch.autograd.gradcheck(PLANTED["clamped"][0].apply, (X,), fast_mode=fast_mode)
