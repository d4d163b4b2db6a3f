"""Sound functions pass `zero-cotangent`; planted faults are caught, and named."""

import torch

from tests.check.subjects import check_of, made, normal, rule_tests

check = check_of("zero-cotangent")

X = normal(4, 3)
SQUARE = lambda x: x * x  # noqa: E731

SOUND = {
    "square": (made(SQUARE, lambda g, x: 2 * x * g), (X,)),
    "infinite slope": (
        made(lambda x: x.sqrt(), lambda g, x: g / (2 * x.sqrt())),
        (torch.tensor([0.0, 1.0, 4.0]),),
    ),
    "absent": (made(SQUARE, lambda g, x: 2 * x * g if g.any() else None), (X,)),
    "another gradient on purpose": (
        made(SQUARE, lambda g, x: 3 * g, declares={"surrogate": "x"}),
        (X,),
    ),
}

PLANTED = {
    "constant of a surrogate": (
        made(SQUARE, lambda g, x: 2 * x * g + 1, declares={"surrogate": "x"}),
        (X,),
        "gradient of `x`",
    ),
    "constant": (made(SQUARE, lambda g, x: 2 * x * g + 1e-3), (X,), "gradient of `x`"),
    "decay": (made(SQUARE, lambda g, x: 2 * x * g + 0.01 * x), (X,), "gradient of `x`"),
    "division": (made(SQUARE, lambda g, x: 2 * x * g * (g.norm() / g.norm())), (X,), "of `x`"),
    "fails": (
        made(SQUARE, lambda g, x: 2 * x * g / (1 // int(bool(g.any())))),
        (X,),
        "backward, with zeros",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
