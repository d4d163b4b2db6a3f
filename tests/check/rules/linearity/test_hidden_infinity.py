"""Sound functions pass `hidden-infinity`; planted faults are caught, and named."""

import torch

from pullback.check.rules.linearity.hidden_infinity import check
from tests.check.subjects import made, missed_by_gradcheck, normal, rule_tests

X = normal(4, 5)


def refusing(g, x):
    if not torch.isfinite(g).all():
        raise FloatingPointError("gradient is not finite")
    return g * x.cos()


SOUND = {
    "sine": (made(lambda x: x.sin(), lambda g, x: g * x.cos()), (X,)),
    "a mask": (made(lambda x: x.relu(), lambda g, x: torch.where(x > 0, g, 0.0)), (X,)),
    "no gradient": (made(lambda x: x.round(), lambda g, x: torch.zeros_like(x)), (X,)),
    "declared bound": (
        made(
            lambda x: x.sin(), lambda g, x: (g * x.cos()).clamp(-1, 1), declares={"surrogate": True}
        ),
        (X,),
    ),
}
PLANTED = {
    "NaN as zero": (
        made(lambda x: x.sin(), lambda g, x: torch.nan_to_num(g * x.cos())),
        (X,),
        "cotangents that are infinite",
    ),
    "refuses": (made(lambda x: x.sin(), refusing), (X,), "cotangents that are infinite"),
    "NaN alone as zero": (
        made(lambda x: x.sin(), lambda g, x: torch.where(g.isnan(), 0.0, g) * x.cos()),
        (X,),
        "cotangents that are NaN",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
test_gradcheck_alone_would_miss_it = missed_by_gradcheck(PLANTED, "NaN as zero")
