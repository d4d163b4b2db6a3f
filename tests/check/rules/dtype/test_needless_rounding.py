"""Sound functions pass `needless-rounding`; planted faults are caught, and named."""

import torch

from tests.check.subjects import check_of, missed_by_gradcheck, normal, rule_tests, variadic

check = check_of("needless-rounding")


SOUND = {
    "square": (variadic(lambda x: x * x, lambda x, g: 2 * x * g), lambda: (normal(4, 5),)),
    "mask": (variadic(lambda x: x.clamp(min=0), lambda x, g: g * (x > 0)), lambda: (normal(4, 5),)),
}
PLANTED = {
    "float32": (
        variadic(torch.sin, lambda x, g: (g.float() * x.float().cos()).to(x.dtype)),
        lambda: (normal(4, 5),),
        "gradient of `args[0]`",
    ),
    "bfloat16": (
        variadic(
            torch.sin,
            lambda x, g: (g * x.cos()).bfloat16().half() if x.dtype == torch.half else g * x.cos(),
        ),
        lambda: (normal(4, 5),),
        "gradient of `args[0]`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
test_gradcheck_alone_would_miss_it = missed_by_gradcheck(PLANTED, "float32")
