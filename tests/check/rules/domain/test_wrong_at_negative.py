"""Sound functions pass `wrong-at-negative`; planted faults are caught, and named."""

import torch

from tests.check.subjects import check_of, missed_by_gradcheck, normal, rule_tests, variadic

check = check_of("wrong-at-negative")


def positive():
    """Positive numbers."""
    return (normal(4, 5).detach().abs().add(0.5).requires_grad_(),)


SOUND = {
    "labels of zero and one": (
        variadic(
            lambda x, t: torch.nn.functional.softplus(torch.where(t > 0.5, -x, x)),
            lambda x, t, g: (-g * (2 * t - 1) * torch.sigmoid(-(2 * t - 1) * x), None),
        ),
        lambda: (normal(4, 3), (normal(4, 3, seed=1) > 0).double()),
    ),
    "square": (variadic(lambda x: x * x, lambda x, g: 2 * x * g), lambda: (normal(4, 5),)),
    "log of size": (variadic(lambda x: x.abs().log(), lambda x, g: g / x), positive),
}
PLANTED = {
    "sign lost": (
        variadic(lambda x: x.abs().log(), lambda x, g: g / x.abs()),
        positive,
        "gradient of `args[0]`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
test_gradcheck_alone_would_miss_it = missed_by_gradcheck(PLANTED, "sign lost")
