"""Sound functions pass `scaled-cotangent`; planted faults are caught, and named."""

import pytest
import torch

from tests.check.subjects import check_of, made, normal, rule_tests

check = check_of("scaled-cotangent")

X, W = normal(3, 4), normal(4, 2, seed=1)
SQUARE = lambda x: x * x  # noqa: E731

SOUND = {
    "square": (made(SQUARE, lambda g, x: 2 * x * g), (X,)),
    "product": (made(lambda x, w: x @ w, lambda g, x, w: (g @ w.t(), x.t() @ g)), (X, W)),
    "float32 only": (
        made(lambda x: x.float().square(), lambda g, x: 2 * x * g),
        (X.detach().float(),),
    ),
    "computes in half": (
        made(
            lambda x: x.half().square().to(x.dtype),
            lambda g, x: (2 * x.half() * g.half()).to(x.dtype),
        ),
        (X,),
    ),
    "infinite slope": (
        made(lambda x: x.sqrt(), lambda g, x: g / (2 * x.sqrt())),
        (torch.tensor([0.0, 1.0, 4.0]),),
    ),
    "clipped on purpose": (
        made(SQUARE, lambda g, x: 2 * x * g.clamp(-1, 1), declares={"surrogate": "x"}),
        (X,),
    ),
}

PLANTED = {
    "drops small": (
        made(SQUARE, lambda g, x: 2 * x * torch.where(g.abs() < 1e-4, 0.0, g)),
        (X,),
        "gradient of `x`",
    ),
    "rounds": (made(SQUARE, lambda g, x: 2 * x * (g * 256).round() / 256), (X,), "size 1e-08"),
    "skips": (
        made(lambda x, w: x @ w, lambda g, x, w: (g @ w.t(), x.t() @ g * (g.abs().max() > 1e-3))),
        (X, W),
        "gradient of `w`",
    ),
    "guards": (
        made(SQUARE, lambda g, x: 2 * x * torch.where(g.abs() > 1e6, 0.0, g)),
        (X,),
        "size 1e+08",
    ),
    "goes through half": (made(SQUARE, lambda g, x: 2 * x * g.half().double()), (X,), "of `x`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


@pytest.mark.parametrize("name", ["drops small", "skips", "guards"])
def test_gradcheck_alone_would_miss_it(name):
    target, args, _ = PLANTED[name]

    assert torch.autograd.gradcheck(target.apply, args)
