"""Sound functions pass `gradient-overflow`; planted faults are caught, and named."""

import torch

from tests.check.subjects import check_of, missed_by_gradcheck, normal, rule_tests, variadic

check = check_of("gradient-overflow")


SOUND = {
    "normalised": (
        variadic(
            lambda x: x / ((x * x).sum(-1, keepdim=True) + 1e-6).sqrt(),
            lambda x, g: (
                g / ((x * x).sum(-1, keepdim=True) + 1e-6).sqrt()
                - x
                * (g * x).sum(-1, keepdim=True)
                / ((x * x).sum(-1, keepdim=True) + 1e-6).sqrt() ** 3
            ),
        ),
        lambda: (normal(4, 5),),
    ),
    "square": (variadic(lambda x: x * x, lambda x, g: 2 * x * g), lambda: (normal(4, 5),)),
    "softplus": (
        variadic(torch.nn.functional.softplus, lambda x, g: g * x.sigmoid()),
        lambda: (normal(4, 5, dtype=torch.float32),),
    ),
}
PLANTED = {
    "inf over inf": (
        variadic(torch.nn.functional.softplus, lambda x, g: g * x.exp() / (1 + x.exp())),
        lambda: (normal(4, 5),),
        "gradient of `args[0]`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
test_gradcheck_alone_would_miss_it = missed_by_gradcheck(PLANTED, "inf over inf")
