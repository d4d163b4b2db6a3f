"""Sound functions pass `missing-tangent`; planted faults are caught, and named."""

from torch.autograd import Function

from tests.check.subjects import check_of, normal, rule_tests

check = check_of("missing-tangent")


class Asks(Function):
    """Takes a tangent that is None for zero."""

    @staticmethod
    def forward(a, b):
        return a + 2 * b

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, grad):
        return (None, None) if grad is None else (grad, 2 * grad)

    @staticmethod
    def jvp(ctx, a, b):
        return (0 if a is None else a) + (0 if b is None else 2 * b)


class Adds(Function):
    """Adds tangents of which one may be None."""

    @staticmethod
    def forward(a, b):
        return a + 2 * b

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, grad):
        return (None, None) if grad is None else (grad, 2 * grad)

    @staticmethod
    def jvp(ctx, a, b):
        return a + 2 * b


SOUND = {
    "asks": (Asks, lambda: (normal(4, 3), normal(4, 3, seed=1))),
}
PLANTED = {
    "adds": (Adds, lambda: (normal(4, 3), normal(4, 3, seed=1)), "along `a` alone"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)
