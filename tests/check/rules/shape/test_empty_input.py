"""Sound functions pass `empty-input`; planted faults are caught, and named."""

from pullback.check.rules.shape.empty_input import check
from tests.check.subjects import missed_by_gradcheck, normal, rule_tests, variadic

SOUND = {
    "no columns": (
        variadic(
            lambda x, w: x * w,
            lambda x, w, g: (g * w, (g * x).reshape(-1, x.shape[-1]).sum(0)),
        ),
        lambda: (normal(4, 5), normal(5, seed=1)),
    ),
    "ambiguous reshape": (
        variadic(lambda x: x * x, lambda x, g: (2 * x * g).reshape(len(x), -1).reshape(x.shape)),
        lambda: (normal(4, 5),),
    ),
    "square": (variadic(lambda x: x * x, lambda x, g: 2 * x * g), lambda: (normal(4, 5),)),
    "product": (
        variadic(lambda a, b: a * b, lambda a, b, g: (g * b, g * a)),
        lambda: (normal(4, 5), normal(4, 5, seed=1)),
    ),
}
PLANTED = {
    "maximum of nothing": (
        variadic(lambda x: x * x, lambda x, g: 2 * x * g + 0 * g.max()),
        lambda: (normal(4, 5),),
        "backward",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
test_gradcheck_alone_would_miss_it = missed_by_gradcheck(PLANTED, "maximum of nothing")
