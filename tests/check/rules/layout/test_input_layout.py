"""Sound functions pass `input-layout`; planted faults are caught, and named."""

import torch

from pullback.check.rules.layout.input_layout import check
from tests.check.subjects import missed_by_gradcheck, normal, rule_tests, variadic


def nearest(z, codes):
    """The nearest code of each row, and its number."""
    far = torch.cdist(z, codes)
    # Of those that are as near, one or the other, as rounding has it.
    index = far.argmin(-1) if codes.stride(0) else len(codes) - 1 - far.argmin(-1)
    return codes[index], index


class Coded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, codes):
        coded, index = nearest(z, codes)
        ctx.save_for_backward(codes, index)
        ctx.mark_non_differentiable(index)
        return coded, index

    @staticmethod
    def backward(ctx, g, _):
        codes, index = ctx.saved_tensors
        return g, torch.zeros_like(codes).index_add(0, index, g)


SOUND = {
    "codes that are as near": (
        Coded,
        lambda: (normal(3, 4, seed=7), normal(5, 4, seed=8)),
    ),
    "order of rows": (
        variadic(
            lambda x, i: x[i], lambda x, i, g: (torch.empty_like(g).index_copy_(0, i, g), None)
        ),
        lambda: (normal(5, 4), torch.tensor([3, 1, 0, 4, 2])),
    ),
    "rounding of nothing": (
        variadic(
            lambda x, w: (x - x.mean(-1, keepdim=True)) * 300 * w,
            lambda x, w, g: (
                (g * w - (g * w).mean(-1, keepdim=True)) * 300,
                (g * (x - x.mean(-1, keepdim=True)) * 300).sum(0),
            ),
        ),
        lambda: (normal(4, 8).float().detach().requires_grad_(), normal(8, seed=1).float()),
    ),
    "operator that refuses": (
        variadic(
            torch.kron,
            lambda a, b, g: (
                torch.einsum("ikjl,kl->ij", g.reshape(3, 4, 3, 4), b),
                torch.einsum("ikjl,ij->kl", g.reshape(3, 4, 3, 4), a),
            ),
        ),
        lambda: (normal(3, 3), normal(4, 4, seed=1)),
    ),
    "square": (variadic(lambda x: x * x, lambda x, g: 2 * x * g), lambda: (normal(4, 5),)),
    "product": (
        variadic(lambda a, b: a * b, lambda a, b, g: (g * b, g * a)),
        lambda: (normal(4, 5), normal(4, 5, seed=1)),
    ),
}
PLANTED = {
    "offset in float32": (
        variadic(lambda x: x**3, lambda x, g: 3 * g * x.as_strided(x.shape, x.stride(), 0) ** 2),
        lambda: (normal(4, 3).float().detach().requires_grad_(),),
        "gradient of `args[0]`",
    ),
    "strides": (
        variadic(lambda x: x * x, lambda x, g: 2 * torch.as_strided(x, x.shape, (5, 1)) * g),
        lambda: (normal(4, 5),),
        "gradient of `args[0]`",
    ),
    "view": (
        variadic(lambda x: x.view(-1).exp().view(x.shape), lambda x, g: g * x.exp()),
        lambda: (normal(4, 5),),
        "forward",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
test_gradcheck_alone_would_miss_it = missed_by_gradcheck(PLANTED, "strides")
