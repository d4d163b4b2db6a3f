"""Sound functions pass `wrong-among-many`; planted faults are caught, and named."""

from tests.check.subjects import check_of, missed_by_gradcheck, normal, rule_tests, variadic

check = check_of("wrong-among-many")


def one_wrong(x, grad):
    """One entry beyond the first 70,000 with the wrong sign."""
    out = 2 * x * grad
    if out.numel() > 70_001:
        out.view(-1)[70_000] *= -1
    return out


SOUND = {
    "square": (variadic(lambda x: x * x, lambda x, g: 2 * x * g), lambda: (normal(4, 5),)),
    "product": (
        variadic(lambda a, b: a * b, lambda a, b, g: (g * b, g * a)),
        lambda: (normal(4, 5), normal(4, 5, seed=1)),
    ),
}
PLANTED = {"sign": (variadic(lambda x: x * x, one_wrong), lambda: (normal(4, 5),), "1 of ")}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
test_gradcheck_alone_would_miss_it = missed_by_gradcheck(PLANTED, "sign")
