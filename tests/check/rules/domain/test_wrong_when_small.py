"""Sound functions pass `wrong-when-small`; planted faults are caught, and named."""

from torch.autograd import Function

from tests.check.subjects import (
    check_of,
    findings,
    missed_by_gradcheck,
    normal,
    rule_tests,
    variadic,
)

check = check_of("wrong-when-small")


SOUND = {
    "square": (variadic(lambda x: x * x, lambda x, g: 2 * x * g), lambda: (normal(4, 5),)),
    "product": (
        variadic(lambda a, b: a * b, lambda a, b, g: (g * b, g * a)),
        lambda: (normal(4, 5), normal(4, 5, seed=1)),
    ),
}
PLANTED = {
    "cut off": (
        variadic(lambda x: x**4, lambda x, g: 4 * x**3 * g + g * (x.abs() < 1e-3)),
        lambda: (normal(4, 5),),
        "gradient of `args[0]`",
    ),
}


def test_number_for_backward_alone_is_the_callers_choice():
    class Root(Function):
        @staticmethod
        def forward(ctx, x, eps):
            ctx.save_for_backward(x)
            ctx.eps = eps
            return x.sqrt()

        @staticmethod
        def backward(ctx, g):
            return g / (2 * (ctx.saved_tensors[0].sqrt() + ctx.eps)), None

    assert findings(check, Root, normal(6).detach().abs() + 0.5, 1e-7) == []


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
test_gradcheck_alone_would_miss_it = missed_by_gradcheck(PLANTED, "cut off")
