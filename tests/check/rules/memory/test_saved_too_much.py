"""Sound functions pass `saved-too-much`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from tests.check.subjects import check_of, made, normal, rule_tests

check = check_of("saved-too-much")

X, W = normal(16, 8, dtype=torch.float32), normal(8, seed=1, dtype=torch.float32)


class Product(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, (g * x).sum_to_size(w.shape)


class Expanded(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w.expand(len(x), -1).contiguous())
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, (g * x).sum(0)


class Wider(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w, x.double())
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w, wide = ctx.saved_tensors
        return g * w, (g * wide).sum(0).to(x.dtype)


class Slope(Function):
    """One tensor for another."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(1 - x.tanh() ** 2)
        return x.tanh()

    @staticmethod
    def backward(ctx, g):
        (slope,) = ctx.saved_tensors
        return g * slope


class Everything(Function):
    @staticmethod
    def forward(ctx, x):
        t = x.tanh()
        ctx.save_for_backward(t, t * t, 1 - t * t)
        return t

    @staticmethod
    def backward(ctx, g):
        t, square, slope = ctx.saved_tensors
        return g * slope + 0 * (square - t * t)


class Mask64(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward((x > 0).double())
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask.to(g.dtype)


class OneHot(Function):
    @staticmethod
    def forward(ctx, x, index):
        hot = torch.nn.functional.one_hot(index, x.shape[-1]).to(x.dtype)
        ctx.save_for_backward(hot)
        return (x * hot).sum(-1)

    @staticmethod
    def backward(ctx, g):
        (hot,) = ctx.saved_tensors
        return g[:, None] * hot, None


SOUND = {
    "product": (Product, (X, W)),
    "slope": (Slope, (X,)),
    "input and output": (made(lambda x: x.exp(), lambda g, x: g * x.exp()), (X,)),
    "opaque": (
        made(lambda x: torch.from_numpy(x.detach().numpy() ** 2), lambda g, x: 2 * x * g),
        (X,),
    ),
}

PLANTED = {
    "expanded": (Expanded, (X, W), "saved tensor 1"),
    "wider": (Wider, (X, W), "saved tensor 2"),
    "one-hot": (OneHot, (normal(8, 40), torch.arange(8)), "saved tensor 0"),
    "everything": (Everything, (X,), "the 3 saved tensors"),
    "mask in float64": (Mask64, (X,), "the 1 saved tensors"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
