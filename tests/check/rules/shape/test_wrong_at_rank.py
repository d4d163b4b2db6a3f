"""Sound functions pass `wrong-at-rank`; planted faults are caught, and named."""

import torch

from tests.check.subjects import check_of, missed_by_gradcheck, normal, rule_tests, variadic

check = check_of("wrong-at-rank")


class Scaled(torch.autograd.Function):
    """Several tensors times one number."""

    @staticmethod
    def forward(ctx, scale, *tensors):
        ctx.save_for_backward(scale, *tensors)
        return tuple(scale * tensor for tensor in tensors)

    @staticmethod
    def backward(ctx, *grads):
        scale, *tensors = ctx.saved_tensors
        total = sum((g * t).sum() for g, t in zip(grads, tensors, strict=True))
        return (total + torch.zeros_like(scale), *(g * scale for g in grads))


SOUND = {
    "number beside tensors": (
        Scaled,
        lambda: (normal(), normal(2, 3, seed=1), normal(4, seed=2), normal(1, 2, 2, seed=3)),
    ),
    "mean of a batch": (
        variadic(
            lambda x, y: torch.nn.functional.cross_entropy(x, y),
            lambda x, y, g: (
                g * (x.softmax(-1) - torch.nn.functional.one_hot(y, x.shape[-1])) / len(x),
                None,
            ),
        ),
        lambda: (normal(6, 5), torch.tensor([1, 4, 0, 2, 2, 3])),
    ),
    "mean of equal shapes": (
        variadic(
            lambda x, t: (x * t).mean(), lambda x, t, g: (g * t / x.numel(), g * x / x.numel())
        ),
        lambda: (normal(5, 4), normal(5, 4, seed=1)),
    ),
    "square": (variadic(lambda x: x * x, lambda x, g: 2 * x * g), lambda: (normal(4, 5),)),
    "bias": (
        variadic(lambda x, b: x + b, lambda x, b, g: (g, g.flatten(0, -2).sum(0))),
        lambda: (normal(4, 5), normal(5, seed=1)),
    ),
}
PLANTED = {
    "as large a batch": (
        variadic(lambda a: torch.linalg.slogdet(a)[1], lambda a, g: g * torch.linalg.inv(a).mT),
        lambda: (normal(3, 3),),
        "gradient of `args[0]`",
    ),
    "softmax along dimension 1": (
        variadic(
            lambda x: x.softmax(-1),
            lambda x, g: x.softmax(-1) * (g - (g * x.softmax(-1)).sum(1, keepdim=True)),
        ),
        lambda: (normal(4, 5),),
        "gradient of `args[0]`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
test_gradcheck_alone_would_miss_it = missed_by_gradcheck(PLANTED, "softmax along dimension 1")
