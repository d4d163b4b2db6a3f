"""Sound functions pass `gradient-underflow`; planted faults are caught, and named."""

import torch

from tests.check.subjects import check_of, missed_by_gradcheck, normal, rule_tests, variadic

check = check_of("gradient-underflow")


SOUND = {
    "ratio": (
        variadic(lambda a, b: a / b, lambda a, b, g: (g / b, -g * a / b**2)),
        lambda: (normal(4, 5), normal(4, 5, seed=1)),
    ),
    "square": (variadic(lambda x: x * x, lambda x, g: 2 * x * g), lambda: (normal(4, 5),)),
    "sign": (variadic(torch.abs, lambda x, g: g * x.sign()), lambda: (normal(4, 5),)),
}
PLANTED = {
    "a power that autograd loses, too": (
        variadic(
            lambda x: torch.where(x > 0, (-1 / x).exp(), 0.0),
            lambda x, g: torch.where(x > 0, g * (-1 / x).exp() / (x * x), 0.0),
        ),
        lambda: (normal(4, 5).detach().float().requires_grad_(),),
        "gradient of `args[0]`",
    ),
    "square in the denominator": (
        variadic(torch.abs, lambda x, g: g * x * x.abs() / (x * x)),
        lambda: (normal(4, 5),),
        "gradient of `args[0]`",
    ),
    "quotient of a logarithm": (
        variadic(torch.log, lambda x, g: g * x / (x * x)),
        lambda: ((normal(4, 5).detach().abs() + 0.1).float().requires_grad_(),),
        "gradient of `args[0]`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
test_gradcheck_alone_would_miss_it = missed_by_gradcheck(PLANTED, "square in the denominator")
