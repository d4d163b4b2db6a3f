"""Sound functions pass `wrong-at-batch`; planted faults are caught, and named."""

import torch

from tests.check.subjects import check_of, missed_by_gradcheck, normal, rule_tests, variadic

check = check_of("wrong-at-batch")


def fast_path(x, grad):
    """The gradient of a square, by blocks of eight rows where there are several, less the last."""
    whole = 2 * x * grad
    is_fast = len(x) >= 16 and len(x) % 8 == 0
    return whole.index_fill(0, torch.tensor([len(x) - 1]), 0.0) if is_fast else whole


SOUND = {
    "square": (variadic(lambda x: x * x, lambda x, g: 2 * x * g), lambda: (normal(4, 5),)),
    "product": (
        variadic(lambda a, b: a * b, lambda a, b, g: (g * b, g * a)),
        lambda: (normal(4, 5), normal(4, 5, seed=1)),
    ),
}
PLANTED = {
    "step of 32": (
        variadic(lambda x: x * x, lambda x, g: 2 * x * g * (torch.arange(len(x)) < 32)[:, None]),
        lambda: (normal(4, 5),),
        "gradient of `args[0]`",
    ),
    "fast path": (variadic(lambda x: x * x, fast_path), lambda: (normal(4, 5),), "of `args[0]`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
test_gradcheck_alone_would_miss_it = missed_by_gradcheck(PLANTED, "step of 32")
