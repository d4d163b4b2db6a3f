"""Sound functions pass `cotangent-layout`; planted faults are caught, and named."""

import torch

from pullback.check.rules.layout.cotangent_layout import check
from tests.check.subjects import missed_by_gradcheck, normal, rule_tests, variadic


def dense(grad, shape):
    """The memory behind a tensor as if it were dense."""
    return torch.as_strided(grad, shape, torch.empty(shape).stride(), 0)


SOUND = {
    "by way of NumPy": (
        variadic(lambda z: z * 2, lambda z, g: torch.from_numpy(g.numpy()) * 2),
        lambda: (normal(4, 5, dtype=torch.complex128),),
    ),
    "cotangent overwritten": (
        variadic(lambda x: x * x, lambda x, g: g.clone().mul_(2 * x)),
        lambda: (normal(4, 5),),
    ),
    "square": (variadic(lambda x: x * x, lambda x, g: 2 * x * g), lambda: (normal(4, 5),)),
    "product": (
        variadic(lambda a, b: a * b, lambda a, b, g: (g * b, g * a)),
        lambda: (normal(4, 5), normal(4, 5, seed=1)),
    ),
}
PLANTED = {
    "conjugate view": (
        variadic(
            lambda z: z * 2j,
            lambda z, g: torch.view_as_complex(torch.view_as_real(g).contiguous()) * -2j,
        ),
        lambda: (normal(4, 5, dtype=torch.complex128),),
        "backward",
    ),
    "strides": (
        variadic(lambda x: x * x, lambda x, g: 2 * x * dense(g, x.shape)),
        lambda: (normal(4, 5),),
        "gradient of `args[0]`",
    ),
    "view": (
        variadic(lambda x: x * x, lambda x, g: 2 * x * g.view(-1).view(x.shape)),
        lambda: (normal(4, 5),),
        "backward",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
test_gradcheck_alone_would_miss_it = missed_by_gradcheck(PLANTED, "strides")
