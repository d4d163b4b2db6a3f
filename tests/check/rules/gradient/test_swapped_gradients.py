"""Sound functions pass `swapped-gradients`; planted faults are caught, and named."""

from tests.check.subjects import check_of, findings, made, normal, rule_tests

check = check_of("swapped-gradients")

A, B = normal(5), normal(5, seed=1)

SOUND = {
    "product": (made(lambda a, b: a * b, lambda g, a, b: (g * b, g * a)), (A, B)),
    "equal gradients": (made(lambda a, b: a + b, lambda g, a, b: (g, g)), (A, B)),
    "other fault": (made(lambda a, b: a * b, lambda g, a, b: (g, g * a)), (A, B)),
}

PLANTED = {
    "product": (
        made(lambda a, b: a * b, lambda g, a, b: (g * a, g * b)),
        (A, B),
        "gradient of `a`",
    ),
    "three": (
        made(lambda a, b, c: a * b + c, lambda g, a, b, c: (g * a, g * b, g)),
        (A, B, normal(5, seed=2)),
        "gradient of `a`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_other_input_is_named():
    first, second = findings(check, PLANTED["product"][0], A, B)

    assert ("`b`" in first.why, "`a`" in second.why) == (True, True)
