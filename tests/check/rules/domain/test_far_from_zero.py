"""Sound functions pass `far-from-zero`; planted faults are caught, and named."""

import torch

from tests.check.subjects import check_of, made, normal, rule_tests

check = check_of("far-from-zero")


def normed(x):
    return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(spread(x) + 1e-5)


def spread(x):
    return x.var(-1, unbiased=False, keepdim=True)


def careless(x):
    return (x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2


def pulled(g, x, variance):
    scale = torch.rsqrt(variance + 1e-5)
    y = (x - x.mean(-1, keepdim=True)) * scale
    return scale * (g - g.mean(-1, keepdim=True) - y * (g * y).mean(-1, keepdim=True))


SOUND = {
    "variance": (made(normed, lambda g, x: pulled(g, x, spread(x))), lambda: (normal(6, 30),)),
    "power": (made(lambda x: x**3, lambda g, x: 3 * g * x**2), lambda: (normal(6),)),
}
PLANTED = {
    "difference": (
        made(normed, lambda g, x: pulled(g, x, careless(x))),
        lambda: (normal(6, 30),),
        "gradient of `x`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)
