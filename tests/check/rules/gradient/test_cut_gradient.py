"""Sound functions pass `cut-gradient`; planted faults are caught, and named."""

import torch

from tests.check.subjects import check_of, made, normal, rule_tests

check = check_of("cut-gradient")

A, B = normal(5), normal(5, seed=1)

SOUND = {
    "product": (made(lambda a, b: a * b, lambda g, a, b: (g * b, g * a)), (A, B)),
    "not used": (made(lambda a, b: a * 2, lambda g, a, b: (2 * g, None)), (A, B)),
    "rounded": (made(lambda a: a.round(), lambda g, a: torch.zeros_like(g)), (A,)),
    "teacher": (
        made(lambda a, b: a * b, lambda g, a, b: (g * b, None), declares={"surrogate": "b"}),
        (A, B),
    ),
}

PLANTED = {
    "none": (made(lambda a, b: a * b, lambda g, a, b: (g * b, None)), (A, B), "gradient of `b`"),
    "zeros": (
        made(lambda a, b: a * b, lambda g, a, b: (g * b, torch.zeros_like(b))),
        (A, B),
        "gradient of `b`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
