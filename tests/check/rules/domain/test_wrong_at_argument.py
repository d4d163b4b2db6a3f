"""Sound functions pass `wrong-at-argument`; planted faults are caught, and named."""

import torch

from tests.check.subjects import check_of, normal, rule_tests, variadic

check = check_of("wrong-at-argument")


def mean(x, mask):
    """The mean over the kept entries."""
    return (x * mask).sum(-1) / mask.sum(-1)


def args():
    """Rows, and a mask that keeps everything."""
    return normal(3, 4), torch.ones(3, 4, dtype=torch.float64)


SOUND = {
    "counted": (
        variadic(mean, lambda x, m, g: ((g / m.sum(-1))[:, None] * m, None)),
        args,
    ),
    "power": (
        variadic(lambda x, n: x**n, lambda x, n, g: (n * x ** (n - 1) * g, None)),
        lambda: (normal(4), 3),
    ),
}
PLANTED = {
    "switched off": (
        variadic(lambda x, eps: x.sin() + eps * x * x, lambda x, eps, g: (g * x.cos(), None)),
        lambda: (normal(4), 0.0),
        "gradient of `args[0]`",
    ),
    "length": (
        variadic(mean, lambda x, m, g: ((g / m.shape[-1])[:, None] * m, None)),
        args,
        "gradient of `args[0]`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
