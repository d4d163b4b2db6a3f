"""Sound functions pass `rounded-input`; planted faults are caught, and named."""

import numpy as np
import torch

from pullback.check.rules.dtype.rounded_input import check
from tests.check.subjects import made, missed_by_gradcheck, normal, rule_tests


def coarse(tensor, dtype=torch.bfloat16):
    return tensor.to(dtype).to(tensor.dtype)


def silu_slope(x):
    s = x.sigmoid()
    return s + x * s * (1 - s)


def nearest_distribution(x):
    """Sparsemax by bisection: the gradient that autograd sees is not that of what is found."""
    low = x.max(-1, keepdim=True).values - 1
    width = x.max(-1, keepdim=True).values - 1 / x.shape[-1] - low
    for _ in range(50):
        width = width / 2
        found = (x - low - width).clamp(min=0)
        low = torch.where(found.sum(-1, keepdim=True) >= 1, low + width, low)
    return found / found.sum(-1, keepdim=True)


def nearest_distribution_gradient(g, x):
    support = (nearest_distribution(x) > 0).to(g.dtype)
    return support * (g - (g * support).sum(-1, keepdim=True) / support.sum(-1, keepdim=True))


SOUND = {
    "result of a search": (
        made(nearest_distribution, nearest_distribution_gradient),
        lambda: (normal(3, 4),),
    ),
    "sine": (made(lambda x: x.sin(), lambda g, x: g * x.cos()), lambda: (normal(4, 6),)),
    "linear": (made(lambda x: 3 * x, lambda g, x: 3 * g), lambda: (normal(4, 6),)),
    "step": (made(lambda x: x.relu(), lambda g, x: g * (x > 0)), lambda: (normal(4, 6),)),
    "rounded in forward too": (
        made(lambda x: coarse(x).sin(), lambda g, x: g * coarse(x).cos()),
        lambda: (normal(4, 6),),
    ),
    "product": (
        made(lambda a, b: a @ b, lambda g, a, b: (g @ b.mT, a.mT @ g)),
        lambda: (normal(4, 6), normal(6, 3, seed=1)),
    ),
}
PLANTED = {
    "float16 by way of bfloat16": (
        made(
            lambda x: x * x.sigmoid(),
            lambda g, x: g * silu_slope(coarse(x) if x.dtype == torch.half else x),
        ),
        lambda: (normal(4, 6),),
        "gradient of `x`, as `x` changes",
    ),
    "one of two inputs": (
        made(lambda a, b: a @ b, lambda g, a, b: (g @ b.mT, coarse(a, torch.float32).mT @ g)),
        lambda: (normal(4, 6), normal(6, 3, seed=1)),
        "gradient of `b`, as `a` changes",
    ),
    "cotangent, by numpy": (
        made(
            lambda x: torch.from_numpy(np.sin(x.detach().numpy())),
            lambda g, x: torch.from_numpy(g.numpy().astype(np.float32) * np.cos(x.numpy())),
        ),
        lambda: (normal(4, 6),),
        "gradient of `x`, as the cotangent changes",
    ),
    "cotangent": (
        made(lambda x: x.sin(), lambda g, x: coarse(g, torch.float32) * x.cos()),
        lambda: (normal(4, 6),),
        "gradient of `x`, as the cotangent changes",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)


test_gradcheck_alone_would_miss_it = missed_by_gradcheck(PLANTED, "float16 by way of bfloat16")
