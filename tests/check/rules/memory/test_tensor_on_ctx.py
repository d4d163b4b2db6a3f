"""Sound functions pass `tensor-on-ctx`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

import pullback as pb
from pullback.check.rules.memory.tensor_on_ctx import check
from tests.check.subjects import findings, made, normal, rule_tests

X, W = normal(4, 3), normal(4, 3, seed=1)


class Flags(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape, ctx.scale, ctx.seed = x.shape, 2.0, torch.tensor(7)
        ctx.state = torch.get_rng_state()
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class OnCtx(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.w = w
        ctx.save_for_backward(x)
        return x * w

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.w, g * x


class Ours(pb.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.w = w
        ctx.save_for_backward(x)
        return x * w

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.w, g * x


class Mask(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mask = x > 0
        return x * ctx.mask

    @staticmethod
    def backward(ctx, g):
        return g * ctx.mask


class InList(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.kept = [x.detach()]
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.kept[0]


class Slope(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.slope = 2 * x
        return x * x

    @staticmethod
    def backward(ctx, g):
        return g * ctx.slope


class Freed(Function):
    """Frees it by itself."""

    @staticmethod
    def forward(ctx, x):
        ctx.slope = 2 * x
        return x * x

    @staticmethod
    def backward(ctx, g):
        slope = ctx.slope
        del ctx.slope
        return g * slope


SOUND = {
    "flags": (Flags, (X,)),
    "saved": (made(lambda x, w: x * w, lambda g, x, w: (g * w, g * x)), (X, W)),
    "ours": (Ours, (X, W)),
    "freed": (Freed, (X,)),
    "mask": (Mask, (X,)),
}

PLANTED = {
    "input": (OnCtx, (X, W), "`ctx.w`"),
    "intermediate": (Slope, (X,), "`ctx.slope`"),
    "in a list": (InList, (X,), "`ctx.kept`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_what_is_held_is_told():
    (held,) = findings(check, OnCtx, X, W)
    (stays,) = findings(check, Slope, X)

    assert ("input `w`" in held.got, "96 bytes that stay" in stays.got) == (True, True)


class MaskOnCtx(Function):
    @staticmethod
    def forward(ctx, x, mask):
        ctx.save_for_backward(x)
        ctx.mask = mask
        return x * x * mask

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x.detach() * ctx.mask, None


def test_mask_on_ctx_explains_no_lost_second_derivative():
    report = pb.check(MaskOnCtx, (X, torch.ones(X.shape, dtype=torch.bool)))

    assert {"tensor-on-ctx", "detached-double-backward"} <= {f.rule.name for f in report.findings}
