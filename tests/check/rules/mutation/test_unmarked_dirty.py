"""Sound functions pass `unmarked-dirty`; planted faults are caught, and named."""

from torch.autograd import Function

import pullback as pb
from tests.check.subjects import check_of, made, normal, rule_tests

check = check_of("unmarked-dirty")

X, Y = normal(4), normal(4, seed=1)


class Marked(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.mark_dirty(x)
        return x.add_(y)

    @staticmethod
    def backward(ctx, g):
        return g, g


class Unmarked(Marked):
    @staticmethod
    def forward(ctx, x, y):
        x.add_(y)
        return x


class UnmarkedView(Marked):
    @staticmethod
    def forward(ctx, x, y):
        x.add_(y)
        return x.view(2, 2)

    @staticmethod
    def backward(ctx, g):
        return g.view(4), g.view(4)


class MarkedOfOurs(pb.Function):
    """Keeps a number in `saved_data`, so that other callers see a translated forward."""

    is_traceable = True

    @staticmethod
    def forward(ctx, x, n):
        ctx.saved_data["n"] = n
        ctx.mark_dirty(x)
        return x.mul_(n)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_data["n"], None


SOUND = {
    "marked": (Marked, (X, Y)),
    "marked by a pullback.Function": (MarkedOfOurs, (X, 3)),
    "sum": (made(lambda x, y: x + y, lambda g, x, y: (g, g)), (X, Y)),
    "view": (made(lambda x: x.view_as(x), lambda g, x: g), (X,)),
}

PLANTED = {
    "returned": (Unmarked, (X.detach(), Y), "input `x`"),
    "as a view": (UnmarkedView, (X, Y), "input `x`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
