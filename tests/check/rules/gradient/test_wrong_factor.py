"""Sound functions pass `wrong-factor`; planted faults are caught, and named."""

from tests.check.subjects import check_of, findings, made, normal, rule_tests

check = check_of("wrong-factor")

X = normal(3, 4)

SOUND = {
    "square": (made(lambda x: x * x, lambda g, x: 2 * x * g), (X,)),
    "other fault": (made(lambda x: x * x, lambda g, x: x.abs() * g), (X,)),
}

PLANTED = {
    "half": (made(lambda x: x * x, lambda g, x: x * g), (X,), "gradient of `x`"),
    "slightly": (made(lambda x: x**3, lambda g, x: 2.999 * x * x * g), (X,), "gradient of `x`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_factor_is_told():
    (finding,) = findings(check, *PLANTED["half"][:1], X)

    assert "0.5 times the right one" in finding.why
    assert finding.fix == "multiply the gradient of `x` by 2"


def test_constant_that_is_wrong_is_named():
    target = made(lambda x: x**3, lambda g, x: 2 * g * x * x)
    (finding,) = findings(check, target, X)

    assert finding.fix == "use 3 instead of 2 in `2 * cotangents[0]`"
