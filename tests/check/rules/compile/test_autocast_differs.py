"""Sound functions pass `autocast-differs`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from pullback.check.rules.compile.autocast_differs import check
from tests.check.subjects import normal, rule_tests


class Matmul(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        g = g.to(w.dtype)
        return g @ w.t(), x.t() @ g


class Refuses(Matmul):
    """Does not know autocast: its backward meets two dtypes."""

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g


class Guarded(Matmul):
    """Forward and backward ask whether autocast is on, and get different answers."""

    @staticmethod
    def forward(ctx, x, w):
        scale = 0.125 if torch.is_autocast_enabled("cpu") else 1.0
        ctx.save_for_backward(x * scale, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        scale = 0.125 if torch.is_autocast_enabled("cpu") else 1.0
        g = g.to(w.dtype)
        return g @ w.t(), x.t() @ g / scale


class Promised(Refuses):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w.bfloat16() if torch.is_autocast_enabled("cpu") else w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return torch.mm(g, w.t()), torch.mm(x.t(), g)


class Casts(Refuses):
    """Saves one operand in the dtype of the output, and the other one not."""

    @staticmethod
    def forward(ctx, x, w):
        out = x @ w
        ctx.save_for_backward(x, w.to(out.dtype))
        return out


class Asserts(Refuses):
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        assert g.dtype == x.dtype
        return g @ w.t(), x.t() @ g


class Declines(Refuses):
    """Refuses another dtype by an error of its own."""

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        if g.dtype != x.dtype:
            raise TypeError("not under autocast")
        return g @ w.t(), x.t() @ g


class Rounds(Function):
    """Rounds the gradient of the weight to autocast's dtype, where forward needs no rounding."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.is_cast = torch.is_autocast_enabled("cpu")
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        dw = (g * x).sum(0)
        return g * w, dw.bfloat16().to(w.dtype) if ctx.is_cast else dw


def single(*shape, seed=0):
    return normal(*shape, seed=seed, dtype=torch.float32)


SOUND = {
    "matmul": (Matmul, lambda: (single(3, 4), single(4, 5, seed=1))),
    "declines": (Declines, lambda: (single(3, 4), single(4, 5, seed=1))),
}
PLANTED = {
    "rounds": (
        Rounds,
        lambda: (single(6, 5), single(5, seed=1)),
        "gradient of `w`",
    ),
    "guarded": (Guarded, lambda: (single(3, 4), single(4, 5, seed=1)), "gradient of `w`"),
    "casts": (Casts, lambda: (single(3, 4), single(4, 5, seed=1)), "backward, after"),
    "asserts": (Asserts, lambda: (single(3, 4), single(4, 5, seed=1)), "backward, after"),
    "does not know it": (
        Refuses,
        lambda: (single(3, 4), single(4, 5, seed=1)),
        "backward, after",
    ),
    "promised": (Promised, lambda: (single(3, 4), single(4, 5, seed=1)), "backward, after"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
