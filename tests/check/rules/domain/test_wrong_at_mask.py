"""Sound functions pass `wrong-at-mask`; planted faults are caught, and named."""

import torch

from tests.check.subjects import check_of, made, normal, rule_tests

check = check_of("wrong-at-mask")


def mean(x, m):
    return (x * m).sum() / m.sum().clamp(min=1)


SOUND = {
    "guarded": (
        made(mean, lambda g, x, m: (g * m / m.sum().clamp(min=1), None)),
        lambda: (normal(6), torch.tensor([True, False, True, True, False, True])),
    ),
    "neither": (
        made(lambda x, m: (x * m).sum() / m.sum(), lambda g, x, m: (g * m / m.sum(), None)),
        lambda: (normal(6), torch.tensor([True, False, True, True, False, True])),
    ),
}
PLANTED = {
    "empty": (
        made(mean, lambda g, x, m: (g * m / m.sum(), None)),
        lambda: (normal(6), torch.tensor([True, False, True, True, False, True])),
        "gradient of `x`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)
