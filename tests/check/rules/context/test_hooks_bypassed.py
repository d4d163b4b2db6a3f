"""Sound functions pass `hooks-bypassed`; planted faults are caught, and named."""

from torch.autograd import Function

import pullback as pb
from tests.check.functions import Square
from tests.check.subjects import check_of, normal, rule_tests

check = check_of("hooks-bypassed")


class Scaled(Function):
    """Numbers, shapes and single entries may be on ctx."""

    @staticmethod
    def forward(ctx, x, k):
        ctx.k, ctx.shape, ctx.one = k, x.shape, x.new_ones(())
        return x * k

    @staticmethod
    def backward(ctx, g):
        return g * ctx.k * ctx.one, None


class OurSquare(pb.Function):
    """Saves what is put on ctx by itself."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.x * g


class ByAddress(Function):
    """Looks a saved tensor up by its address."""

    known = {}  # noqa: RUF012

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ByAddress.known = {x.data_ptr(): 2.0}
        return x * 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ByAddress.known.get(x.data_ptr(), 1.0)


class Demands(Square):
    """Insists on the memory that was saved."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.address = x.data_ptr()
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if x.data_ptr() != ctx.address:
            raise RuntimeError("not the tensor that was saved")
        return 2 * x * g


SOUND = {
    "square": (Square, lambda: (normal(5),)),
    "numbers": (Scaled, lambda: (normal(5), 3.0)),
    "ours": (OurSquare, lambda: (normal(5),)),
}
PLANTED = {
    "raises": (Demands, lambda: (normal(5),), "backward, with saved tensors"),
    "by address": (ByAddress, lambda: (normal(5),), "gradient of `x`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
