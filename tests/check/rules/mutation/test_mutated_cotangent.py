"""Sound functions pass `mutated-cotangent`; planted faults are caught, and named."""

import torch

from tests.check.subjects import check_of, made, normal, rule_tests

check = check_of("mutated-cotangent")

X = normal(4, 3)

SOUND = {
    "product": (made(lambda x: x * x, lambda g, x: 2 * x * g), (X,)),
    "on a copy": (made(lambda x: x * x, lambda g, x: g.clone().mul_(2 * x)), (X,)),
    "passed on": (made(lambda x: x * 1, lambda g, x: g), (X,)),
}

PLANTED = {
    "multiplied": (
        made(lambda x: x * x, lambda g, x: g.mul_(2 * x)),
        (X,),
        "cotangent of output 0",
    ),
    "past the counter": (
        made(lambda x: (x.sin(), x.cos()), lambda g, h, x: h.data.mul_(-x.sin()) + g * x.cos()),
        (X,),
        "cotangent of output 1",
    ),
    "float32 only": (
        made(lambda x: x * 2, lambda g, x: g.mul_(2) if g.dtype == torch.float32 else 2 * g),
        (X.detach().float(),),
        "cotangent of output 0",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
