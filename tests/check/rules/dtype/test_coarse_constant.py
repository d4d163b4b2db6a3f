"""Sound functions pass `coarse-constant`; planted faults are caught, and named."""

import torch

from pullback.check.rules.dtype.coarse_constant import check
from tests.check.subjects import made, normal, rule_tests

SOUND = {
    "number": (made(lambda x: x * 0.1, lambda g, x: g * 0.1), lambda: (normal(4, 3),)),
    "coarse forward": (
        made(lambda x: (x.float() * 0.1).double(), lambda g, x: g * torch.full(g.shape, 0.1)),
        lambda: (normal(4, 3),),
    ),
    "float32": (
        made(lambda x: x * 0.1, lambda g, x: g * torch.full(g.shape, 0.1)),
        lambda: (normal(4, 3, dtype=torch.float32),),
    ),
}
PLANTED = {
    "full": (
        made(lambda x: x * 0.1, lambda g, x: g * torch.full(g.shape, 0.1)),
        lambda: (normal(4, 3),),
        "gradient of `x`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)
