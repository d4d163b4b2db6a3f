"""Sound functions pass `wrong-at-infinity`; planted faults are caught, and named."""

import torch

from tests.check.subjects import check_of, made, missed_by_gradcheck, normal, rule_tests

check = check_of("wrong-at-infinity")

X = normal(3, 5)


def lse(x):
    return x.logsumexp(-1)


SOUND = {
    "logsumexp": (made(lse, lambda g, x: g[:, None] * (x - lse(x)[:, None]).exp()), (X,)),
    "nansum": (made(lambda x: x.nansum(-1), lambda g, x: g[:, None] * ~x.isnan()), (X,)),
    "clamp": (made(lambda x: x.clamp(-1, 1), lambda g, x: g * (x.abs() <= 1)), (X,)),
    "tanh": (made(lambda x: x.tanh(), lambda g, x: g * (1 - x.tanh() ** 2)), (X,)),
    "angle": (
        made(
            lambda y, x: torch.atan2(y, x),
            lambda g, y, x: (g * x / (x**2 + y**2), -g * y / (x**2 + y**2)),
        ),
        (X, normal(3, 5, seed=1)),
    ),
}
PLANTED = {
    "divides by all entries": (
        made(lambda x: x.nanmean(-1), lambda g, x: g[:, None] * ~x.isnan() / x.shape[-1]),
        (X,),
        "gradient of `x`",
    ),
    "gives a gradient to what is missing": (
        made(lambda x: x.nansum(-1), lambda g, x: g[:, None].expand_as(x)),
        (X,),
        "gradient of `x`",
    ),
    "zero times infinity": (
        made(lambda x: x.clamp(-3, 3) ** 2, lambda g, x: g * 2 * x * (x.abs() <= 3)),
        (X,),
        "gradient of `x`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
test_gradcheck_alone_would_miss_it = missed_by_gradcheck(PLANTED, "divides by all entries")
