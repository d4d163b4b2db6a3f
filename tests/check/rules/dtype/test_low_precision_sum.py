"""Sound functions pass `low-precision-sum`; planted faults are caught, and named."""

import torch

from pullback.check.rules.dtype.low_precision_sum import check
from tests.check.subjects import missed_by_gradcheck, normal, rule_tests, variadic


def running(x, b, grad):
    """The gradient of a bias, row by row in its own dtype."""
    total = torch.zeros_like(b)
    for row in grad:
        total = total + row
    return grad, total


def args():
    """Rows and a bias."""
    return normal(6, 3), normal(3, seed=1)


SOUND = {
    "kink": (
        variadic(
            lambda x: x.sign() * (x.abs() - 0.3).clamp(min=0),
            lambda x, g: g * (x.sign() * (x.abs() - 0.3).clamp(min=0) != 0),
        ),
        lambda: (normal(6),),
    ),
    "sum": (variadic(lambda x, b: x + b, lambda x, b, g: (g, g.sum(0))), args),
}
PLANTED = {"running": (variadic(lambda x, b: x + b, running), args, "gradient of `args[1]`")}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
test_gradcheck_alone_would_miss_it = missed_by_gradcheck(PLANTED, "running")
