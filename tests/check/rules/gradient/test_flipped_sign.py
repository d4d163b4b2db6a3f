"""Sound functions pass `flipped-sign`; planted faults are caught, and named."""

from tests.check.subjects import check_of, made, normal, rule_tests

check = check_of("flipped-sign")

A, B = normal(5), normal(5, seed=1)

SOUND = {
    "difference": (made(lambda a, b: a - b, lambda g, a, b: (g, -g)), (A, B)),
    "other fault": (made(lambda a, b: a - b, lambda g, a, b: (g, -2 * g)), (A, B)),
    "reversal": (
        made(lambda a: a * 1, lambda g, a: -g, declares={"surrogate": "a"}),
        (A,),
    ),
}

PLANTED = {
    "difference": (made(lambda a, b: a - b, lambda g, a, b: (g, g)), (A, B), "gradient of `b`"),
    "cosine": (made(lambda a: a.cos(), lambda g, a: g * a.sin()), (A,), "gradient of `a`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
