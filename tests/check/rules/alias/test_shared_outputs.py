"""Sound functions pass `shared-outputs`; planted faults are caught, and named."""

import torch

from tests.check.subjects import check_of, made, normal, rule_tests

check = check_of("shared-outputs")


def halves(y):
    return y[..., :2], y[..., 2:]


def pulled(one, two, x):
    return 2 * torch.cat([one, two], -1)


SOUND = {
    "apart": (
        made(lambda x: (2 * x[..., :2], 2 * x[..., 2:]), pulled),
        lambda: (normal(4, 5),),
    ),
    "one view": (made(lambda x: (x @ x.t())[:, 0], lambda g, x: None), lambda: (normal(4, 5),)),
}
PLANTED = {
    "halves": (made(lambda x: halves(2 * x), pulled), lambda: (normal(4, 5),), "outputs 0 and 1"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)
