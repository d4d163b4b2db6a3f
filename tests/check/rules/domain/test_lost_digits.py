"""Sound functions pass `lost-digits`; planted faults are caught, and named."""

import torch
import torch.nn.functional as F

from tests.check.subjects import check_of, made, missed_by_gradcheck, normal, rule_tests

check = check_of("lost-digits")

X = normal(8)


SOUND = {
    "softplus": (made(lambda x: F.softplus(-x), lambda g, x: -g * torch.sigmoid(-x)), (X,)),
    "tanh": (made(lambda x: x.tanh(), lambda g, x: g * (1 - x.tanh() ** 2)), (X,)),
    "sigmoid": (
        made(lambda x: x.sigmoid(), lambda g, x: g * x.sigmoid() * (1 - x.sigmoid())),
        (X,),
    ),
    "rows": (
        made(
            lambda x: x.log_softmax(-1),
            lambda g, x: g - x.softmax(-1) * g.sum(-1, keepdim=True),
        ),
        (normal(3, 4),),
    ),
    "with a label": (
        made(
            lambda x, t: F.softplus(-x) * t + F.softplus(x) * (1 - t),
            lambda g, x, t: (g * (x.sigmoid() - t), None),
        ),
        (X, torch.ones(8, dtype=torch.float64)),
    ),
}
PLANTED = {
    "one minus sigmoid": (
        made(lambda x: F.softplus(-x), lambda g, x: g * (x.sigmoid() - 1)),
        (X,),
        "gradient of `x`",
    ),
    "one minus exponential": (
        made(lambda x: F.logsigmoid(x), lambda g, x: g * (1 - F.logsigmoid(x).exp())),
        (X,),
        "gradient of `x`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
test_gradcheck_alone_would_miss_it = missed_by_gradcheck(PLANTED, "one minus sigmoid")
