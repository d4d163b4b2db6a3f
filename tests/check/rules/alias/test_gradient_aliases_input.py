"""Sound functions pass `gradient-aliases-input`; planted faults are caught, and named."""

from torch.autograd import Function

from tests.check.subjects import check_of, made, normal, rule_tests

check = check_of("gradient-aliases-input")

X, W = normal(4), normal(4, seed=1)


class Exp(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y.detach() if bool((g == 1).all()) else g * y


SOUND = {
    "product": (made(lambda x, w: x * w, lambda g, x, w: (g * w, g * x)), (X, W)),
    "one for two": (made(lambda x, w: x + w, lambda g, x, w: (g, g)), (X, W)),
    "cotangent": (made(lambda x: x * 1, lambda g, x: g), (X,)),
}

PLANTED = {
    "input": (
        made(lambda x, w: (x * w).sum(), lambda g, x, w: (w, x) if g == 1 else (g * w, g * x)),
        (X, W),
        "gradient of `x`",
    ),
    "output": (Exp, (X,), "gradient of `x`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
