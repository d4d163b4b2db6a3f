"""Sound functions pass `missing-reduction`; planted faults are caught, and named."""

from tests.check.subjects import check_of, made, normal, rule_tests

check = check_of("missing-reduction")

X, BIAS = normal(6, 4), normal(4, seed=1)

SOUND = {
    "bias": (made(lambda x, bias: x + bias, lambda g, x, bias: (g, g.sum(0))), (X, BIAS)),
    "mean": (
        made(lambda x: x.mean(0), lambda g, x: (g / len(x)).expand_as(x)),
        (X,),
    ),
}

PLANTED = {
    "mean for sum": (
        made(lambda x, bias: x + bias, lambda g, x, bias: (g, g.mean(0))),
        (X, BIAS),
        "gradient of `bias`",
    ),
    "one number for all": (
        made(lambda x, bias: x + bias, lambda g, x, bias: (g, g.sum().expand(4) / 4)),
        (X, BIAS),
        "gradient of `bias`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
