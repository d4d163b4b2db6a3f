"""Sound functions pass `mixed-dtypes`; planted faults are caught, and named."""

import torch

from tests.check.subjects import check_of, made, normal, rule_tests

check = check_of("mixed-dtypes")


def right(g, x, w):
    return g * w, (g * x).sum_to_size(w.shape).to(w.dtype)


def rounded(g, x, w):
    return g * w, (g * x).sum_to_size(w.shape).to(x.dtype).to(w.dtype)


def promoted(x, w):
    """The product in the wider dtype."""
    dtype = torch.promote_types(x.dtype, w.dtype)
    return x.to(dtype) @ w.to(dtype)


def outer(g, x, w):
    return g @ w, x @ g


SOUND = {
    "by promotion alone": (
        made(lambda x, w: x[:, None] * w, outer),
        lambda: (normal(6), normal(8, seed=1)),
    ),
    "right": (made(lambda x, w: x * w, right), lambda: (normal(6, 8), normal(8, seed=1))),
}
PLANTED = {
    "promoted in forward alone": (
        made(promoted, lambda g, x, w: (g @ w.mT, x.mT @ g)),
        lambda: (normal(6, 8), normal(8, 3, seed=1)),
        "backward, for inputs of several dtypes",
    ),
    "rounded": (
        made(lambda x, w: x * w, rounded),
        lambda: (normal(6, 8), normal(8, seed=1)),
        "gradient of `w`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)
